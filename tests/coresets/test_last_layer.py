"""Gradients of a last layer against automatic ones, whitening, checkpoints, and what a network is left as."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from lit_sparse.coresets import Examples, LastLayerGradients
from lit_sparse.data import DigitsDataModule
from lit_sparse.errors import CheckpointError, ConfigurationError, DataError
from lit_sparse.mappings import HoyerProjection
from lit_sparse.models import SupervisedOnlineAutoencoder
from lit_sparse.nn import NoiseBases


class Classifier(pl.LightningModule):
    """Three classes, with parts that behave otherwise in training."""

    def __init__(self, activation: nn.Module | None = None) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), activation or nn.Tanh(), nn.Dropout(0.5))
        self.head = nn.Linear(8, 3)

    def forward(self, pixels: Tensor) -> Tensor:
        scores: Tensor = self.head(self.body(pixels))
        return scores

    def predict_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        return self(batch["pixels"]).softmax(-1)


class Scored(Classifier):
    """One with scores of its own, whose prediction is of no use here."""

    def class_scores(self, batch: dict[str, Tensor]) -> Tensor:
        return self(batch["pixels"])

    def predict_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        raise AssertionError("not asked for")


def trained(kind: type[Classifier] = Classifier) -> Classifier:
    torch.manual_seed(0)
    model = kind()
    model.body[1].running_mean.normal_()
    model.body[1].running_var.uniform_(0.5, 2.0)
    return model


def examples(size: int = 30) -> Examples:
    generator = torch.Generator().manual_seed(1)
    pixels, label = torch.randn(size, 5, generator=generator), torch.randint(3, (size,), generator=generator)
    return Examples.of(pixels=pixels, label=label, index=torch.arange(size))


def hidden_of(model: Classifier, data: Examples) -> Tensor:
    """Return the inputs (N, 9) of the last layer, with a one after them."""
    model.eval()
    with torch.no_grad():
        hidden = model.body(data[torch.arange(len(data))]["pixels"])
    return torch.cat([hidden, torch.ones(len(data), 1)], 1)


def gradients(model: Classifier, data: Examples, temperature: float = 1.0) -> Tensor:
    """Return the gradient (N, C, H + 1) of each example's own cross-entropy of scores divided by a temperature, times it."""
    model.eval()
    rows = []
    for n in range(len(data)):
        batch = data[torch.tensor([n])]
        loss = temperature * nnf.cross_entropy(model(batch["pixels"]) / temperature, batch["label"])
        weight, bias = torch.autograd.grad(loss, [model.head.weight, model.head.bias])
        rows.append(torch.cat([weight, bias.unsqueeze(1)], 1))
    return torch.stack(rows)


@pytest.mark.parametrize("temperature", [1.0, 4.0])
@pytest.mark.parametrize("kind", [Classifier, Scored])
def test_vectors_are_each_examples_own_gradient(kind: type[Classifier], temperature: float) -> None:
    model = trained(kind)
    found = LastLayerGradients(model=model, damping=None, temperature=temperature)(examples())
    assert (found.shape, found.dtype, found.requires_grad) == ((30, 27), torch.float32, False)
    torch.testing.assert_close(found, gradients(model, examples(), temperature).flatten(1), rtol=1e-4, atol=1e-6)


