"""Weights have their sparseness at every validation and checkpoint, and nothing else of a run changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lit_sparse.callbacks import SparseConnectivity
from lit_sparse.callbacks.weights.named_weights import find_weights
from lit_sparse.errors import ConfigurationError
from lit_sparse.mappings import functional as F
from lit_sparse.metrics import hoyer_sparseness

pytestmark = pytest.mark.filterwarnings("ignore:.* is validated, and the best checkpoint may be written")


class Net(pl.LightningModule):
    """Weights of several kinds, and a record of how sparse the first is at the end of each batch and validation."""

    def __init__(self, lr: float = 0.1) -> None:
        super().__init__()
        self.first = nn.Linear(20, 6)
        self.rnn = nn.GRU(6, 5, batch_first=True)
        self.conv = nn.Conv2d(2, 3, 3)
        self.norm = nn.LayerNorm(6)
        self.lr = lr
        self.trained: list[float] = []
        self.validated: list[float] = []

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        hidden = self.rnn(self.norm(self.first(batch)).unsqueeze(1))[0]
        return (
            hidden.square().mean() + self.conv(batch[:, :18].view(-1, 2, 3, 3)).square().mean() + self.first(batch).sum() / 50
        )

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.validated.append(spread(self.first.weight))
        self.log("steady", 1.0)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)


class Watch(pl.Callback):
    """Stands behind the callback that is tested."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        pl_module.trained.append(spread(pl_module.first.weight))

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, *_: Any) -> None:
        pl_module.trained.append(spread(pl_module.first.weight))


def spread(weight: Tensor, sparseness: float = 0.6) -> float:
    """Return how far vectors are from the sparseness and from unit norm."""
    found = weight.detach()
    return float(torch.maximum((hoyer_sparseness(found) - sparseness).abs().max(), (found.norm(dim=1) - 1).abs().max()))


def fit(callback: pl.Callback, net: Net | None = None, **options: Any) -> Net:
    torch.manual_seed(0)
    net = Net() if net is None else net
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    run = pl.Trainer(accelerator="cpu", num_sanity_val_steps=0, callbacks=[callback, Watch()], **{**quiet, **options})
    run.fit(net, batches(4), batches(1))
    return net


def batches(number: int) -> DataLoader[Tensor]:
    data = torch.randn(20, 20, generator=torch.Generator().manual_seed(1)).split(5)
    return DataLoader(data[:number], batch_size=None)


def sparse(values: list[float]) -> list[bool]:
    return [value < 1e-5 for value in values]


def test_sparse_at_the_start_after_each_epoch_and_before_validation() -> None:
    net = fit(SparseConnectivity("first", 0.6), max_epochs=3)
    assert sparse(net.trained) == [True, *[False, False, False, True] * 3]
    assert sparse(net.validated) == [True] * 3


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"every": 2}, [True, *[False] * 7, True, *[False] * 3, True]),  # the last epoch is always one
        ({"every": 3, "interval": "step"}, [True, *[False, False, True] * 4]),
        ({"every": 5, "interval": "step"}, [True, *[False] * 4, True, *[False] * 4, True, False, True]),
        ({"every": 1, "interval": "step"}, [True] * 13),
    ],
)
def test_every_so_often(options: dict[str, Any], expected: list[bool]) -> None:
    assert sparse(fit(SparseConnectivity("first", 0.6, **options), max_epochs=3).trained) == expected


@pytest.mark.parametrize("options", [{"max_steps": 6}, {"max_steps": 6, "max_epochs": 9, "accumulate_grad_batches": 1}])
def test_a_run_that_ends_within_an_epoch_ends_sparse(options: dict[str, Any]) -> None:
    net = fit(SparseConnectivity("first", 0.6, every=4), **options)
    assert sparse(net.trained)[-1]
    assert spread(net.first.weight) < 1e-5


