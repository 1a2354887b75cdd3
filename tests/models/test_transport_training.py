"""Training of entropic transport by networks: scores, checkpoints, resumed and distributed runs."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from lit_sparse.cli import main
from lit_sparse.data import Points, TransportDataModule
from lit_sparse.errors import ConfigurationError
from lit_sparse.models import EntropicTransport
from lit_sparse.transport import GaussianMixture, KernelPotentials, MLPPotentials
from lit_sparse.transport.dual import (
    grid_measure,
)
from tests.conftest import CONFIGS, Command, metrics_of

from .test_transport import RANGE, SOURCE, Quadratic, by_kernels, line, trainer


@pytest.mark.gate
def test_networks_find_the_map_between_normal_distributions() -> None:
    exact = Quadratic()
    plain, moved = GaussianMixture([[0.0, 0.0]], [exact.a]), GaussianMixture([[1.0, 1.0]], [exact.b])
    data = TransportDataModule(plain, moved, samples=8000, val_size=500, batch_size=100)
    pl.seed_everything(0)
    model = EntropicTransport(
        MLPPotentials([32, 32]),
        dim=2,
        eps=0.5,
        rho=0.02,
        optimizer=functools.partial(torch.optim.Adam, lr=0.01),
        lr_scheduler=functools.partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.7),
    )
    run = trainer(max_epochs=6)
    run.fit(model, data)
    x, y = plain.sample(90, torch.arange(2000)), moved.sample(91, torch.arange(2000))
    best = EntropicTransport(exact, dim=2, eps=0.5, objective="dual")
    assert best.semi_dual(x, y) - 0.05 < model.semi_dual(x, y) < best.semi_dual(x, y) + 0.01
    near = x[(x.abs() < 1.5).all(1)][:200]
    torch.testing.assert_close(model.barycentric_map(near, y).detach(), 1.0 + exact.slope * near, atol=0.25, rtol=0)
    assert float(model.plan_density(x, y).detach().mean()) == pytest.approx(1.0, abs=0.05)
    assert {"val/loss", "val/objective", "val/semi_dual", "train/loss"} <= set(run.callback_metrics)
    held = data.fetch("val", 0, torch.arange(500))
    assert float(run.callback_metrics["val/objective"]) == pytest.approx(model.dual(held["source"], held["target"]), rel=1e-6)


@pytest.mark.parametrize("stage", ["validate", "test"])
def test_each_loader_has_its_own_points(stage: str) -> None:
    torch.manual_seed(0)
    model, data = EntropicTransport(dim=1), line()
    loaders = [[data.fetch("train", 0, torch.arange(start, start + size)) for start in (0, 40)] for size in (4, 7)]
    run = getattr(trainer(), stage)
    apart = [run(model, DataLoader(batches, batch_size=None), verbose=False)[0] for batches in loaders]
    found = run(model, [DataLoader(batches, batch_size=None) for batches in loaders], verbose=False)[0]
    assert found == {**apart[0], **{f"{name}/dataloader_idx_1": value for name, value in apart[1].items()}}
    assert model.held_out is not None
    assert [len(points) for points in model.held_out] == [8, 8]


@pytest.mark.parametrize("objective", ["safe", "dual"])
def test_the_loss_of_networks_is_the_dual_of_the_batch(objective: Any) -> None:
    torch.manual_seed(0)
    model = EntropicTransport(dim=1, eps=0.7, objective=objective)
    batch = line().fetch("train", 0, torch.arange(30))
    loss = model.run_step(batch, 0, "train")["loss"]
    assert float(loss.detach()) == pytest.approx(-model.dual(batch["source"], batch["target"]), rel=1e-5)
    gradients = torch.autograd.grad(loss, list(model.potentials.parameters()))
    assert any(float(gradient.abs().max()) > 0 for gradient in gradients)


def test_scores_do_not_depend_on_batches() -> None:
    torch.manual_seed(0)
    model = EntropicTransport(dim=1)
    scores = [trainer().test(model, line(eval_batch_size=size), verbose=False)[0] for size in (7, 70)]
    for name, value in scores[0].items():
        assert scores[1][name] == pytest.approx(value, rel=1e-6), name
    data = line()
    batch = data.fetch("test", 0, torch.arange(70))
    assert scores[0]["test/objective"] == pytest.approx(model.dual(batch["source"], batch["target"]), rel=1e-6)
    assert scores[0]["test/semi_dual"] == pytest.approx(model.semi_dual(batch["source"], batch["target"]), rel=1e-6)
    paired = [-model.dual(x.view(1, 1), y.view(1, 1)) for x, y in zip(batch["source"], batch["target"], strict=True)]
    assert scores[0]["test/loss"] == pytest.approx(float(np.mean(paired)), rel=1e-5)
    assert scores[0]["test/examples"] == 70
    assert model.held_out is not None
    assert [len(points) for points in model.held_out] == [70, 70]


def test_predictions_are_maps_over_the_whole_test() -> None:
    torch.manual_seed(0)
    model = EntropicTransport(dim=1)
    for size in (7, 70):
        data = line(eval_batch_size=size)
        found = trainer().predict(model, data)
        assert found is not None
        batch = data.fetch("test", 0, torch.arange(70))
        mapped = torch.cat([part["mapped"] for part in found])
        torch.testing.assert_close(mapped, model.barycentric_map(batch["source"], batch["target"]).detach())
        assert torch.equal(torch.cat([part["source"] for part in found]), batch["source"])
        assert torch.cat([part["index"] for part in found]).tolist() == list(range(70))
    alone = model.predict_step({name: values[:4] for name, values in batch.items()}, 0)
    torch.testing.assert_close(alone["mapped"], model.barycentric_map(batch["source"][:4], batch["target"][:4]))


@pytest.mark.parametrize("objective", ["safe", "dual"])
@pytest.mark.parametrize("kind", [KernelPotentials, MLPPotentials, None], ids=lambda kind: getattr(kind, "__name__", "default"))
def test_checkpoints_load(tmp_path: Path, kind: Any, objective: Any) -> None:
    options = {KernelPotentials: {"width": 0.5, "step_size": 0.05, "capacity": 700}, MLPPotentials: {"hidden": [5, 6]}}
    potentials = None if kind is None else kind(**options[kind])
    model = EntropicTransport(potentials, dim=1, eps=0.2, rho=0.3, objective=objective)
    run = trainer(max_epochs=1, limit_train_batches=2)
    run.fit(model, line())
    run.save_checkpoint(tmp_path / "a.ckpt")
    again = EntropicTransport.load_from_checkpoint(tmp_path / "a.ckpt", weights_only=True)
    for name in ("dim", "eps", "rho", "form"):
        assert getattr(again, name) == getattr(model, name)
    assert type(again.potentials) is type(model.potentials)
    for name in options.get(kind, {}):
        assert getattr(again.potentials, name) == getattr(model.potentials, name)
    state = again.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    torch.testing.assert_close(again(RANGE, RANGE), model(RANGE, RANGE))
    assert run.test(again, line(), verbose=False)[0] == run.test(model, line(), verbose=False)[0]


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`, callbacks used to create")
@pytest.mark.parametrize("made", [by_kernels, lambda: EntropicTransport(dim=1)], ids=["kernels", "networks"])
def test_resumed_training_is_uninterrupted_training(tmp_path: Path, made: Any) -> None:
    """Killed in the middle of the second of three epochs, a batch after its last checkpoint."""

    class Kill(pl.Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
            if trainer.global_step == 18:  # a batch later
                raise InterruptedError

    def fit(path: Path | None = None, *callbacks: pl.Callback) -> tuple[EntropicTransport, pl.Trainer]:
        pl.seed_everything(0)
        model, run = made(), trainer(max_epochs=3, callbacks=list(callbacks), enable_checkpointing=bool(callbacks))
        run.fit(model, line(), ckpt_path=path, weights_only=True)
        return model, run

    whole, run = fit()
    saving = ModelCheckpoint(dirpath=tmp_path, filename="last", every_n_train_steps=17, enable_version_counter=False)
    with pytest.raises(InterruptedError):
        fit(None, saving, Kill())
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] == 17
    rest, second = fit(tmp_path / "last.ckpt")
    assert second.global_step == run.global_step == 36
    for name, value in whole.state_dict().items():
        assert torch.equal(value, rest.state_dict()[name]), name
    for name in ("val/semi_dual", "val/objective", "train/loss"):
        assert float(second.callback_metrics[name]) == pytest.approx(float(run.callback_metrics[name]), rel=1e-6), name


def test_training_goes_on_from_initial_weights(tmp_path: Path) -> None:
    first = by_kernels()
    run = trainer(max_epochs=1)
    run.fit(first, line())
    run.save_checkpoint(tmp_path / "a.ckpt")
    second = by_kernels(initial_weights=str(tmp_path / "a.ckpt"))
    trainer(max_epochs=1).fit(second, line(seed=1))
    assert int(second.potentials.count) == 1200
    assert torch.equal(second.potentials.coefficients[:600], first.potentials.coefficients[:600])
    assert float(second.potentials.coefficients[600:1200].abs().max()) > 0


@pytest.mark.slow
def test_networks_train_on_two_processes(lit_sparse: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And are scored there as on one, over all pairs of all processes."""
    small = ("--data.init_args.samples=800", "--data.init_args.val_size=101", "--data.init_args.test_size=101")
    config = ("-c", str(CONFIGS / "transport" / "mlp_2d.yaml"), *small, "--data.init_args.eval_batch_size=20")
    quiet = ("--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu", "--trainer.max_epochs=1")
    two = ("-c", str(CONFIGS / "trainer" / "ddp_cpu.yaml"), *quiet)
    done = lit_sparse("fit", *config, *two)
    assert done.returncode == 0, done.stderr
    monkeypatch.chdir(tmp_path)
    assert main(["validate", *config, *quiet, "--ckpt_path", "last"]) == 0
    run = tmp_path / "runs" / "transport" / "mlp_2d" / "0"
    several, one = metrics_of(run), metrics_of(run / "validate" / "0")
    assert {"val/semi_dual", "val/objective", "val/loss", "val/examples"} <= set(one)
    for name in one.keys() & several.keys() - {"epoch", "step"}:
        assert several[name] == pytest.approx(one[name], rel=1e-6), name
    assert one["val/examples"] == [101.0]


