"""Entropic transport: its values against POT and closed forms, training by kernels and networks, and its checkpoints."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import ot
import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger
from torch import Tensor

from lit_sparse.data import TransportDataModule
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
from tests.conftest import metrics_of

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
        """Return the squared distance and the mutual information of one coordinate."""
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


@pytest.mark.gate
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
    """For all potentials, the dual is below the semi-dual, which is below the optimum; "safe" is between dual and its bound."""
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
    """Compared with a loop over pairs, for parts of any size. Weights equal repeated points."""
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


@pytest.mark.gate
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


@pytest.mark.gate
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


# Checkpoints


# Processes and errors


def test_potentials_that_have_not_converged_say_so() -> None:
    x, y = torch.randn(20, 2, generator=torch.Generator().manual_seed(0)), torch.randn(30, 2)
    with pytest.warns(RuntimeWarning, match=r"has not converged: after max_iter=2 .* tolerance=1e-10"):
        sinkhorn_potentials(x, y, eps=0.05, max_iter=2)
    with pytest.warns(RuntimeWarning, match=r"or the plan's source weights are off by \d+%"):
        sinkhorn_potentials(x, y, eps=1e-12, max_iter=20)  # whose dual value grows by less than any tolerance
    sinkhorn_potentials(x, y, eps=0.5)  # converges
    for wrong in ({"eps": 0.0}, {"eps": 0.5, "max_iter": 0}, {"eps": 0.5, "tolerance": -1.0}):
        with pytest.raises(ConfigurationError, match=f"`{list(wrong)[-1]}`"):
            sinkhorn_potentials(x, y, **wrong)  # type: ignore[arg-type]


GOOD = {"source": torch.zeros(3, 2), "target": torch.ones(4, 2), "eps": 0.5, "u": torch.zeros(3), "v": torch.zeros(4)}
BAD_MEASURES: list[dict[str, Any]] = [
    {"source": torch.full((3, 2), math.nan)},
    {"source": torch.zeros(3, 3)},
    {"source": torch.zeros(1, 3, 2)},
    {"source": torch.zeros(3, 2, dtype=torch.complex64)},
    {"source": [[0.0, 0.0]]},
    {"target": torch.ones(4, 2, device="meta")},  # torch returns memory that nobody wrote
    {"target": torch.ones(4, 2).to_sparse()},
    {"target": torch.ones(0, 2)},
    {"source_weights": torch.ones(3)},
    {"source_weights": torch.tensor([1.5, -0.5, 0.0])},
    {"source_weights": torch.ones(1)},
    {"target_weights": torch.full((4,), math.nan)},
    {"eps": -0.5},
    {"eps": math.nan},
    {"eps": "0.5"},
]


@pytest.mark.parametrize("wrong", BAD_MEASURES, ids=",".join)
def test_functions_of_measures_refuse_what_is_none(wrong: dict[str, Any]) -> None:
    given = GOOD | wrong
    measures = {name: value for name, value in given.items() if name not in "uv"}
    with pytest.raises(ConfigurationError):
        sinkhorn_potentials(**measures)
    with pytest.raises(ConfigurationError):
        semi_dual_value(u=given["u"], **measures)
    with pytest.raises(ConfigurationError):
        dual_value(u=given["u"], v=given["v"], **measures)


@pytest.mark.parametrize(
    "wrong", [{"u": torch.zeros(1)}, {"v": torch.zeros(4, 1)}, {"objective": "save"}, {"u": None}], ids=str
)
def test_dual_values_refuse_other_potentials_and_objectives(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        dual_value(**(GOOD | wrong))


def test_densities_of_grids_are_numbers() -> None:
    for log_prob in (
        lambda x: x[:, 0] * math.nan,
        lambda x: x[:, 0] - math.inf,
        lambda x: x[:2, 0],
        lambda x: x[:, 0].numpy(),
        None,
    ):
        with pytest.raises(ConfigurationError, match="log_prob"):
            grid_measure(log_prob, -1.0, 1.0, 5)
    with pytest.raises(ConfigurationError, match="high"):
        grid_measure(lambda x: -x[:, 0], 0.0, math.inf)


class Column(Quadratic):
    def source_potential(self, x: Tensor) -> Tensor:
        return super().source_potential(x).unsqueeze(-1)


def test_potentials_are_a_value_per_point() -> None:
    """A column (B, 1) would be broadcast over all pairs, and train in silence."""
    model, points = EntropicTransport(Column(), dim=1), torch.zeros(3, 1)
    batch = {"source": points, "target": points}
    for call in (lambda: model(points, points), lambda: model.step(batch, 0, "train"), lambda: model.step(batch, 0, "val")):
        with pytest.raises(ConfigurationError, match=r"shape \(3,\) but got \(3, 1\)"):
            call()


@pytest.mark.parametrize(
    "function",
    [KernelPotentials().build(1).source_potential, GaussianMixture([0.5], [0.25]).log_prob],
    ids=["kernels", "mixture"],
)
def test_values_at_integers_are_refused(function: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"floating points \(B, 1\) .* got \(2, 1\) of torch\.int64"):
        function(torch.arange(2).unsqueeze(1))


def test_potentials_are_built_and_batches_are_dicts() -> None:
    for call in (
        lambda: MLPPotentials().source_potential(torch.zeros(2, 1)),
        lambda: KernelPotentials().target_potential(torch.zeros(2, 1)),
    ):
        with pytest.raises(ConfigurationError, match=r"Potentials to be built but it has no .* Call build\(dim\)"):
            call()
    assert not hasattr(MLPPotentials(), "of_source") and not hasattr(MLPPotentials().build(1), "of_nothing")
    for call in (EntropicTransport(dim=1).step, EntropicTransport(dim=1).predict_step):
        with pytest.raises(ConfigurationError, match="batches that are dicts of tensors but got tuple"):
            call((torch.zeros(2, 1), torch.zeros(2, 1)), 0, *(["train"] if call.__name__ == "step" else []))
