"""The supervised online auto-encoder: its objective, its gradient, its beginnings, and what it does not do."""

from __future__ import annotations

import functools
import logging
import math
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from lit_sparse.data import DigitsDataModule, SyntheticRegressionDataModule
from lit_sparse.errors import ConfigurationError, DataError
from lit_sparse.mappings import Entmax, HardThreshold, HoyerProjection, Sparsemax
from lit_sparse.metrics import hoyer_sparseness
from lit_sparse.models import SupervisedOnlineAutoencoder
from lit_sparse.nn import InitialBases, NoiseBases, SampleBases, SparseCodingBases

TRANSFERS = [
    HoyerProjection(0.7),
    HoyerProjection(0.5, nonneg=True),
    HardThreshold(8),
    nn.Tanh(),
    None,
    Sparsemax(),
    Entmax(1.5),
]


def digits(**options: Any) -> DigitsDataModule:
    return DigitsDataModule(labelled=1.0, binarize=False, **options)


def trainer(**options: Any) -> pl.Trainer:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    return pl.Trainer(accelerator="cpu", **{**quiet, **options})


def started(mapping: nn.Module | None, examples: Tensor | None = None, **options: Any) -> SupervisedOnlineAutoencoder:
    torch.manual_seed(0)
    examples = torch.rand(60, 16) if examples is None else examples
    options = {"width": 24, "classes": 4, "output_std": 0.5, **options}
    model = SupervisedOnlineAutoencoder(mapping, in_features=examples.shape[1], **options)
    model.start_from(examples)
    return model


def at_epoch(model: SupervisedOnlineAutoencoder, epoch: int) -> SupervisedOnlineAutoencoder:
    model._epoch = epoch
    return model


def batch_of(model: SupervisedOnlineAutoencoder, size: int = 5) -> dict[str, Tensor]:
    pixels = torch.rand(size, model.in_features, dtype=model.bases.dtype)
    return {"pixels": pixels, "label": torch.randint(model.classes, (size,)), "index": torch.arange(size)}


@pytest.mark.parametrize("epoch", [0, 3, 400])
@pytest.mark.parametrize("mapping", TRANSFERS, ids=repr)
def test_the_objective_is_what_the_publication_says(mapping: nn.Module | None, epoch: int) -> None:
    """Written down once more, one example at a time, with W as the publication has it, a basis a column."""
    model = at_epoch(started(mapping).double(), epoch)
    batch = batch_of(model)
    output = model.run_step(batch, 0, "val")
    w, w_out, theta = model.bases.T, model.output.weight.T, model.output.bias
    alpha = 1 - math.exp(-epoch / 10)
    losses, active = [], []
    for x, t in zip(batch["pixels"], batch["label"], strict=True):
        u = w.T @ x
        h = u if mapping is None else mapping(u.unsqueeze(0))[0]
        correlation = torch.corrcoef(torch.stack([w @ h, x]))[0, 1]
        y = (w_out.T @ h + theta).softmax(0)
        losses.append((1 - alpha) * (1 - correlation) + alpha * -y[t].log())
        active.append(int((h != 0).sum()))
    torch.testing.assert_close(output["loss"], torch.stack(losses).mean())
    torch.testing.assert_close(output["per_example"]["loss"], torch.stack(losses).detach())
    assert output["support_size"].tolist() == active