def test_kernels_are_trained_by_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pl.Trainer, "world_size", 2)
    model = by_kernels()
    model._trainer = trainer(max_epochs=1)
    with pytest.raises(ConfigurationError, match=r"but got 2\. Use --trainer\.devices 1, or MLP"):
        model.setup("fit")
    model.setup("test")


def test_arguments_and_data_that_do_not_fit() -> None:
    with pytest.raises(ConfigurationError, match="capacity=100 iterations of kernel SGD but this would be the 150th"):
        trainer(max_epochs=1).fit(by_kernels(kernels={"capacity": 100}), line())
    with pytest.raises(ConfigurationError, match="dim=2 coordinates but got batches"):
        trainer(max_epochs=1).fit(EntropicTransport(dim=2), line())
    with pytest.raises(
        ConfigurationError, match="with source and target but got pixels, from data for a different kind of model"
    ):
        EntropicTransport(dim=2).run_step({"pixels": torch.zeros(2, 2)}, 0, "val")
    with pytest.raises(ConfigurationError, match="Expected no `lr_scheduler`"):
        by_kernels(lr_scheduler=functools.partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.7))
    with pytest.raises(ConfigurationError, match="`objective` to be one of"):
        by_kernels(objective="primal")
    with pytest.raises(ConfigurationError, match="`potentials` to be a Potentials or None but got 3"):
        EntropicTransport(3, dim=1)  # type: ignore[arg-type]
    for name, value in (("eps", 0.0), ("rho", 0.0), ("rho", 1.5), ("dim", 0)):
        with pytest.raises(ConfigurationError, match=f"`{name}`"):
            EntropicTransport(**{"dim": 1, name: value})  # type: ignore[arg-type]
    for name in ("width", "step_size", "capacity"):
        with pytest.raises(ConfigurationError, match=f"`{name}`"):
            KernelPotentials(**{name: 0})
    with pytest.raises(ConfigurationError, match="`hidden` to be an integer of at least 1"):
        MLPPotentials([4, 0])
    shared = MLPPotentials([4])
    EntropicTransport(shared, dim=2)
    with pytest.raises(ConfigurationError, match="dim=2, for which these potentials were built, but got dim=3"):
        EntropicTransport(shared, dim=3)
    with pytest.raises(ConfigurationError, match="a grid with `low` < `high`"):
        grid_measure(SOURCE.log_prob, 1.0, 1.0)


def test_points_of_a_data_set_are_moved() -> None:
    """Three points to the same three, moved: with little entropy each goes to its own."""
    corners = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 3.0]])
    data = TransportDataModule(Points.of(corners), Points.of(corners + 0.5), samples=600, batch_size=100)
    model = EntropicTransport(KernelPotentials(1.0, 0.3), dim=2, eps=0.3, rho=0.2)
    trainer(max_epochs=3, limit_val_batches=0).fit(model, data)
    torch.testing.assert_close(model.barycentric_map(corners, corners + 0.5), corners + 0.5, atol=0.1, rtol=0)


def test_points_may_be_arrays_and_of_another_type() -> None:
    model = EntropicTransport(dim=2)
    x, y = np.random.default_rng(0).normal(size=(5, 2)), torch.randn(7, 2)
    assert model.barycentric_map(x, y).shape == model.sample_plan(x, y).shape == (5, 2)
    assert model.plan_density(x, y.double()).shape == (5, 7)
    for wrong in (np.zeros((3, 1)), torch.zeros(3), torch.zeros(3, 2, dtype=torch.int64), "points"):
        with pytest.raises(ConfigurationError, match="Expected floating points"):
            model.plan_density(wrong, y)
