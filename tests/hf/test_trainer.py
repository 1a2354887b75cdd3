"""Callbacks and losses in the Trainer of transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install -e '.[hf]'")
pytest.importorskip("accelerate", reason="needs accelerate: pip install -e '.[hf]'")

from lit_sparse.errors import ConfigurationError  # noqa: E402
from lit_sparse.hf import (  # noqa: E402
    AlphaAnnealing,
    AnnealedEntmax,
    SparsityCallback,
    fenchel_young_loss_func,
    risk_loss_func,
    sparsify,
)
from lit_sparse.hf.adapter import LayerMapping  # noqa: E402
from lit_sparse.mappings import (  # noqa: E402
    Entmax,
    FenchelYoungLoss,
    HardThreshold,
    LearnableEntmax,
    Softmax,
    Sparsemax,
    TopKSparsemax,
)
from lit_sparse.risks import KLDRO, CVaR, ExponentialOTDRO, Mean, MultilevelCVaR, SafeKLDRO  # noqa: E402

from . import tiny  # noqa: E402

EXAMPLES = 16


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    torch.manual_seed(0)
    yield


def classified() -> list[dict[str, Any]]:
    """Return sentences of different lengths with a class each."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(3, 50, (EXAMPLES, 6), generator=generator)
    masks = torch.ones_like(ids)
    masks[::2, 4:] = 0
    return [
        {"input_ids": ids[i], "attention_mask": masks[i], "labels": torch.tensor(int(ids[i, 0]) % 2)} for i in range(EXAMPLES)
    ]