def test_a_run_that_is_stopped_ends_sparse() -> None:
    class Stop(pl.Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            trainer.should_stop = trainer.global_step >= 6

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    net = Net()
    run = pl.Trainer(accelerator="cpu", max_epochs=9, callbacks=[SparseConnectivity("first", 0.6, every=9), Stop()], **quiet)
    run.fit(net, batches(4), batches(1))
    assert run.global_step < 12
    assert spread(net.first.weight) < 1e-5


@pytest.mark.parametrize("kind", ["steps", "metric"])
def test_a_run_that_is_stopped_validates_and_saves_what_is_sparse(kind: str, tmp_path: Path) -> None:
    """Stopped within an epoch, and by a metric that stays as it is; the files hold what the model does."""

    class Stop(pl.Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            trainer.should_stop |= trainer.global_step >= 6

    stop = Stop() if kind == "steps" else EarlyStopping("steady", patience=1)
    saves = [ModelCheckpoint(tmp_path, filename="last", save_on_train_epoch_end=True, enable_version_counter=False)]
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0}
    net, watch = Net(), Watch()
    sparse_first = SparseConnectivity("first", 0.6, every=9)
    run = pl.Trainer(accelerator="cpu", max_epochs=9, callbacks=[stop, sparse_first, watch, *saves], **quiet)
    run.fit(net, batches(4), batches(1))
    assert 4 < run.global_step < 36
    assert spread(net.first.weight) < 1e-5
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert torch.equal(saved["state_dict"]["first.weight"], net.first.weight)
    if kind == "steps":
        assert sparse(net.validated)[-1]


def test_several_weights_have_sparsenesses_of_their_own(tmp_path: Path) -> None:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    callbacks = [SparseConnectivity("first", 0.6), SparseConnectivity("rnn.weight_hh_l0", 0.3)]
    net = Net()
    run = pl.Trainer(accelerator="cpu", max_epochs=1, callbacks=callbacks, **quiet)
    run.fit(net, batches(4), batches(1))
    assert spread(net.first.weight) < 1e-5
    assert spread(net.rnn.weight_hh_l0, 0.3) < 1e-5
    run.save_checkpoint(tmp_path / "a.ckpt")
    assert len([key for key in torch.load(tmp_path / "a.ckpt", weights_only=True)["callbacks"] if "Sparse" in key]) == 2


def test_steps_of_two_optimizers_are_not_missed() -> None:
    class Two(Net):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def configure_optimizers(self) -> Any:
            return [torch.optim.SGD(part.parameters(), lr=0.5) for part in (self.first, self.rnn)]

        def training_step(self, batch: Tensor, batch_idx: int) -> None:
            for optimizer in self.optimizers():  # type: ignore[union-attr]
                optimizer.zero_grad()
            self.manual_backward(super().training_step(batch, batch_idx))
            for optimizer in self.optimizers():  # type: ignore[union-attr]
                optimizer.step()

    callback = SparseConnectivity("first", 0.6, every=3, interval="step")
    trained = sparse(fit(callback, Two(), max_epochs=1, limit_train_batches=4).trained)
    assert trained == [True, False, True, True, True], "after steps 4, 6 and 8"


@pytest.mark.parametrize("options", [{"every": 2}, {"every": 3, "interval": "step"}])
def test_a_validation_between_two_projections_is_told_once(options: dict[str, Any]) -> None:
    with pytest.warns(UserWarning, match="'first' is validated, .* between two projections") as found:
        fit(SparseConnectivity("first", 0.6, **options), max_epochs=5)
    assert sum("between two projections" in str(warning.message) for warning in found) == 1


def test_rows_of_filters_are_told() -> None:
    with pytest.warns(UserWarning, match=r"'conv.weight', .* have 3 entries.* give dim=\[1, 2, 3\]"):
        fit(SparseConnectivity("conv", 0.4), max_epochs=1)


def test_each_vector_is_the_nearest_point() -> None:
    net = Net(lr=0.0)
    before = {name: value.detach().clone() for name, value in net.named_parameters()}
    fit(SparseConnectivity(["rnn.weight_hh_l0", "conv"], 0.4, dim=[1], norm=2.0), net=net, max_epochs=1)
    assert torch.equal(net.first.weight, before["first.weight"])
    torch.testing.assert_close(net.rnn.weight_hh_l0, F.hoyer_projection(before["rnn.weight_hh_l0"], 0.4, norm=2.0))


def test_filters_of_several_dimensions_and_norms_that_stay() -> None:
    net = Net()
    fit(SparseConnectivity("conv", 0.5, dim=[1, 2, 3], norm=None), net=net, max_epochs=1)
    assert hoyer_sparseness(net.conv.weight.detach(), (1, 2, 3)) == pytest.approx([0.5] * 3, abs=1e-5)
    other = Net(lr=0.0)
    other.first.weight.data.mul_(3.0)
    norms = other.first.weight.detach().norm(dim=0)
    fit(SparseConnectivity("first", 0.5, dim=0, norm=None), net=other, max_epochs=1)
    torch.testing.assert_close(other.first.weight.detach().norm(dim=0), norms)


def test_the_momentum_is_left_alone_and_no_graph_is_made() -> None:
    class Momentum(pl.Callback):
        def __init__(self) -> None:
            self.seen: list[Tensor] = []

        def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, *_: Any) -> None:
            self.seen.append(trainer.optimizers[0].state[pl_module.first.weight]["momentum_buffer"].clone())

    before, after = Momentum(), Momentum()
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    net = Net()
    callbacks = [before, SparseConnectivity("first", 0.6, interval="step"), after]
    pl.Trainer(accelerator="cpu", max_epochs=1, callbacks=callbacks, **quiet).fit(net, batches(4), batches(1))
    assert all(torch.equal(one, two) for one, two in zip(before.seen, after.seen, strict=True))
    assert net.first.weight.is_leaf
    assert net.first.weight.requires_grad


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "64-true"])
def test_other_precisions(precision: Any) -> None:
    net = fit(SparseConnectivity("first", 0.6), max_epochs=1, precision=precision)
    assert spread(net.first.weight.float()) < (2e-2 if precision == "bf16-true" else 1e-5)


