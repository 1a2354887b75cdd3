"""Connections are removed by their importance, for good, and on every process alike."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import nn

from lit_sparse.callbacks import OptimalBrainDamage
from lit_sparse.data import DigitsDataModule
from lit_sparse.errors import ConfigurationError
from lit_sparse.mappings import HoyerProjection, Sparsemax
from lit_sparse.models import RobustClassifier, SemiSupervisedVAE, SupervisedOnlineAutoencoder
from lit_sparse.nn import NoiseBases
from lit_sparse.risks import Mean


def perceptron(width: int = 12) -> SupervisedOnlineAutoencoder:
    torch.manual_seed(0)
    return SupervisedOnlineAutoencoder(
        nn.Tanh(), in_features=64, width=width, initial_bases=NoiseBases(0.1), supervision_epochs=0.0
    )


def digits(**options: Any) -> DigitsDataModule:
    return DigitsDataModule(labelled=1.0, binarize=False, **options)


def trainer(*callbacks: pl.Callback, **options: Any) -> pl.Trainer:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    return pl.Trainer(accelerator="cpu", callbacks=list(callbacks), **{**quiet, **options})


class Shares(pl.Callback):
    """How many connections there are after each step and at each validation."""

    def __init__(self) -> None:
        self.trained: list[float] = []
        self.validated: list[float] = []

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, *_: Any) -> None:
        self.trained.append(float(pl_module.encoder.weight.ne(0).float().mean()))

    def on_validation_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self.validated.append(float(pl_module.encoder.weight.ne(0).float().mean()))


def test_half_goes_again_and_again_until_the_target() -> None:
    shares = Shares()
    damage = OptimalBrainDamage("encoder", every=2, target=0.2, sample_every=1)
    trainer(damage, shares, max_epochs=8, limit_train_batches=3).fit(perceptron(), digits())
    assert shares.validated == pytest.approx([1.0, 0.5, 0.5, 0.25, 0.25, 0.2, 0.2, 0.2], abs=2e-3)
    assert shares.trained[6:11] == pytest.approx([0.5] * 5, abs=2e-3), "what is removed does not come back"
    assert damage.share == pytest.approx(0.2, abs=2e-3)


def test_what_is_removed_at_last_is_trained_once_more() -> None:
    shares = Shares()
    damage = OptimalBrainDamage("encoder", every=1, target=0.1)
    trainer(damage, shares, max_epochs=2, limit_train_batches=3).fit(perceptron(), digits())
    assert shares.validated == pytest.approx([0.5, 0.5], abs=2e-3)


@pytest.mark.gate
def test_importance_is_the_diagonal_of_the_hessian() -> None:
    """For a linear network the approximation is the Hessian itself, here by autograd."""
    torch.manual_seed(0)
    model = SupervisedOnlineAutoencoder(
        None, in_features=5, width=3, classes=4, initial_bases=NoiseBases(0.5), supervision_epochs=0.0, output_std=1.0
    ).double()
    pixels = torch.rand(6, 5, dtype=torch.float64)
    batch = {"pixels": pixels, "label": torch.zeros(6, dtype=torch.int64), "index": torch.arange(6)}

    def loss(weight: torch.Tensor) -> torch.Tensor:
        scores = model.output(pixels @ weight.T)
        return -(scores.detach().softmax(-1) * scores.log_softmax(-1)).sum()  # the labels expected by the model

    hessian = torch.autograd.functional.hessian(loss, model.encoder.weight.detach())
    exact = hessian.flatten(2).flatten(0, 1).diagonal().view(3, 5)
    damage, rounds = OptimalBrainDamage("encoder"), 4000
    for seed in range(rounds):
        damage._measure(model, batch, seed)
    assert damage._squares is not None
    torch.testing.assert_close(damage._squares.double() / rounds, exact, rtol=0.1, atol=0.02 * float(exact.max()))


class Sequences(nn.Module):
    """Classifier of sequences (B, L, 4) by the mean of a layer's outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.output = nn.Linear(4, 3), nn.Linear(3, 5)

    def class_scores(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        scores: torch.Tensor = self.output(torch.tanh(self.layer(batch["x"])).mean(1))
        return scores


def test_a_derivative_is_the_sum_over_the_positions_of_an_example() -> None:
    torch.manual_seed(0)
    model, batch, damage = Sequences(), {"x": torch.randn(6, 7, 4)}, OptimalBrainDamage("layer")
    damage._measure(model, batch, 5)
    log_probs = model.class_scores(batch).log_softmax(-1)
    drawn = torch.multinomial(log_probs.detach().exp(), 1, generator=torch.Generator().manual_seed(5))
    slopes = [torch.autograd.grad(row, model.layer.weight, retain_graph=True)[0] for row in log_probs.gather(1, drawn)]
    assert damage._squares is not None
    torch.testing.assert_close(damage._squares, torch.stack(slopes).square().sum(0))


def test_the_least_important_go() -> None:
    model = perceptron()
    damage = OptimalBrainDamage("encoder", keep=0.25, target=0.1)
    squares = torch.rand_like(model.encoder.weight)
    damage._squares = squares.clone()
    importance = squares * model.encoder.weight.detach().square()
    damage._remove(trainer(), model.encoder.weight)
    kept = damage._mask
    assert kept is not None
    assert int(kept.sum()) == round(0.25 * importance.numel())
    assert importance[kept].min() >= importance[~kept].max()
    damage._squares = torch.rand_like(squares)
    damage._remove(trainer(), model.encoder.weight)
    assert damage._mask is not None
    assert not bool((damage._mask & ~kept).any()), "what went before does not return"


def test_masks_and_measurements_survive_a_checkpoint(tmp_path: Path) -> None:
    weights = []
    for parts in ((5,), (3, 5)):
        checkpoint, model = None, perceptron()
        for epochs in parts:
            damage = OptimalBrainDamage("encoder", every=2, sample_every=1)
            run = trainer(damage, max_epochs=epochs, limit_train_batches=4)
            run.fit(model, digits(), ckpt_path=checkpoint, **({"weights_only": True} if checkpoint else {}))
            checkpoint = tmp_path / "a.ckpt"
            run.save_checkpoint(checkpoint)
            model = perceptron()
        weights.append(torch.load(checkpoint, weights_only=True)["state_dict"]["encoder.weight"])
    torch.testing.assert_close(weights[1], weights[0])
    assert float(weights[0].ne(0).float().mean()) == pytest.approx(0.25, abs=2e-3)


def test_what_follows_the_layer_may_work_in_place() -> None:
    found = []
    for transfer in (nn.ReLU(), nn.ReLU(inplace=True)):
        model, damage = perceptron(), OptimalBrainDamage("encoder")
        model.mapping = transfer
        data = digits()
        data.setup("fit")
        damage._measure(model, data.fetch("train", 0, torch.arange(30)), 0)
        found.append(damage._squares)
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)