def test_rows_of_the_true_class() -> None:
    model, data = trained(), examples()
    label = data[torch.arange(30)]["label"]
    rows = -gradients(model, data)[torch.arange(30), label]
    found = LastLayerGradients(model=model, damping=None, true_class=True)(data)
    torch.testing.assert_close(found, rows, rtol=1e-4, atol=1e-6)
    with_all = LastLayerGradients(model=model)(data).view(30, 3, 9)[torch.arange(30), label]
    torch.testing.assert_close(LastLayerGradients(model=model, true_class=True)(data), -with_all, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("damping", [1e-6, 0.01, 3.0])
def test_whitening(damping: float) -> None:
    """Whitened inputs h have sum h h^T / N = M (M + damping mean eigenvalue)^-1, near the identity, with the inputs' M."""
    model, data = trained(), examples(200)
    plain = LastLayerGradients(model=model, damping=None)(data).view(200, 3, 9)
    found = LastLayerGradients(model=model, damping=damping)(data).view(200, 3, 9)
    hidden = hidden_of(model, data).double()
    moment = hidden.T @ hidden / 200
    damped = moment + damping * moment.trace() / 9 * torch.eye(9, dtype=torch.float64)
    errors = plain[..., -1]  # p - e_y: the one after h
    torch.testing.assert_close(plain, errors.unsqueeze(2) * hidden.float().unsqueeze(1), rtol=1e-4, atol=1e-5)
    place = errors.abs().argmax(1)
    white = (found[torch.arange(200), place] / errors[torch.arange(200), place].unsqueeze(1)).double()
    expected = torch.linalg.solve(damped, moment)
    torch.testing.assert_close(white.T @ white / 200, expected, rtol=0, atol=1e-3)
    if damping < 1e-3:
        torch.testing.assert_close(white.T @ white / 200, torch.eye(9, dtype=torch.float64), rtol=0, atol=2e-3)
    flat, metric = plain.double(), torch.linalg.inv(damped)
    gram = torch.einsum("nch,hk,mck->nm", flat, metric, flat)
    torch.testing.assert_close(found.flatten(1).double() @ found.flatten(1).double().T, gram, rtol=1e-3, atol=1e-3)


def test_inputs_of_low_rank_stay_finite() -> None:
    model = trained()
    nn.init.zeros_(model.body[0].weight)
    found = LastLayerGradients(model=model)(examples())
    assert bool(found.isfinite().all())


def test_batches_do_not_matter() -> None:
    model = trained()
    whole = LastLayerGradients(model=model)(examples())
    parts = LastLayerGradients(model=model)
    parts.batch_size = 7
    torch.testing.assert_close(parts(examples()), whole, rtol=1e-4, atol=1e-5)
    streamed = parts.streamed(examples())
    torch.testing.assert_close(streamed.rows(torch.tensor([29, 2, 2])), whole[[29, 2, 2]], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(parts.of_part(examples().part(5, 9)), whole[5:9], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_the_network_is_left_as_it_was(training: bool) -> None:
    """The model stays in training mode, except for frozen parts, and keeps no statistics, gradients or hooks."""
    model = trained()
    model.train(training)
    model.body[1].eval()
    modes = [module.training for module in model.modules()]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    projection = LastLayerGradients(model=model)
    projection(examples())
    with pytest.raises(DataError):
        projection(Examples.of(pixels=torch.randn(4, 5), label=torch.tensor([0, 1, 7, 2])))
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_modes_are_restored_after_an_error_in_the_network() -> None:
    model = trained()
    model.train()
    with pytest.raises(RuntimeError):
        LastLayerGradients(model=model)(Examples.of(pixels=torch.randn(4, 6), label=torch.zeros(4, dtype=torch.int64)))
    assert all(module.training for module in model.modules())
    assert not any(module._forward_hooks for module in model.modules())


def autoencoder(folder: Path) -> tuple[SupervisedOnlineAutoencoder, Path]:
    """Train for a batch, and save."""
    torch.manual_seed(0)
    sgd = functools.partial(torch.optim.SGD, lr=0.1)
    model = SupervisedOnlineAutoencoder(
        HoyerProjection(0.7), in_features=64, width=20, initial_bases=NoiseBases(0.1), optimizer=sgd
    )
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=1, limit_train_batches=1, limit_val_batches=1, default_root_dir=folder, **quiet
    )
    trainer.fit(model, digits())
    trainer.save_checkpoint(folder / "model.ckpt")
    return model, folder / "model.ckpt"


def digits() -> DigitsDataModule:
    return DigitsDataModule(labelled=1.0, binarize=False)


def test_a_checkpoint_is_the_model(tmp_path: Path) -> None:
    model, path = autoencoder(tmp_path)
    data = digits()
    data.setup("fit")
    some = Examples(lambda indices: data.fetch("train", 0, indices), 60)
    from_model = LastLayerGradients(model=model, temperature=2.0)(some)
    from_file = LastLayerGradients(str(path), temperature=2.0)(some)
    assert from_model.shape == (60, 10 * 21)
    assert torch.equal(from_model, from_file)
    named = LastLayerGradients(str(path), temperature=2.0, layer="output")(some)
    assert torch.equal(named, from_file)


def test_checkpoints_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"none\.ckpt' cannot be read: .* does not exist"):
        LastLayerGradients(str(tmp_path / "none.ckpt"))(examples())
    (tmp_path / "text.ckpt").write_text("nothing")
    torch.save({"state_dict": {}}, tmp_path / "bare.ckpt")
    _, path = autoencoder(tmp_path)
    (tmp_path / "cut.ckpt").write_bytes(path.read_bytes()[:5000])
    for name in ("text", "bare", "cut"):
        with pytest.raises(CheckpointError, match=rf"{name}\.ckpt' cannot be read: "):
            LastLayerGradients(str(tmp_path / f"{name}.ckpt"))(examples())
    others = Examples.of(other=torch.zeros(4), label=torch.zeros(4, dtype=torch.int64))
    with pytest.raises(CheckpointError, match=r"to take batches of other, label but .* raised KeyError: 'pixels'"):
        LastLayerGradients(str(path))(others)


def test_layers_by_name() -> None:
    model = trained()
    by_name = LastLayerGradients(model=model, layer="head")(examples())
    assert torch.equal(by_name, LastLayerGradients(model=model)(examples()))
    for layer in ("haed", "body.1", ""):
        with pytest.raises(ConfigurationError, match=rf"Linear of Classifier but got '{layer}'\. Available: body\.0, head\."):
            LastLayerGradients(model=model, layer=layer)(examples())

    class Odd(Classifier):
        def forward(self, pixels: Tensor) -> Tensor:
            return {"twice": lambda: self.head(self.body(pixels)) + self.head(self.body(pixels)),
                    "never": lambda: self.body(pixels),
                    "words": lambda: self.head(self.body(pixels).unsqueeze(1))[:, 0]}[self.how]()  # fmt: skip

    odd = Odd()
    for how, words in (("twice", "called 2 times"), ("never", "called 0 times. Name another"), ("words", r"\(30, 1, 8\)")):
        odd.how = how
        with pytest.raises(ConfigurationError, match=words):
            LastLayerGradients(model=odd)(examples())


def test_a_network_without_a_linear_layer() -> None:
    class Bare(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

    with pytest.raises(ConfigurationError, match="Available: none"):
        LastLayerGradients(model=Bare())(examples())


@pytest.mark.parametrize(("label", "found"), [(-100, "-100"), (3, "3"), (-1, "-1")])
def test_labels_that_are_none(label: int, found: str) -> None:
    labels = torch.tensor([0, 1, label, 2])
    with pytest.raises(DataError, match=rf"a label in 0 \.\. 2 for each example but got {found}\. .* `labelled: 1\.0`"):
        LastLayerGradients(model=trained())(Examples.of(pixels=torch.randn(4, 5), label=labels))


def test_entries_that_are_missing_and_other_names() -> None:
    pixels, label = examples()[torch.arange(30)]["pixels"], examples()[torch.arange(30)]["label"]
    with pytest.raises(ConfigurationError, match="entry 'label' but got the entries pixels, target"):
        LastLayerGradients(model=trained())(Examples.of(pixels=pixels, target=label))
    found = LastLayerGradients(model=trained(), label="target")(Examples.of(pixels=pixels, target=label))
    assert torch.equal(found, LastLayerGradients(model=trained())(examples()))
    with pytest.raises(ConfigurationError, match="entry 'label' but got a tuple"):
        LastLayerGradients(model=trained())(Examples(lambda indices: (pixels[indices], label[indices]), 30))


def test_no_examples_and_no_fit() -> None:
    with pytest.raises(ConfigurationError, match="`fit` to be called"):
        LastLayerGradients(model=trained()).of_part(examples())
    with pytest.raises(DataError, match="Expected at least one example but got none"):
        LastLayerGradients(model=trained())(examples().part(0, 0))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": None}, "either `checkpoint`"),
        ({"checkpoint": "a.ckpt"}, "either `checkpoint`"),
        ({"temperature": 0.0}, "`temperature`"),
        ({"damping": 0.0}, "`damping`"),
        ({"damping": -1.0}, "`damping`"),
    ],
)
def test_arguments_are_checked(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        LastLayerGradients(**{"model": trained(), **options})


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["pipe", "folder", "long"])
def test_a_checkpoint_is_a_plain_file(kind: str, tmp_path: Path) -> None:
    path = tmp_path / ("x" * 5000 if kind == "long" else "model.ckpt")
    if kind != "long":
        {"pipe": os.mkfifo, "folder": os.mkdir}[kind](path)
    words = "File name too long" if kind == "long" else f"plain file but it is a {kind}"
    with pytest.raises(CheckpointError, match=words):
        LastLayerGradients(str(path)).fit(examples())


@pytest.mark.parametrize("damping", [None, 0.01])
def test_a_network_that_has_diverged_is_refused(damping: float | None) -> None:
    model = trained()
    model.head.weight.data[0, 0] = torch.nan
    gradients = LastLayerGradients(model=model, damping=damping)
    with pytest.raises(DataError, match="finite outputs of the network"):
        gradients.fit(examples()), gradients.project(examples()[torch.arange(3)])