def sentences() -> list[dict[str, Any]]:
    """Return sentences whose labels are the next tokens, some of which are ignored."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(3, 50, (EXAMPLES, 6), generator=generator)
    labels = ids.clone()
    labels[torch.rand(labels.shape, generator=generator) < 0.3] = -100
    return [{"input_ids": ids[i], "labels": labels[i]} for i in range(EXAMPLES)]


def trainer_of(folder: Path, model: Any, data: Any, **options: Any) -> Any:
    loss = options.pop("loss", None)
    given = {"per_device_train_batch_size": 4, "num_train_epochs": 1, "learning_rate": 1e-2, "logging_steps": 2, **options}
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
        dataloader_pin_memory=False,
        **given,
    )
    return transformers.Trainer(model, arguments, train_dataset=data, eval_dataset=data, compute_loss_func=loss)


def weights_after(folder: Path, make: Callable[[], Any], data: Any, batch: int, accumulate: int, loss: Any) -> Any:
    """Return the weights after two steps of plain gradient descent."""
    model = make()
    options = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": accumulate, "max_grad_norm": 0.0}
    plain = {"optim": "sgd", "learning_rate": 0.1, "lr_scheduler_type": "constant", "max_steps": 2}
    trainer = trainer_of(folder, model, data, loss=loss, **options, **plain)
    trainer.train()
    return {key: p.detach() for key, p in model.named_parameters()}


def small_bert() -> Any:
    return tiny.bert(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_hidden_layers=1)


def small_llama() -> Any:
    return tiny.llama(num_hidden_layers=1)


@pytest.mark.parametrize("kind", ["causal", "classes"])
def test_accumulated_fenchel_young_losses_are_those_of_the_whole_batch(kind: str, tmp_path: Path) -> None:
    make, data = (small_llama, sentences()) if kind == "causal" else (small_bert, classified())
    loss = fenchel_young_loss_func(Entmax(1.5))
    whole = weights_after(tmp_path, make, data, 16, 1, loss)
    parts = weights_after(tmp_path, make, data, 4, 4, loss)
    moved = 0.0
    for key, start in make().named_parameters():
        torch.testing.assert_close(parts[key], whole[key], rtol=1e-4, atol=2e-6)
        moved = max(moved, float((whole[key] - start.detach()).abs().max()))
    assert moved > 1e-2


def test_the_loss_of_softmax_is_that_of_the_model(tmp_path: Path) -> None:
    for make, data in ((small_llama, sentences()), (small_bert, classified())):
        ours = trainer_of(tmp_path, make(), data, loss=fenchel_young_loss_func(Softmax())).evaluate()["eval_loss"]
        own = trainer_of(tmp_path, make(), data).evaluate()["eval_loss"]
        assert ours == pytest.approx(own, rel=1e-4)


def test_labels_are_shifted_for_causal_models_alone() -> None:
    logits, labels = torch.randn(2, 5, 7), torch.randint(7, (2, 5))
    loss = fenchel_young_loss_func(Sparsemax())
    plain = FenchelYoungLoss(Sparsemax())
    shifted = plain(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    outputs = transformers.modeling_outputs
    assert torch.allclose(loss(outputs.CausalLMOutputWithPast(logits=logits), labels), shifted)
    unshifted = plain(logits.flatten(0, 1), labels.flatten())
    assert torch.allclose(loss(outputs.TokenClassifierOutput(logits=logits), labels), unshifted)
    assert torch.allclose(fenchel_young_loss_func(Sparsemax(), shift=False)((logits,), labels), unshifted)
    assert not torch.allclose(shifted, unshifted)


def test_a_fenchel_young_loss_needs_a_mapping_that_has_one() -> None:
    with pytest.raises(ConfigurationError, match="onto the simplex"):
        fenchel_young_loss_func(HardThreshold(2))
    with pytest.raises(ConfigurationError, match="one label for each row of logits"):
        fenchel_young_loss_func(Sparsemax())({"logits": torch.ones(2, 3, 4)}, torch.ones(2, dtype=torch.long))


def test_cvar_trains_on_the_worst_examples(tmp_path: Path) -> None:
    logits, labels = torch.randn(8, 3), torch.randint(3, (8,))
    labels[2] = -100
    losses = F.cross_entropy(logits, labels, reduction="none")[labels != -100]
    assert torch.allclose(risk_loss_func(CVaR(2 / 7))({"logits": logits}, labels, 7), losses.sort().values[-2:].mean())
    trainer = trainer_of(tmp_path, small_bert(), classified(), loss=risk_loss_func(CVaR(0.5)))
    assert trainer.train().training_loss > 0


def test_labels_of_a_risk_are_integers() -> None:
    loss, logits, labels = risk_loss_func(CVaR(0.5)), torch.randn(4, 3), torch.tensor([0, 2, -100, 1])
    assert loss({"logits": logits}, labels.int()) == loss({"logits": logits}, labels)
    with pytest.raises(ConfigurationError, match=r"class labels of an integer type .*float32\. Give `example_losses`"):
        loss({"logits": logits[:, :1]}, labels.float())


def test_evaluation_does_not_draw_examples() -> None:
    logits, labels = torch.randn(64, 3), torch.randint(3, (64,))
    with torch.no_grad():  # as the Trainer evaluates
        found = {float(risk_loss_func(risk)({"logits": logits}, labels)) for risk in (CVaR(0.5), MultilevelCVaR(0.5, 2))}
    assert len(found) == 1


@pytest.mark.parametrize("risk", [CVaR(0.5), KLDRO(1.0)], ids=["cvar", "kl"])
def test_risks_of_whole_batches_refuse_accumulation(risk: Any, tmp_path: Path) -> None:
    loss = risk_loss_func(risk)
    trainer = trainer_of(tmp_path, small_bert(), classified(), loss=loss, gradient_accumulation_steps=2)
    with pytest.raises(ConfigurationError, match=r"gradient_accumulation_steps=1.* with 4 of 8 accumulated labels"):
        trainer.train()


def test_the_mean_accumulates(tmp_path: Path) -> None:
    loss = risk_loss_func(Mean())
    whole = weights_after(tmp_path, small_bert, classified(), 16, 1, loss)
    parts = weights_after(tmp_path, small_bert, classified(), 4, 4, loss)
    for key in whole:
        torch.testing.assert_close(parts[key], whole[key], rtol=1e-4, atol=2e-6)
    trainer = trainer_of(tmp_path, small_llama(), sentences(), loss=loss, gradient_accumulation_steps=2)
    with pytest.raises(ConfigurationError, match="the mean over parts of token labels"):
        trainer.train()


@pytest.mark.parametrize("risk", [SafeKLDRO(1.0, 0.5), ExponentialOTDRO(1.0, 1.0), "cvar"], ids=["dual", "adversary", "name"])
def test_risks_that_the_trainer_cannot_train(risk: Any) -> None:
    with pytest.raises(ConfigurationError, match="Expected a risk"):
        risk_loss_func(risk)


def test_sparsity_is_logged_for_each_layer_and_head(tmp_path: Path) -> None:
    model = tiny.bert(attention_probs_dropout_prob=0.5)
    sparsify(model, [TopKSparsemax(1), Softmax()])
    trainer = trainer_of(tmp_path, model, classified(), eval_strategy="epoch")
    trainer.add_callback(SparsityCallback(trainer))
    trainer.train()
    training = [row for row in trainer.state.log_history if "attention/support" in row]
    evaluation = [row for row in trainer.state.log_history if "eval_attention/support" in row]
    assert [row["step"] for row in training] == [2, 4] and len(evaluation) == 1
    assert {key for key in training[0] if "support" in key} == {
        "attention/support",
        *(f"attention/layer_{layer}/head_{head}/support" for layer in range(2) for head in range(4)),
    }
    row = evaluation[0]
    for head in range(4):
        assert row[f"eval_attention/layer_0/head_{head}/support"] == 1.0
        assert row[f"eval_attention/layer_0/head_{head}/zeros"] == pytest.approx(1 - 1 / 5)  # half have 4 tokens, half 6
        assert row[f"eval_attention/layer_1/head_{head}/support"] == 5.0
        assert row[f"eval_attention/layer_1/head_{head}/zeros"] == 0.0
        assert training[0][f"attention/layer_0/head_{head}/support"] == 1.0  # before dropout
    assert row["eval_attention/support"] == 3.0
    assert not any(part.recording for part in model.modules() if isinstance(part, LayerMapping))


def rows_without(own: str, trainer: Any) -> list[dict[str, Any]]:
    """Return the rows of a Trainer that have no key of a callback, without times."""
    rows = [row for row in trainer.state.log_history if not any(own in key for key in row)]
    timed = ("runtime", "per_second")
    return [{key: value for key, value in row.items() if not key.endswith(timed)} for row in rows]


@pytest.mark.parametrize("options", [{}, {"logging_steps": 1}, {"logging_strategy": "epoch"}], ids=["2", "1", "epoch"])
def test_callbacks_leave_the_rows_of_the_trainer(options: dict[str, Any], tmp_path: Path) -> None:
    """Loss, gradient norm and learning rate, in the history and in what loggers get."""

    class Logger(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.keys: list[list[str]] = []

        def on_log(self, args: Any, state: Any, control: Any, logs: Any, **kwargs: Any) -> None:
            if not any("attention" in key for key in logs):
                self.keys.append(sorted(logs))

    def trained(*callbacks: Any) -> tuple[list[dict[str, Any]], list[list[str]]]:
        torch.manual_seed(0)
        model = small_bert()
        sparsify(model, Entmax(1.5), start="annealed")
        trainer = trainer_of(tmp_path, model, classified(), eval_strategy="steps", eval_steps=2, **options)
        logger = Logger()
        for make in (*callbacks, lambda trainer: AlphaAnnealing(0.5), lambda trainer: logger):
            trainer.add_callback(make(trainer))
        trainer.train()
        return rows_without("attention", trainer), logger.keys

    plain = trained()
    assert any({"loss", "grad_norm", "learning_rate"} <= set(row) for row in plain[0])
    assert trained(SparsityCallback) == plain
    assert trained(lambda trainer: SparsityCallback(trainer, every=1)) == plain


def test_sparsity_of_every_so_many_steps(tmp_path: Path) -> None:
    model = small_bert()
    sparsify(model, Sparsemax())
    trainer = trainer_of(tmp_path, model, classified())
    trainer.add_callback(SparsityCallback(trainer, every=3, per_head=False))
    trainer.train()
    rows = [row for row in trainer.state.log_history if "attention/zeros" in row]
    assert [row["step"] for row in rows] == [3]
    assert not any("head" in key for key in rows[0])


def test_sparsity_needs_a_trainer_and_a_sparse_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="Expected a Trainer of transformers but got"):
        SparsityCallback(tiny.bert())
    trainer = trainer_of(tmp_path, small_bert(), classified())
    trainer.add_callback(SparsityCallback(trainer))
    with pytest.raises(ConfigurationError, match="SparsityCallback found no mapping in BertFor"):
        trainer.train()
    with pytest.raises(AttributeError, match="no attribute 'train'"):
        SparsityCallback(trainer).train  # noqa: B018


@pytest.mark.parametrize(("mapping", "target"), [(Entmax(1.6), 1.6), (Sparsemax(), 2.0)])
def test_alpha_is_annealed_from_softmax(mapping: Any, target: float, tmp_path: Path) -> None:
    model = small_bert()
    model.set_attn_implementation("eager")
    softmax = tiny.outputs_of(model)
    report = sparsify(model, mapping, start="annealed")
    assert "AnnealedEntmax" in str(report)
    torch.testing.assert_close(tiny.outputs_of(model), softmax, rtol=1e-5, atol=1e-5)
    (part,) = (each for each in model.modules() if isinstance(each, AnnealedEntmax))
    alphas = []

    class Recorder(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_step_begin(self, *args: Any, **options: Any) -> None:
            alphas.append(float(part.alpha))

    trainer = trainer_of(tmp_path, model, classified())
    trainer.add_callback(AlphaAnnealing(share=0.5))
    trainer.add_callback(Recorder())
    trainer.train()
    assert alphas == pytest.approx([1.0, 1 + (target - 1) / 2, target, target])
    sparse = small_bert()
    sparse.load_state_dict({key: x for key, x in model.state_dict().items() if "lit_sparse" not in key})
    sparsify(sparse, mapping)
    model.eval()
    torch.testing.assert_close(tiny.outputs_of(model), tiny.outputs_of(sparse), rtol=1e-4, atol=1e-4)


def test_a_learnable_alpha_starts_near_softmax() -> None:
    model = small_bert()
    model.set_attn_implementation("eager")
    softmax = tiny.outputs_of(model)
    sparsify(model, LearnableEntmax((4, 1, 1)), start="annealed")
    near = (tiny.outputs_of(model) - softmax).abs().max()
    sparsify(model, LearnableEntmax((4, 1, 1)))
    assert 0 < near < 0.1 * (tiny.outputs_of(model) - softmax).abs().max()


def test_annealing_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"with start='annealed' but got TopKSparsemax\(k=2"):
        sparsify(small_bert(), TopKSparsemax(2), start="annealed")
    model = small_bert()
    sparsify(model, Sparsemax())
    trainer = trainer_of(tmp_path, model, classified())
    trainer.add_callback(AlphaAnnealing())
    with pytest.raises(ConfigurationError, match=r'AlphaAnnealing found no annealed mapping.*start="annealed"'):
        trainer.train()
    with pytest.raises(ConfigurationError, match="share"):
        AlphaAnnealing(0.0)


def test_annealing_that_does_not_reach_its_target_warns(tmp_path: Path) -> None:
    model = small_bert()
    sparsify(model, Sparsemax(), start="annealed")

    class Stop(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_step_end(self, args: Any, state: Any, control: Any, **options: Any) -> None:
            control.should_training_stop = True

    trainer = trainer_of(tmp_path, model, classified())
    trainer.add_callback(AlphaAnnealing(share=1.0))
    trainer.add_callback(Stop())
    with pytest.warns(UserWarning, match="has completed 25% of its schedule"):
        trainer.train()


def test_alphas_are_trained(tmp_path: Path) -> None:
    model = small_bert()
    sparsify(model, LearnableEntmax((4, 1, 1)))
    (weight,) = (p for key, p in model.named_parameters() if "lit_sparse" in key)
    before = weight.detach().clone()
    trainer_of(tmp_path, model, classified()).train()
    assert (weight.detach() != before).all()