def test_a_model_that_is_compiled_has_the_same_paths() -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self._orig_mod = nn.Linear(3, 2)

    outer = nn.Module()
    outer.part = Wrapped()
    assert set(find_weights(outer, ["part"])) == {"part.weight"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"module": "frist", "sparseness": 0.5}, r"no weight at 'frist'. Did you mean 'first'\?"),
        ({"module": "rnn", "sparseness": 0.5}, "no weight at 'rnn'. Inside it there are rnn.weight_ih_l0, rnn.weight_hh_l0"),
        ({"module": "zzz", "sparseness": 0.5}, "no weight at 'zzz'. There are first"),
        ({"module": "first.bias", "sparseness": 0.5}, r"'first.bias' to have at least 2 dimensions but its shape is \(6,\)"),
        ({"module": "norm", "sparseness": 0.5}, "'norm' to have at least 2 dimensions"),
        ({"module": "first", "sparseness": 0.5, "dim": 2}, r"`dim` to be dimensions of 'first.weight'.*\(6, 20\), but got 2"),
        ({"module": "first", "sparseness": 0.5, "dim": [1, -1]}, "`dim` to be dimensions of 'first.weight'"),
        ({"module": "first", "sparseness": 0.5, "dim": np.float32(2.5)}, "`dim` to be a 64-bit integer"),
        ({"module": "first", "sparseness": 0.5, "dim": [0, 1]}, "to contain several vectors with several entries"),
    ],
)
def test_weights_that_are_not_there(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        fit(SparseConnectivity(**arguments), max_epochs=1)


def test_vectors_without_a_direction() -> None:
    net = Net()
    net.first.weight.data[2:4] = 0.0
    with pytest.raises(
        ConfigurationError, match=r"2 of 6 are zero, starting with number 2\. A zero vector has no nearest point"
    ):
        fit(SparseConnectivity("first", 0.5), net=net, max_epochs=1)
    narrow = Net()
    narrow.first = nn.Linear(20, 1)
    with pytest.raises(
        ConfigurationError, match="several vectors with several entries along dim=0 but there are 20 of length 1"
    ):
        fit(SparseConnectivity("first", 0.5, dim=0), net=narrow, max_epochs=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sparseness": 1.2}, "`sparseness` to be a number with 0.0 <= sparseness <= 1.0 but got 1.2"),
        ({"sparseness": -0.1}, "`sparseness`"),
        ({"sparseness": float("nan")}, "`sparseness`"),
        ({"norm": 0.0}, "`norm`"),
        ({"every": 0}, "`every`"),
        ({"interval": "batch"}, "`interval`"),
        ({"module": []}, "`module`"),
        ({"module": ""}, "`module`"),
        ({"dim": []}, "`dim`"),
    ],
)
def test_arguments_are_checked(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        SparseConnectivity(**{"module": "first", "sparseness": 0.5, **arguments})


def test_resumed_in_python(tmp_path: Path) -> None:
    """Restored weights are not projected again, and the resumed run equals an uninterrupted one."""
    nets = []
    for parts in ((4,), (2, 4)):
        torch.manual_seed(0)
        checkpoint = None
        for epochs in parts:
            net = Net()
            net.load_state_dict(torch.load(tmp_path / "w.pt")) if nets else torch.save(net.state_dict(), tmp_path / "w.pt")
            quiet = {
                "enable_checkpointing": False,
                "logger": False,
                "enable_progress_bar": False,
                "enable_model_summary": False,
            }
            run = pl.Trainer(
                accelerator="cpu",
                max_epochs=epochs,
                default_root_dir=tmp_path,
                callbacks=[SparseConnectivity("first", 0.6, every=2)],
                **quiet,
            )
            run.fit(net, batches(4), batches(1), ckpt_path=checkpoint, **({"weights_only": True} if checkpoint else {}))
            checkpoint = tmp_path / "a.ckpt"
            run.save_checkpoint(checkpoint)
        nets.append(net)
    for one, two in zip(*(net.parameters() for net in nets), strict=True):
        torch.testing.assert_close(one, two)