@pytest.mark.cases(quick=6)
@pytest.mark.parametrize("epoch", [0, 3, 400])
@pytest.mark.parametrize("mapping", [*TRANSFERS, HoyerProjection(0.1), HoyerProjection(0.95), HardThreshold(1)], ids=repr)
def test_the_gradient_of_the_whole_objective(mapping: nn.Module | None, epoch: int) -> None:
    """By all parameters, in float64, against central differences, to 1e-6."""
    model = at_epoch(started(mapping).double(), epoch)
    batch = batch_of(model)
    loss = model.run_step(batch, 0, "train")["loss"]
    parameters = list(model.parameters())
    slopes = torch.autograd.grad(loss, parameters, allow_unused=True)
    size = 1e-6
    for parameter, slope in zip(parameters, slopes, strict=True):
        slope = torch.zeros_like(parameter) if slope is None else slope
        for place in range(0, parameter.numel(), 7):
            entry, values = parameter.data.view(-1), []
            old = float(entry[place])
            for step in (size, -size):
                entry[place] = old + step
                values.append(float(model.run_step(batch, 0, "train")["loss"].detach()))
            entry[place] = old
            assert (values[0] - values[1]) / (2 * size) == pytest.approx(float(slope.view(-1)[place]), abs=1e-6)


@pytest.mark.parametrize("epoch", [0, 3])
def test_examples_without_contrast_and_broken_ones_stay_by_themselves(epoch: int) -> None:
    """A blank image and one of a single grey have no correlation; a NaN is in its own row alone."""
    model = at_epoch(started(HoyerProjection(0.7)), epoch)
    batch = batch_of(model, 6)
    whole = model.run_step(batch, 0, "val")["per_example"]
    batch["pixels"][1] = 0.0
    batch["pixels"][2] = 0.5
    batch["pixels"][4] = torch.nan
    some = model.run_step(batch, 0, "val")
    assert some["per_example"]["correlation"][1:3].tolist() == [0.0, 0.0]
    for name in ("loss", "nll", "correlation"):
        assert some["per_example"][name].isfinite().tolist() == [True, True, True, True, False, True]
        for row in (0, 3, 5):
            assert some["per_example"][name][row] == pytest.approx(float(whole[name][row]), abs=1e-6)
    kept = {name: value[:4] for name, value in batch.items()}
    model.run_step(kept, 0, "train")["loss"].backward()
    assert all(parameter.grad is None or bool(parameter.grad.isfinite().all()) for parameter in model.parameters())


def test_labels_that_are_not_told_teach_no_class() -> None:
    model = at_epoch(started(HoyerProjection(0.7)), 3)
    batch = batch_of(model)
    batch["label"][1:3] = -100
    output = model.run_step(batch, 0, "train")
    assert len(output["per_example"]["accuracy"]) == len(output["per_example"]["nll"]) == 3
    labelled = {name: value[[0, 3, 4]] for name, value in batch.items()}
    torch.testing.assert_close(output["per_example"]["nll"], model.run_step(labelled, 0, "train")["per_example"]["nll"])


def test_tiny_pixels_have_a_correlation_and_a_gradient() -> None:
    """The product of their squares underflows in float32, but correlation does not depend on the scale."""
    slopes = []
    for scale in (1.0, 1e-9):
        torch.manual_seed(0)
        model = at_epoch(started(HardThreshold(5)), 0)
        batch = batch_of(model)
        batch["pixels"] *= scale
        output = model.run_step(batch, 0, "train")
        output["loss"].backward()
        slopes.append((output["per_example"]["correlation"].detach(), model.bases.grad))
    torch.testing.assert_close(slopes[1], slopes[0], rtol=1e-4, atol=1e-6)


def test_evaluation_weighs_the_loss_as_training_did(tmp_path: Path) -> None:
    """Within the process and from a checkpoint, where Lightning counts epochs from zero again."""
    torch.manual_seed(0)
    model, run = SupervisedOnlineAutoencoder(HoyerProjection(0.7), in_features=64, width=30), trainer(max_epochs=3)
    run.fit(model, digits())
    expected = float(run.callback_metrics["val/loss"])
    assert model.alpha == pytest.approx(1 - math.exp(-0.2))
    run.save_checkpoint(tmp_path / "a.ckpt")
    assert run.validate(model, digits(), verbose=False)[0]["val/loss"] == pytest.approx(expected, rel=1e-6)
    other = SupervisedOnlineAutoencoder.load_from_checkpoint(tmp_path / "a.ckpt", weights_only=True)
    assert trainer().validate(other, digits(), verbose=False)[0]["val/loss"] == pytest.approx(expected, rel=1e-6)


