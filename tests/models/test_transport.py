"""Entropic transport: its values against POT and closed forms, training by kernels and networks, and its checkpoints."""

from __future__ import annotations

import csv
import functools
import importlib.util
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import ot
import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger
from torch import Tensor

from lit_sparse.cli import main
from lit_sparse.data import Points, TransportDataModule
from lit_sparse.errors import ConfigurationError, DataError
from lit_sparse.models import EntropicTransport
from lit_sparse.transport import GaussianMixture, KernelPotentials, MLPPotentials, Potentials
from lit_sparse.transport.dual import (
    dual_value,
    grid_measure,
    log_plan_density,
    plan_penalty,
    semi_discrete_potentials,
    semi_dual_value,
    sinkhorn_potentials,
    squared_distances,
)
from tests.conftest import CONFIGS, ROOT, Command, metrics_of

SOURCE, TARGET = GaussianMixture([0.0], [1.0]), GaussianMixture([-1.0, 1.5], [0.25, 0.16])
OPTIMUM = 0.508964  # with its entropy; by quadrature on ever finer grids
RANGE = torch.linspace(-2.0, 2.0, 9).unsqueeze(1)


def line(**options: Any) -> TransportDataModule:
    sizes = {"samples": 600, "val_size": 90, "test_size": 70, "batch_size": 50, "eval_batch_size": 40}
    return TransportDataModule(SOURCE, TARGET, **{**sizes, **options})


def trainer(**options: Any) -> pl.Trainer:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    return pl.Trainer(accelerator="cpu", **{**quiet, **options})


def by_kernels(**options: Any) -> EntropicTransport:
    kernels = {"width": 0.7, "step_size": 0.3, "capacity": 10_000, **options.pop("kernels", {})}
    return EntropicTransport(KernelPotentials(**kernels), **{"dim": 1, "rho": 0.03, **options})


class Quadratic(Potentials):
    """The best potentials between the normal distributions N(0, a) and N(mean, b) in every coordinate, with KL divergence."""

    def __init__(self, a: float = 1.0, b: float = 0.25, mean: float = 1.0, eps: float = 0.5) -> None:
        super().__init__()
        self.a, self.b, self.mean, self.eps = a, b, mean, eps
        covariance = (math.sqrt(eps**2 + 16 * a * b) - eps) / 4
        self.slope = covariance / a  # of the barycentric map
        self.squared = covariance**2 / (a * b)  # correlation

    def create(self, dim: int) -> None:
        pass

    def source_potential(self, x: Tensor) -> Tensor:
        curved = self.eps * self.squared / (1 - self.squared) / 2
        return (x**2 - 2 * self.mean * x - curved * x**2 / self.a).sum(-1)

    def target_potential(self, y: Tensor) -> Tensor:
        curved = self.eps * self.squared / (1 - self.squared) / 2
        return (y**2 - curved * (y - self.mean) ** 2 / self.b - self.eps / 2 * math.log1p(-self.squared)).sum(-1)

    @property
    def optimum(self) -> float:
        """Of one coordinate: the squared distance, and the mutual information."""
        distance = self.a + self.b + self.mean**2 - 2 * self.slope * self.a
        return distance - self.eps / 2 * math.log1p(-self.squared)


@functools.cache
def on_grid(size: int = 301) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    points, of_source = grid_measure(SOURCE.log_prob, -6.0, 6.0, size)
    return points, (of_source, grid_measure(TARGET.log_prob, -6.0, 6.0, size)[1])


def gap(model: EntropicTransport) -> float:
    points, weights = on_grid()
    return OPTIMUM - model.semi_dual(points, points, weights)


# Values


def test_the_optimum_is_that_of_pot() -> None:
    points, (a, b) = on_grid()
    cost = ot.dist(points.numpy(), points.numpy())
    plan = torch.from_numpy(ot.sinkhorn(a.numpy(), b.numpy(), cost, 0.1, method="sinkhorn_log", stopThr=1e-10))
    product = a.unsqueeze(1) * b
    entropic = float((plan * torch.from_numpy(cost)).sum() + 0.1 * torch.special.xlogy(plan, plan / product).nansum())
    u, v = sinkhorn_potentials(points, points, eps=0.1, source_weights=a, target_weights=b)
    weights: dict[str, Any] = {"source_weights": a, "target_weights": b}
    ours = dual_value(u, v, points, points, eps=0.1, **weights)
    assert ours == pytest.approx(entropic, abs=1e-5)
    assert ours == pytest.approx(OPTIMUM, abs=1e-5)
    assert semi_dual_value(u, points, points, eps=0.1, **weights) == pytest.approx(ours, abs=1e-7)
    density = log_plan_density((u.unsqueeze(1) + v - squared_distances(points, points)) / 0.1, 0.1, "dual").exp()
    torch.testing.assert_close(density * product, plan, atol=1e-6, rtol=0)


