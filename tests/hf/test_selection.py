"""Per-example gradients are the gradients, projections keep products, and weights reach the Trainer's loss."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lit_sparse.coresets import Coreset, KCenter
from lit_sparse.errors import ConfigurationError, DataError
from lit_sparse.hf import example_gradients, weighted_dataset, weighted_loss_func
from tests.data.encoder import make_encoder
from tests.scripts import test_scripts

from .tiny import bert, tokens

WORDS, LABELS = ("a", "dog", "runs"), ("entailment", "neutral", "contradiction")


def examples(number: int = 6) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 50, (number, 5), generator=generator)
    return [{"input_ids": row.unsqueeze(0), "labels": torch.tensor([i % 2])} for i, row in enumerate(ids)]


def test_gradients_of_examples() -> None:
    """The last layer, LoRA's weights, or all; their mean is the gradient of the mean loss, which the model keeps none of."""
    model, given = bert(), examples()
    found = example_gradients(model, given, parameters="classifier")
    batch = {name: torch.cat([example[name] for example in given]) for name in given[0]}
    model.eval()
    expected = torch.autograd.grad(model(**batch).loss, [*model.classifier.parameters()])
    torch.testing.assert_close(found.mean(0), torch.cat([part.flatten() for part in expected]), atol=1e-5, rtol=1e-4)
    assert all(p.grad is None for p in model.parameters())
    whole = example_gradients(model, given)
    assert whole.shape[1] == sum(p.numel() for p in model.parameters())
    products = torch.stack([(p := example_gradients(model, given, features=64, seed=seed)) @ p.mT for seed in range(30)])
    expected_products = whole @ whole.mT
    spread = products.std(0) / 30**0.5
    assert bool(((products.mean(0) - expected_products).abs() < 5 * spread + 1e-6).all())
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("layer.1.attention.self.query" in name)
    assert example_gradients(model, given).shape == (6, 32 * 32 + 32)
    assert len(KCenter()(example_gradients(model, given), 3)) == 3


def test_gradients_that_cannot_be_had() -> None:
    model = bert()
    with pytest.raises(ConfigurationError, match="There are: bert, classifier"):
        example_gradients(model, examples(), parameters="clasifier")
    with pytest.raises(ConfigurationError, match="Give labels"):
        example_gradients(model, [tokens()])
    with pytest.raises(DataError, match="Expected at least one example"):
        example_gradients(model, [])
    model.classifier.weight.data[0, 0] = torch.nan
    with pytest.raises(DataError, match="example 0"):
        example_gradients(model, examples())


@pytest.mark.gate
def test_the_example_prints_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    rows = [{"premise": WORDS[i % 3], "hypothesis": WORDS[i % 2], "label": LABELS[i % 3]} for i in range(120)]
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    options = {"data": tmp_path, "model": make_encoder(tmp_path / "encoder", WORDS), "seeds": 1, "steps": 2}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["example", *(f"--{name}={value}" for name, value in options.items())])
    monkeypatch.setattr(test_scripts, "SCRIPTS", test_scripts.SCRIPTS.parent / "examples")
    test_scripts.load("choose_training_pairs").main()
    lines = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [line[0] for line in lines[2:]] == ["| random", "| k-center", "| NN-OMP", "| A-IHT II", "| all pairs"]


class Line(nn.Module):
    """Scores of two classes that depend on a number."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor([1.0, -1.0]))

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        return {"logits": x.unsqueeze(1) * self.slope}


def test_weights_of_a_coreset_reach_the_loss(tmp_path: Path) -> None:
    """One update of the Trainer, also with accumulation, is an update by the weighted mean; evaluation has no weights."""
    datasets, transformers = pytest.importorskip("datasets"), pytest.importorskip("transformers")
    x, y = torch.linspace(-1, 2, 8), torch.arange(8) % 2
    data = datasets.Dataset.from_dict({"x": x.tolist(), "labels": y.tolist()})
    indices, weights = torch.tensor([0, 2, 3, 7]), torch.tensor([4.0, 1.0, 2.0, 1.0])
    chosen = weighted_dataset(data, Coreset(indices, weights, 0.0, size=8))
    assert chosen["weight"][:] == [2.0, 0.5, 1.0, 0.5] and chosen["labels"][:] == y[indices].tolist()
    slope = torch.tensor([1.0, -1.0], requires_grad=True)
    losses = nn.functional.cross_entropy(x[indices].unsqueeze(1) * slope, y[indices], reduction="none")
    expected = slope.detach() - 0.1 * torch.autograd.grad((losses * weights / 2).mean(), slope)[0]
    for accumulated in (1, 2):
        model = Line()
        settings = {"per_device_train_batch_size": 4 // accumulated, "gradient_accumulation_steps": accumulated, "max_steps": 1}
        quiet = {
            "report_to": [],
            "save_strategy": "no",
            "use_cpu": True,
            "optim": "sgd",
            "max_grad_norm": 0.0,
            "disable_tqdm": True,
        }
        arguments = transformers.TrainingArguments(
            str(tmp_path), learning_rate=0.1, lr_scheduler_type="constant", remove_unused_columns=False, **settings, **quiet
        )
        loss = weighted_loss_func(model)
        trainer = transformers.Trainer(model, arguments, train_dataset=chosen, eval_dataset=data, compute_loss_func=loss)
        trainer.train()
        torch.testing.assert_close(model.slope.detach(), expected)
        plain = nn.functional.cross_entropy(x.unsqueeze(1) * model.slope.detach(), y)
        assert trainer.evaluate()["eval_loss"] == pytest.approx(float(plain), rel=1e-5)
    with pytest.raises(ConfigurationError, match="Select again"):
        weighted_dataset(chosen, Coreset(indices, weights, 0.0, size=8))
    with pytest.raises(DataError, match="positive, finite sum"):
        weighted_dataset(data, Coreset(indices, 0 * weights, 0.0, size=8))