def test_loaded_weights_are_what_training_starts_from() -> None:
    model = SupervisedOnlineAutoencoder(HoyerProjection(0.7), in_features=64, width=30)
    state = {name: torch.randn_like(value) for name, value in model.state_dict().items() if value.is_floating_point()}
    model.load_state_dict(state, strict=False)
    trainer(max_epochs=1, limit_train_batches=0).fit(model, digits())
    assert torch.equal(model.bases, state["encoder.weight"])


def test_activity_before_training(shared: Path) -> None:
    """The shares of active units among 1,000 that the publication's figure shows, with normalized samples as bases."""
    from lit_sparse.data import MNISTDataModule

    data = MNISTDataModule(folder=str(shared / "data" / "mnist"), labelled=1.0, binarize=False)
    data.setup("fit")
    for sparseness, published, within in ((0.2, 92, 4), (0.5, 47, 4), (0.8, 9, 1), (0.95, 1.2, 0.4)):
        torch.manual_seed(0)
        model = SupervisedOnlineAutoencoder(HoyerProjection(sparseness))
        order = torch.randperm(data.size("train"))
        model.start_from(data.fetch("train", 0, order[:2000])["pixels"])
        active = model.encode(data.fetch("train", 0, order[2000:3000])["pixels"]).ne(0).float().mean()
        assert abs(100 * float(active) - published) < within, sparseness


@pytest.mark.parametrize("bases", [None, NoiseBases(0.1), SparseCodingBases(size=300, rounds=2)], ids=repr)
def test_a_fit_starts_from_its_data_and_only_once(bases: Any) -> None:
    torch.manual_seed(0)
    adam = functools.partial(torch.optim.SGD, lr=0.0)
    model = SupervisedOnlineAutoencoder(HoyerProjection(0.7), in_features=64, width=20, initial_bases=bases, optimizer=adam)
    data = digits()
    trainer(max_epochs=1, limit_train_batches=1).fit(model, data)
    first = model.bases.detach().clone()
    if bases is None:
        images = data.fetch("train", 0, torch.arange(data.size("train")))["pixels"]
        likeness = first @ (images / images.norm(dim=1, keepdim=True)).T
        assert float(likeness.amax(1).min()) == pytest.approx(1.0, abs=1e-5), "each is a training example"
        assert len(set(likeness.argmax(1).tolist())) == 20, "no two are the same"
    trainer(max_epochs=1, limit_train_batches=1).fit(model, data)
    assert torch.equal(model.bases, first), "what was trained is not drawn again"


def test_seeds_draw_other_bases(tmp_path: Path) -> None:
    drawn = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        model = SupervisedOnlineAutoencoder(HoyerProjection(0.7), in_features=64, width=20)
        trainer(max_epochs=1, limit_train_batches=0).fit(model, digits())
        drawn.append(model.bases.detach().clone())
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


#: The kinds that may be in the gate. Sparsemax and entmax are trained by other tests, too.
IN_GATE = (HoyerProjection, HardThreshold, nn.Tanh, type(None))
LEARNERS = [pytest.param(each, marks=[] if isinstance(each, IN_GATE) else pytest.mark.slow) for each in TRANSFERS]


@pytest.mark.cases(gate=4)
@pytest.mark.parametrize("mapping", LEARNERS, ids=repr)
def test_every_transfer_function_learns_and_is_restored(mapping: nn.Module | None, tmp_path: Path) -> None:
    pl.seed_everything(0)
    sgd = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    model = SupervisedOnlineAutoencoder(mapping, in_features=64, width=60, supervision_epochs=1.0, optimizer=sgd)
    run = trainer(max_epochs=5, default_root_dir=tmp_path)
    run.fit(model, digits(batch_size=16))
    assert float(run.callback_metrics["val/accuracy"]) > 0.7
    run.save_checkpoint(tmp_path / "a.ckpt")
    again = SupervisedOnlineAutoencoder.load_from_checkpoint(tmp_path / "a.ckpt", weights_only=True)
    x = torch.rand(3, 64)
    assert repr(again.mapping) == repr(model.mapping)
    torch.testing.assert_close(again(x), model(x))
    trainer(max_epochs=1, limit_train_batches=0).fit(again, digits())
    assert torch.equal(again.bases, model.bases), "restored bases are not drawn anew"