@pytest.mark.parametrize("seed", range(5))
def test_no_value_is_above_the_optimum(seed: int) -> None:
    """Whatever the potentials: the dual below the semi-dual below the optimum, and "safe" between dual and its bound."""
    torch.manual_seed(seed)
    x, y = torch.randn(40, 2), torch.randn(30, 2) + 1
    a, b = torch.rand(40).softmax(0), torch.rand(30).softmax(0)
    weights: dict[str, Any] = {"source_weights": a, "target_weights": b}
    best = semi_dual_value(sinkhorn_potentials(x, y, eps=0.3, **weights)[0], x, y, eps=0.3, **weights)
    u, v = 0.3 * torch.randn(40), 0.3 * torch.randn(30)
    semi = semi_dual_value(u, x, y, eps=0.3, **weights)
    dual = dual_value(u, v, x, y, eps=0.3, **weights)
    assert dual <= semi <= best
    safe = [dual_value(u, v, x, y, eps=0.3, rho=rho, objective="safe", **weights) for rho in (1e-9, 0.1, 1.0)]
    assert safe[0] == pytest.approx(dual, rel=1e-4)
    assert safe == sorted(safe), "ln(1 + rho e^s) / rho falls with rho"


@pytest.mark.parametrize("objective", ["safe", "dual"])
def test_values_are_their_formulas(objective: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written out for each pair; in parts of any size; weights are repeated points."""
    torch.manual_seed(0)
    x, y, u, v = torch.randn(6, 3), torch.randn(5, 3), torch.randn(6), torch.randn(5)
    options: dict[str, Any] = {"eps": 0.4, "rho": 0.2, "objective": objective}
    total, inner = 0.0, 0.0
    for j in range(5):
        sums = 0.0
        for i in range(6):
            s = (float(u[i]) + float(v[j]) - float(((x[i] - y[j]) ** 2).sum())) / 0.4
            total += (0.4 * math.exp(s) if objective == "dual" else 2.0 * math.log1p(0.2 * math.exp(s))) / 30
            sums += math.exp((float(u[i]) - float(((x[i] - y[j]) ** 2).sum())) / 0.4) / 6
        inner += 0.4 * math.log(sums) / 5
    found = dual_value(u, v, x, y, **options)
    assert found == pytest.approx(float(u.mean() + v.mean()) - total + 0.4, rel=1e-5)
    semi = semi_dual_value(u, x, y, eps=0.4)
    assert semi == pytest.approx(float(u.mean()) - inner, rel=1e-5)
    times = torch.tensor([1, 2, 3, 1, 1, 2])
    more = {"source_weights": times / 10}
    repeated = (u.repeat_interleave(times), x.repeat_interleave(times, 0))
    assert dual_value(u, v, x, y, **more, **options) == pytest.approx(
        dual_value(repeated[0], v, repeated[1], y, **options), rel=1e-6
    )
    assert semi_dual_value(u, x, y, eps=0.4, **more) == pytest.approx(semi_dual_value(*repeated, y, eps=0.4), rel=1e-6)
    monkeypatch.setattr("lit_sparse.transport.dual.PAIRS", 7)
    assert dual_value(u, v, x, y, **options) == pytest.approx(found, rel=1e-9)
    assert semi_dual_value(u, x, y, eps=0.4) == pytest.approx(semi, rel=1e-9)


def test_the_density_is_the_derivative_of_the_penalty() -> None:
    surplus = torch.linspace(-30.0, 60.0, 50, dtype=torch.float64, requires_grad=True)
    for objective in ("safe", "dual"):
        (slope,) = torch.autograd.grad(plan_penalty(surplus, 0.1, 0.3, objective).sum(), surplus)
        torch.testing.assert_close(slope / 0.1, log_plan_density(surplus, 0.3, objective).exp())
    far = torch.tensor([-1e6, 1e6])
    assert log_plan_density(far, 0.3, "safe").isfinite().all()
    assert plan_penalty(far, 0.1, 0.3, "safe").isfinite().all()


def test_semi_discrete_potentials_reach_the_best_ones() -> None:
    x, fresh = SOURCE.sample(0, torch.arange(200)), TARGET.sample(1, torch.arange(3000))
    generator = torch.Generator().manual_seed(0)
    found = semi_discrete_potentials(x, fresh, eps=0.1, runs=3, steps=600, generator=generator)
    best = semi_dual_value(sinkhorn_potentials(x, fresh, eps=0.1, tolerance=1e-7)[0], x, fresh, eps=0.1)
    values = [semi_dual_value(u, x, fresh, eps=0.1) for u in found]
    assert best - 0.01 < max(values) <= best + 1e-6
    assert len(set(values)) == 3
    again = semi_discrete_potentials(x, fresh, eps=0.1, runs=3, steps=600, generator=torch.Generator().manual_seed(0))
    assert torch.equal(again, found)
    for name in ("runs", "steps", "batch_size"):
        with pytest.raises(ConfigurationError, match=f"`{name}` to be an integer of at least 1"):
            semi_discrete_potentials(x, fresh, eps=0.1, **{name: 0})


# The plan


def test_the_plan_between_normal_distributions() -> None:
    """Density of margins one, the closed forms of the barycentric map and of the optimum, draws of its covariance."""
    exact = Quadratic()
    model = EntropicTransport(exact, dim=2, eps=0.5, objective="dual")
    plain, moved = GaussianMixture([[0.0, 0.0]], [exact.a]), GaussianMixture([[1.0, 1.0]], [exact.b])
    x, y = plain.sample(0, torch.arange(3000)), moved.sample(1, torch.arange(3000))
    assert float(model.plan_density(x, y).mean()) == pytest.approx(1.0, abs=0.01)
    near = x[:20].clamp(-1.5, 1.5)
    assert model.plan_density(near, y).mean(1).sub(1).abs().max() < 0.3
    torch.testing.assert_close(model.barycentric_map(near, y), 1.0 + exact.slope * near, atol=0.1, rtol=0)
    drawn = model.sample_plan(x, y, torch.Generator().manual_seed(0))
    assert bool((drawn.unsqueeze(1) == y).all(-1).any(1).all()), "points of the pool"
    both = torch.cat([x, drawn], 1).mT
    torch.testing.assert_close(both.cov()[:2, 2:], exact.slope * exact.a * torch.eye(2), atol=0.06, rtol=0)
    torch.testing.assert_close(drawn.var(0), torch.full((2,), exact.b), atol=0.03, rtol=0)
    assert model.semi_dual(x, y) == pytest.approx(2 * exact.optimum, abs=0.1)
    points, a = grid_measure(GaussianMixture([0.0], [exact.a]).log_prob, -6.0, 6.0)
    b = grid_measure(GaussianMixture([1.0], [exact.b]).log_prob, -6.0, 6.0)[1]
    straight = EntropicTransport(Quadratic(), dim=1, eps=0.5, objective="dual")
    assert straight.semi_dual(points, points, (a, b)) == pytest.approx(exact.optimum, abs=1e-6)
    assert straight.dual(points, points, (a, b)) == pytest.approx(exact.optimum, abs=1e-6)
    torch.testing.assert_close(straight.plan_density(points, points) @ b, torch.ones_like(a), atol=1e-6, rtol=0)


def test_the_gap_of_the_best_potentials_is_none() -> None:
    exact = Quadratic()
    plain, moved = GaussianMixture([[0.0, 0.0]], [exact.a]), GaussianMixture([[1.0, 1.0]], [exact.b])
    x, y, fresh = (measure.sample(seed, torch.arange(500)) for seed, measure in enumerate((plain, moved, moved)))
    generator = torch.Generator().manual_seed(0)
    options: dict[str, Any] = {"runs": 4, "steps": 400, "generator": generator}
    model = EntropicTransport(exact, dim=2, eps=0.5, objective="dual")
    assert -0.02 < model.optimality_gap(x, y, fresh, **options) < 0.1
    other = EntropicTransport(Quadratic(mean=0.2), dim=2, eps=0.5, objective="dual")
    difference = model.semi_dual(x, y) - other.semi_dual(x, y)
    found = other.optimality_gap(x, y, fresh, **options)
    assert found == pytest.approx(model.optimality_gap(x, y, fresh, **options) + difference, abs=0.02)
    assert found > 0.3


def test_the_safe_density_is_capped() -> None:
    torch.manual_seed(0)
    model = EntropicTransport(MLPPotentials([8]), dim=2, eps=0.01, rho=0.25)
    x, y = 3 * torch.randn(40, 2), 3 * torch.randn(30, 2)
    with torch.no_grad():
        model.potentials.of_source[-1].bias += 20.0
        density = model.plan_density(x, y)
        rows = model.barycentric_map(x, y)
    assert float(density.max()) == pytest.approx(4.0)
    assert density.isfinite().all()
    total = density.sum(1, keepdim=True)
    there = total[:, 0] > 1e-3
    assert int(there.sum()) > 10
    torch.testing.assert_close(rows[there], (density / total @ y)[there], atol=1e-4, rtol=1e-3)
    assert rows.isfinite().all(), "where all densities underflow, too"


# Training by kernels


def test_the_gap_of_kernels_falls() -> None:
    gaps = []
    for samples in (10, 500, 10_000):
        model = by_kernels()
        trainer(max_epochs=1, limit_val_batches=0).fit(model, line(samples=samples, batch_size=100))
        gaps.append(gap(model))
        assert int(model.potentials.count) == samples
    assert gaps[0] > 0.15 > gaps[1] > gaps[2]
    assert -1e-6 < gaps[2] < 0.035
    points, (a, b) = on_grid()
    density = model.plan_density(points, points)
    assert float(a @ density @ b) == pytest.approx(1.0, abs=0.03)
    assert float(a @ (density @ b).sub(1).abs()) < 0.4
    assert float((a @ density).sub(1).abs() @ b) < 0.4
    untrained = by_kernels().plan_density(points, points)
    assert float(a @ (untrained @ b).sub(1).abs()) > 0.5


def test_a_batch_is_its_iterations_one_after_another() -> None:
    """Batches of any size give the same potentials; the number of steps, and what is logged, are of batches."""
    found = []
    for size in (1, 50, 600):
        model = by_kernels()
        run = trainer(max_epochs=1, limit_val_batches=0)
        run.fit(model, line(batch_size=size))
        assert run.global_step == math.ceil(600 / size)
        found.append((model.potentials.coefficients, float(run.callback_metrics["train/loss"])))
    for coefficients, loss in found[1:]:
        assert torch.equal(coefficients, found[0][0])
        assert loss == pytest.approx(found[0][1], rel=1e-9)
    stopped = by_kernels()
    run = trainer(max_steps=3, limit_val_batches=0)
    run.fit(stopped, line())
    assert (run.global_step, int(stopped.potentials.count)) == (3, 150)


def test_the_loss_of_kernels_is_that_before_each_iteration() -> None:
    data = line()
    model, again = by_kernels(), by_kernels()
    batch = data.fetch("train", 0, torch.arange(5))
    losses = model.run_step(batch, 0, "train")["per_example"]["loss"]
    for i in range(5):
        one = {name: values[i : i + 1] for name, values in batch.items()}
        expected = -again.dual(one["source"], one["target"])
        assert float(losses[i]) == pytest.approx(expected, rel=1e-5)
        again.run_step(one, 0, "train")


def test_kernel_potentials_stay_where_they_are() -> None:
    """Neither half precision nor a copy changes them."""
    model = by_kernels()
    trainer(max_epochs=1, limit_val_batches=0, precision="bf16-true").fit(model, line())
    assert model.potentials.coefficients.dtype == torch.float64
    plain = by_kernels()
    trainer(max_epochs=1, limit_val_batches=0).fit(plain, line())
    used = plain.potentials.coefficients[:600]
    assert float((model.potentials.coefficients[:600] - used).abs().max()) < 0.2, "of rounded points"
    assert model.potentials.source_potential(RANGE.double()).dtype == torch.float64


def test_overflow_ends_training_and_keeps_what_was_before(tmp_path: Path) -> None:
    saving = ModelCheckpoint(dirpath=tmp_path / "kept", filename="last", every_n_train_steps=1, enable_version_counter=False)
    model = by_kernels(kernels={"step_size": 1e3}, objective="dual")
    run = trainer(
        max_epochs=1, enable_checkpointing=True, callbacks=[saving], logger=CSVLogger(tmp_path, name="", version="log")
    )
    words = "an overflow at [0-9]+ of the batch's pairs after step .*Decrease `step_size` 1000.0, or use"
    with pytest.raises(ConfigurationError, match=words):
        run.fit(model, line(batch_size=1))
    assert model.potentials.coefficients.isfinite().all()
    kept = torch.load(tmp_path / "kept" / "last.ckpt", weights_only=True)
    assert kept["global_step"] == run.global_step == int(model.potentials.count) > 0
    for name, value in model.state_dict().items():
        assert torch.equal(kept["state_dict"][name], value), name
    assert metrics_of(tmp_path / "log")["train/overflows"] == [1.0]


def test_networks_overflow_as_plainly() -> None:
    model = EntropicTransport(dim=1, objective="dual")
    with torch.no_grad():
        model.potentials.of_source[-1].bias += 50.0
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ConfigurationError, match=r"overflow.*Decrease the learning rate, or use `objective: safe`"):
        trainer(max_epochs=1, limit_val_batches=0).fit(model, line())
    for name, value in before.items():
        if "potentials" in name:
            assert torch.equal(value, model.state_dict()[name]), name


@pytest.mark.parametrize("made", [by_kernels, lambda: EntropicTransport(dim=1)], ids=["kernels", "networks"])
def test_points_that_are_missing_are_told(made: Any) -> None:
    batch = line().fetch("train", 0, torch.arange(8))
    batch["target"][[2, 5]] = math.nan
    with pytest.raises(DataError, match=r"finite target points .* at 2 of 8"):
        made().run_step(batch, 0, "train")


# Training by networks


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


# Checkpoints


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


# Processes and errors


@pytest.mark.process
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


def test_kernels_are_trained_by_one_process() -> None:
    model = by_kernels()
    model._trainer = SimpleNamespace(world_size=2, ckpt_path=None, loggers=[])  # type: ignore[assignment]
    with pytest.raises(ConfigurationError, match=r"but got 2\. Use --trainer\.devices 1, or MLP"):
        model.setup("fit")
    model.setup("test")


def test_arguments_and_data_that_do_not_fit() -> None:
    with pytest.raises(ConfigurationError, match="capacity=100 iterations of kernel SGD but this would be the 150th"):
        trainer(max_epochs=1).fit(by_kernels(kernels={"capacity": 100}), line())
    with pytest.raises(ConfigurationError, match="dim=2 coordinates but got batches"):
        trainer(max_epochs=1).fit(EntropicTransport(dim=2), line())
    with pytest.raises(ConfigurationError, match="with source and target but got pixels, from the data of another"):
        EntropicTransport(dim=2).run_step({"pixels": torch.zeros(2, 2)}, 0, "val")
    with pytest.raises(ConfigurationError, match="Expected no `lr_scheduler`"):
        by_kernels(lr_scheduler=functools.partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.7))
    with pytest.raises(ConfigurationError, match="`objective` to be one of"):
        by_kernels(objective="primal")
    with pytest.raises(ConfigurationError, match="`potentials` to be Potentials but got 3"):
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


def test_the_script_measures_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))  # where Python puts it for a script that is started
    spec = importlib.util.spec_from_file_location("logsumexp_transport", ROOT / "scripts" / "logsumexp_transport.py")
    assert spec is not None and spec.loader is not None
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))  # as for a script that is started
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    for name, values in (("WIDTHS", (0.4, 0.7)), ("RHOS", (0.1, 0.01)), ("SAFE_STEPS", (0.3,)), ("DUAL_STEPS", (0.1, 1.0))):
        monkeypatch.setattr(script, name, values)
    short = ["--seeds", "2", "--iterations", "60", "--long", "300", "--results", str(tmp_path)]
    script.main(short)
    path = tmp_path / "logsumexp_transport.csv"
    first = path.read_text()
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["objective"] for row in rows} == {"safe", "dual"}
    assert all(float(row["gap"]) > -1e-6 for row in rows)
    path.write_text(first[: len(first) // 2])  # killed within a line
    script.main(short)
    assert sorted(set(path.read_text().splitlines())) == sorted(set(first.splitlines()))
    script.main([*short, "--only_tables"])
    for name in ("logsumexp_transport.png", "logsumexp_densities.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert "optimum 0.50896" in (tmp_path / "logsumexp_transport.md").read_text()
    with pytest.raises(SystemExit, match="Nothing was measured"):
        script.main(["--only_tables", "--results", str(tmp_path / "empty")])


def test_points_may_be_arrays_and_of_another_type() -> None:
    model = EntropicTransport(dim=2)
    x, y = np.random.default_rng(0).normal(size=(5, 2)), torch.randn(7, 2)
    assert model.barycentric_map(x, y).shape == model.sample_plan(x, y).shape == (5, 2)
    assert model.plan_density(x, y.double()).shape == (5, 7)
    for wrong in (np.zeros((3, 1)), torch.zeros(3), torch.zeros(3, 2, dtype=torch.int64), "points"):
        with pytest.raises(ConfigurationError, match="Expected floating points"):
            model.plan_density(wrong, y)