def test_layers_that_are_compiled_and_several_of_them(tmp_path: Path) -> None:
    model = perceptron()
    model.encoder = torch.compile(model.encoder, backend="eager")  # type: ignore[assignment]
    run = trainer(OptimalBrainDamage("encoder", every=1), OptimalBrainDamage("output", every=1, keep=0.7), max_epochs=2)
    run.fit(model, digits())
    assert int((model.bases == 0).sum()) == model.bases.numel() // 2
    assert int((model.output.weight == 0).sum()) == 36
    run.save_checkpoint(tmp_path / "a.ckpt")
    assert len([key for key in torch.load(tmp_path / "a.ckpt", weights_only=True)["callbacks"] if "Brain" in key]) == 2


def test_a_layer_that_is_not_called() -> None:
    sgd = functools.partial(torch.optim.SGD, lr=0.05)
    model = SupervisedOnlineAutoencoder(HoyerProjection(0.7), in_features=64, width=30, sparse_gradient=True, optimizer=sgd)
    with pytest.raises(ConfigurationError, match=r"cannot measure 'encoder', which .*\.class_scores does not"):
        trainer(OptimalBrainDamage("encoder", every=1), max_epochs=2).fit(model, digits())


def test_a_target_between_two_numbers_of_connections_is_reached() -> None:
    damage, weight = OptimalBrainDamage("encoder", keep=0.5, target=0.3), torch.rand(33, 64)
    for left in (1056, 634):
        damage._squares = torch.rand_like(weight)
        assert not damage._is_done()
        damage._remove(trainer(), weight)
        assert damage._mask is not None
        assert int(damage._mask.sum()) == left
    assert damage._is_done()


class Blind(Mean):
    """The mean that lets NaN pass, as it does on a GPU."""

    def _check_losses(self, losses: torch.Tensor) -> None:
        pass


def test_nan_is_an_error_of_training_not_of_pruning() -> None:
    """As many connections go as ever, and those that are gone are zeros, no product of zero and NaN."""
    model, damage = perceptron(), OptimalBrainDamage("encoder", every=1)
    model.risk = Blind()
    model.encoder.weight.data[0, 0] = torch.nan
    trainer(damage, max_epochs=2, limit_train_batches=2).fit(model, digits())
    assert damage.share == 0.5
    assert int((model.encoder.weight == 0).sum()) == model.encoder.weight.numel() // 2


def test_measuring_does_not_count_a_batch_twice() -> None:
    counts = []
    for callbacks in ([], [OptimalBrainDamage("network.0", every=2, sample_every=1)]):
        network = nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))
        model = RobustClassifier(network=network, in_features=64)
        trainer(*callbacks, max_epochs=3, limit_train_batches=2, limit_val_batches=0).fit(model, digits())
        counts.append(int(network[1].num_batches_tracked))
    assert counts == [6, 6]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"module": "encodr"}, r"no weight at 'encodr'. Did you mean 'encoder'\?"),
        ({"module": "encoder.weight"}, "path of a torch.nn.Linear but 'encoder.weight' is a parameter"),
    ],
)
def test_layers_that_are_not_there(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        trainer(OptimalBrainDamage(**arguments), max_epochs=1).fit(perceptron(), digits())


def test_models_without_classes() -> None:
    from lit_sparse.estimators import Marginalize

    model = SemiSupervisedVAE(Sparsemax(), Marginalize(), in_features=64, classifier_hidden=[8])
    with pytest.raises(
        ConfigurationError, match=r"needs a method `class_scores\(batch\)`, which SemiSupervisedVAE does not have"
    ):
        trainer(OptimalBrainDamage("classifier.0"), max_epochs=1).fit(model, DigitsDataModule())


@pytest.mark.parametrize("arguments", [{"every": 0}, {"keep": 1.0}, {"keep": 0.0}, {"target": 0.0}, {"sample_every": 0}])
def test_arguments_are_checked(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"`{next(iter(arguments))}`"):
        OptimalBrainDamage("encoder", **arguments)