def test_a_perceptron_reconstructs_nothing() -> None:
    model = started(nn.Tanh(), supervision_epochs=0, initial_bases=NoiseBases())
    assert model.alpha == 1.0
    output = model.run_step(batch_of(model), 0, "train")
    assert "correlation" not in output["per_example"]
    torch.testing.assert_close(output["per_example"]["loss"], output["per_example"]["nll"].detach())
    run = trainer(max_epochs=1)
    run.fit(SupervisedOnlineAutoencoder(nn.Tanh(), in_features=64, width=30, supervision_epochs=0), digits())
    assert "val/nll" in run.callback_metrics
    assert "val/correlation" not in run.callback_metrics


@pytest.mark.parametrize("sparse_gradient", [False, True])
@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "64-true"])
def test_other_precisions(precision: Any, sparse_gradient: bool) -> None:
    sgd = functools.partial(torch.optim.SGD, lr=0.05)
    mapping = HoyerProjection(0.7)
    model = SupervisedOnlineAutoencoder(mapping, in_features=64, width=30, sparse_gradient=sparse_gradient, optimizer=sgd)
    run = trainer(max_epochs=2, precision=precision)
    run.fit(model, digits())
    assert bool(run.callback_metrics["val/loss"].isfinite())


def test_it_predicts_classes_and_their_probabilities() -> None:
    model = SupervisedOnlineAutoencoder(HoyerProjection(0.7), in_features=64, width=20, initial_bases=NoiseBases(1.0))
    batches = trainer().predict(model, digits())
    assert torch.cat([batch["index"] for batch in batches]).tolist() == list(range(360))
    probs = torch.cat([batch["probs"] for batch in batches])
    torch.testing.assert_close(probs.sum(1), torch.ones(360))
    assert torch.equal(probs.argmax(1), torch.cat([batch["predicted"] for batch in batches]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, "`width`"),
        ({"classes": 1}, "`classes`"),
        ({"supervision_epochs": -1.0}, "`supervision_epochs`"),
        ({"output_std": math.nan}, "`output_std`"),
        ({"mapping": HoyerProjection(0.5, dim=0)}, "over the last dimension"),
    ],
)
def test_arguments_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        SupervisedOnlineAutoencoder(**{"mapping": HoyerProjection(0.5), **options})


def test_too_few_and_no_examples_to_start_from() -> None:
    model = SupervisedOnlineAutoencoder(HoyerProjection(0.5), in_features=64, width=2000)
    with pytest.raises(DataError, match=r"at least 2000 training examples that .* but only 1257 of the 1257 drawn"):
        trainer(max_epochs=1).fit(model, digits())
    loader = torch.utils.data.DataLoader([{"pixels": torch.rand(64), "label": 1, "index": 0}])
    with pytest.raises(ConfigurationError, match=r"call `model.start_from\(examples\)` first"):
        trainer(max_epochs=1).fit(SupervisedOnlineAutoencoder(HoyerProjection(0.5), in_features=64), loader, loader)
    with pytest.raises(ConfigurationError, match="in_features=784 features but got 64"):
        trainer(max_epochs=1).fit(SupervisedOnlineAutoencoder(HoyerProjection(0.5)), digits())


class Odd(InitialBases):
    """Returns given bases."""

    def __init__(self, found: Tensor) -> None:
        super().__init__()
        self.found = found

    def forward(self, examples: Tensor, width: int, generator: torch.Generator) -> Tensor:
        return self.found


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (torch.zeros(64, 20), r"Odd to return a floating tensor of shape \(20, 64\) but got \(64, 20\)"),
        (torch.full((20, 64), torch.nan), "finite bases from .*Odd but got NaN"),
    ],
)
def test_bases_of_ones_own_are_checked(found: Tensor, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        SupervisedOnlineAutoencoder(HoyerProjection(0.5), in_features=64, width=20, initial_bases=Odd(found))


def test_what_is_no_transfer_function_and_labels_beyond_the_classes() -> None:
    with pytest.raises(ConfigurationError, match=r"`initial_bases` to be an InitialBases or None"):
        SupervisedOnlineAutoencoder(HoyerProjection(0.5), initial_bases="SampleBases")  # type: ignore[arg-type]
    model = SupervisedOnlineAutoencoder(nn.Flatten(0), in_features=64, width=20)
    with pytest.raises(ConfigurationError, match=r"of torch.*Flatten to return .* but got \(3600,\)"):
        trainer(max_epochs=1).fit(model, digits())
    model = SupervisedOnlineAutoencoder(HoyerProjection(0.5), in_features=64, width=20, classes=8)
    with pytest.raises(ConfigurationError, match=r"labels below classes=8 but got 9"):
        trainer(max_epochs=1).fit(model, digits())


def test_data_without_images_are_refused() -> None:
    model = SupervisedOnlineAutoencoder(HoyerProjection(0.5), in_features=2, width=4)
    with pytest.raises(ConfigurationError, match=r"batches with pixels but got features, .*Use a data module of images"):
        trainer(max_epochs=1).fit(model, SyntheticRegressionDataModule("normal", size=50))


def test_bases_of_samples_leave_out_the_blank() -> None:
    examples = torch.rand(30, 9)
    examples[::3] = 0.0
    generator = torch.Generator().manual_seed(0)
    bases = SampleBases(2.0)(examples, 20, generator)
    torch.testing.assert_close(bases.norm(dim=1), torch.full((20,), 2.0))
    with pytest.raises(DataError, match=r"at least 21 .* only 20 of"):
        SampleBases()(examples, 21, generator)


def test_bases_of_a_sparse_code() -> None:
    """They are sparse and of unit norm, and code the examples better than the examples they began with."""
    torch.manual_seed(0)
    data = digits()
    data.setup("fit")
    examples = data.fetch("train", 0, torch.randperm(1257))["pixels"]
    generator = torch.Generator().manual_seed(0)
    errors = []
    for rounds in (1, 40):
        coding = SparseCodingBases(0.6, 0.5, size=1000, rounds=rounds)
        bases = coding(examples, 50, generator)
        torch.testing.assert_close(hoyer_sparseness(bases), torch.full((50,), 0.5), atol=1e-5, rtol=0)
        torch.testing.assert_close(bases.norm(dim=1), torch.ones(50))
        codes = coding._sparse(examples[:1000] @ bases.T)
        torch.testing.assert_close(hoyer_sparseness(codes, 0), torch.full((50,), 0.6), atol=1e-5, rtol=0)
        fitted = torch.linalg.lstsq(codes, examples[:1000]).solution
        errors.append(float((codes @ fitted - examples[:1000]).square().mean()))
    assert errors[1] < errors[0]


def test_images_without_labels_are_named(caplog: pytest.LogCaptureFixture) -> None:
    part = DigitsDataModule(labelled=0.5, binarize=False)
    model = SupervisedOnlineAutoencoder(HoyerProjection(0.5), in_features=64, width=70)
    with caplog.at_level(logging.INFO):
        trainer(max_epochs=2, limit_train_batches=1, limit_val_batches=0).fit(model, part)
    assert caplog.text.count("64 of the 128 images of the first batch have no label") == 1
    nothing = DigitsDataModule(labelled=0, binarize=False)
    with pytest.raises(ConfigurationError, match=r"Expected labelled images to train on but .*labelled: 1\.0"):
        trainer(max_epochs=1, limit_train_batches=1, limit_val_batches=0).fit(model, nothing)
