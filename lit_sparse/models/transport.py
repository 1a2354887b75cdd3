"""Entropic optimal transport between continuous measures, with potentials that are trained on samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import override

from lit_sparse.checks import FEATURES, FLOATS, POSITIVE, Number, check_result, check_tensor, ranges, shown
from lit_sparse.errors import ConfigurationError, DataError
from lit_sparse.ground.distributed import gather_unequal
from lit_sparse.lightning.choice import AGREED, LRSchedulerCallable, OptimizerCallable
from lit_sparse.models.base import Batch, LitSparseModule, Stage, StepOutput
from lit_sparse.models.data_protocols import check_keys, has_rows
from lit_sparse.transport import KernelPotentials, MLPPotentials, Potentials
from lit_sparse.transport.dual import (
    TransportObjective,
    dual_value,
    log_plan_density,
    plan_penalty,
    semi_discrete_potentials,
    semi_dual_value,
    squared_distances,
)

__all__ = ["EntropicTransport"]


@ranges(dim=FEATURES, eps=POSITIVE, rho=Number(0.0, 1.0, open_low=True))
class EntropicTransport(LitSparseModule):
    """Model of the entropic optimal transport plan between two continuous measures, with potentials trained on samples.

    The plan minimizes the expected squared distance plus eps times a divergence from the product of the measures.

    With potentials u and v, the surplus ``s = (u(x) + v(y) - |x - y|^2) / eps``, and expectations over independent x and y,
    training maximizes

    - ``E u + E v - (eps / rho) E ln(1 + rho e^s) + eps`` for ``objective="safe"``: the divergence is the safe KL
      divergence. The plan's density with respect to the product of the measures is ``sigmoid(s + ln rho) / rho < 1 / rho``,
      which bounds all gradients.
    - ``E u + E v - eps E e^s + eps`` for ``"dual"``: the divergence is KL, and the density is e^s, which may overflow.
      Training then ends with an error, after the last valid checkpoint.

    The optimizer trains :class:`lit_sparse.transport.MLPPotentials` over all pairs of a batch.
    :class:`lit_sparse.transport.KernelPotentials` are trained with kernel SGD, without the optimizer, on one process: a
    training step is a sequence of iterations, one per pair of the batch.

    Logged are ``train/loss``, the negative objective before each step, and in validation and test ``loss``, the same over
    the batches' pairs, and ``objective``, over all pairs of held-out points. ``semi_dual`` is the value of u with its
    optimal v over all pairs, :func:`lit_sparse.transport.dual.semi_dual_value`. It is comparable between both objectives
    and selects the best checkpoint.

    Batches are dicts of ``source`` (B, d), ``target`` (B, d) and ``index`` (B,).

    Args:
        potentials: potentials u and v; None for ``MLPPotentials()``.
        dim: d, dimension of the points.
        eps: strength of the divergence, in units of the squared distance.
        rho: inverse of the maximum density; unused for ``"dual"``.
        objective: ``"safe"`` or ``"dual"``.
        optimizer: constructor of the optimizer from the parameters of networks.
        lr_scheduler: constructor of the learning rate scheduler from the optimizer; None for a constant rate.
        initial_weights: checkpoint with the initial weights (a warm start).

    Raises:
        ConfigurationError: for an argument outside its range, or a scheduler with kernel potentials.

    Source: Gladin, Kroshnin, Zhu & Dvurechensky (2025), Improved Stochastic Optimization of LogSumExp, arXiv:2509.24894,
    section 3.1; ``"dual"`` is Genevay, Cuturi, Peyre & Bach (2016), Stochastic optimization for large-scale optimal
    transport.

    Example:
        >>> model = EntropicTransport(dim=2)
        >>> x, y = torch.randn(5, 2), torch.randn(7, 2)
        >>> bool((model.plan_density(x, y) < 1 / model.rho).all())
        True
        >>> model.barycentric_map(x, y).shape
        torch.Size([5, 2])
    """

    monitor: ClassVar[tuple[str, Literal["min", "max"]]] = ("val/semi_dual", "max")

    def __init__(
        self,
        potentials: Potentials | None = None,
        *,
        dim: int,
        eps: float = 0.1,
        rho: float = 0.1,
        objective: Literal["safe", "dual"] = "safe",
        optimizer: OptimizerCallable = torch.optim.Adam,
        lr_scheduler: LRSchedulerCallable | None = None,
        initial_weights: str | None = None,
    ) -> None:
        super().__init__(optimizer=optimizer, lr_scheduler=lr_scheduler, initial_weights=initial_weights)
        self.dim, self.eps, self.rho = dim, eps, rho
        self.form: TransportObjective = objective
        self.potentials = (MLPPotentials() if potentials is None else potentials).build(dim)
        if isinstance(self.potentials, KernelPotentials) and lr_scheduler is not None:
            raise ConfigurationError(
                "Expected no `lr_scheduler` with kernel potentials, whose steps decrease as 1 / sqrt(i), but got one. Leave it"
                " out, or use MLPPotentials."
            )
        #: Source and target points of the first loader of the last validation or test, for pictures.
        self.held_out: tuple[Tensor, Tensor] | None = None
        #: Loader -> its points so far.
        self._held: dict[int, list[tuple[Tensor, Tensor]]] = {}
        self._pool: Tensor | None = None

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the logarithm (B, M) of the plan's density at all pairs of source (B, d) and target points (M, d)."""
        x, y = self._given(x), self._given(y)
        return log_plan_density(self._surplus(x, y, self._source(x), self._target(y)), self.rho, self.form)

    def plan_density(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the plan's density (B, M) at all pairs, relative to the product of the measures; its mean is near 1."""
        log_density: Tensor = self(x, y)
        return log_density.exp()

    def sample_plan(self, x: Tensor, pool: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return a target point (B, d) for each source point, sampled from the plan's conditional distribution.

        Args:
            x: (B, d) source points.
            pool: (M, d) target samples to choose from.
            generator: random generator on the device of x; torch's own by default.
        """
        points = self._given(pool)
        with torch.no_grad():
            points = points[torch.multinomial(self(x, pool).softmax(1), 1, generator=generator).squeeze(1)]
        return points.to(pool.dtype) if isinstance(pool, Tensor) else points

    def barycentric_map(self, x: Tensor, pool: Tensor) -> Tensor:
        """Return the conditional mean (B, d) of the target, given each source point, with a gradient.

        Args:
            x: (B, d) source points.
            pool: (M, d) target samples.
        """
        points = self._given(pool)
        log_density: Tensor = self(x, points)
        mean = log_density.softmax(1).to(points) @ points
        return mean.to(pool.dtype) if isinstance(pool, Tensor) else mean

    def _given(self, points: Tensor) -> Tensor:
        """Convert points (n, d) to a tensor of the model's device and type.

        Raises:
            ConfigurationError: if they are not points with ``dim`` coordinates.
        """
        try:
            tensor = torch.as_tensor(points, device=self.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConfigurationError(
                f"Expected floating points (n, {self.dim}) but got {type(points).__name__}: {error}. Convert them."
            ) from error
        what = f"floating points (n, dim={self.dim})"
        check_tensor(tensor, what, shape=(None, self.dim), dtypes=FLOATS, advice=" Convert them.")
        return tensor.to(next((parameter.dtype for parameter in self.potentials.parameters()), torch.float64))

    @torch.no_grad()
    def dual(self, source: Tensor, target: Tensor, weights: tuple[Tensor, Tensor] | None = None) -> float:
        """Return the training objective over all pairs of source (n, d) and target points (m, d).

        Args:
            source: (n, d) points.
            target: (m, d) points.
            weights: weights (n,) and (m,) of the points, each summing to 1; None for equal weights.
        """
        a, b = _two(weights)
        source, target = self._given(source), self._given(target)
        given = (self._source(source), self._target(target), source, target)
        return dual_value(*given, eps=self.eps, rho=self.rho, objective=self.form, source_weights=a, target_weights=b)

    @torch.no_grad()
    def semi_dual(self, source: Tensor, target: Tensor, weights: tuple[Tensor, Tensor] | None = None) -> float:
        """Return the semi-dual value of the potential u over all pairs: a lower bound of the entropic transport cost.

        For the arguments, see :meth:`dual`; for the formula, see :func:`lit_sparse.transport.dual.semi_dual_value`.
        """
        a, b = _two(weights)
        source, target = self._given(source), self._given(target)
        return semi_dual_value(self._source(source), source, target, eps=self.eps, source_weights=a, target_weights=b)

    def optimality_gap(
        self,
        source: Tensor,
        target: Tensor,
        fresh: Tensor,
        *,
        runs: int = 10,
        steps: int = 1000,
        batch_size: int = 32,
        generator: torch.Generator | None = None,
    ) -> float:
        """Return an estimate of how far the semi-dual value of u is from its maximum, on test points.

        The maximum is the largest value on the test points in several runs of stochastic gradient ascent, which optimize
        one number per source test point instead of a function u, with target points sampled from ``fresh``.

        Args:
            source: (n, d) test points.
            target: (m, d) test points.
            fresh: (F, d) many other target points; with few, the runs miss the maximum, and the gap may be negative.
            runs: number of runs.
            steps: number of steps per run.
            batch_size: number of target points per step.
            generator: random generator on the CPU; torch's own by default.

        Source: Gladin, Kroshnin, Zhu & Dvurechensky (2025), Improved Stochastic Optimization of LogSumExp,
        arXiv:2509.24894, appendix B.3.
        """
        source, target, fresh = self._given(source), self._given(target), self._given(fresh)
        potentials = semi_discrete_potentials(
            source, fresh, eps=self.eps, runs=runs, steps=steps, batch_size=batch_size, generator=generator
        )
        best = max(semi_dual_value(u, source, target, eps=self.eps) for u in potentials)
        return best - self.semi_dual(source, target)

    @override
    def step(self, batch: Batch, batch_idx: int, stage: Stage) -> StepOutput:
        x, y = self._points(batch)
        if stage != "train":
            self._held[self._loader] = [*(self._held.get(self._loader, ()) if batch_idx else ()), (x, y)]
            sums = self._source(x) + self._target(y)
        elif isinstance(self.potentials, KernelPotentials):
            sums, broken = self.potentials.ascend(x, y, eps=self.eps, rho=self.rho, objective=self.form)
            if broken:
                raise self._breakdown(batch, broken)
        else:
            u, v = self._source(x), self._target(y)
            surplus = self._surplus(x, y, u, v)
            loss = plan_penalty(surplus, self.eps, self.rho, self.form).mean() - u.mean() - v.mean() - self.eps
            if not bool(loss.isfinite()):  # synchronizes a GPU, but NaN weights would spoil the next checkpoint
                raise self._breakdown(batch, int((~surplus.exp().isfinite()).sum()))
            return StepOutput(objective=loss)
        surplus = (sums - (x - y).square().sum(1)) / self.eps  # of the pairs, for an unbiased estimate of the objective
        return StepOutput(plan_penalty(surplus, self.eps, self.rho, self.form) - sums - self.eps)

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Compute the gradient, except for kernel potentials, which are already updated and have none."""
        if not isinstance(self.potentials, KernelPotentials):
            super().backward(loss, *args, **kwargs)

    def predict_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        """Return the predictions for a batch as a dict: ``index`` (B,), ``source`` (B, d), and ``mapped`` (B, d).

        ``mapped`` is the barycentric map over the test's target points.
        """
        x, y = self._points(batch)
        mapped = self.barycentric_map(x, y if self._pool is None else self._pool)
        return {"index": batch["index"], "source": x, "mapped": mapped}

    @override
    def configure_optimizers(self) -> Any:
        return _KernelSGD(self.potentials) if isinstance(self.potentials, KernelPotentials) else super().configure_optimizers()

    def setup(self, stage: str) -> None:
        """Raise an error for kernel potentials on several processes or with a loss scale.

        Raises:
            ConfigurationError: if the potentials cannot be trained by this trainer.
        """
        kernels = stage == "fit" and isinstance(self.potentials, KernelPotentials)
        if kernels and self.trainer.world_size > 1:
            raise ConfigurationError(
                "Expected one process for kernel potentials, which are trained pair by pair, but got"
                f" {self.trainer.world_size}. Use --trainer.devices 1, or MLPPotentials."
            )
        if kernels and getattr(self.trainer.precision_plugin, "scaler", None) is not None:
            raise ConfigurationError(
                "Expected a precision without a loss scale for kernel potentials, which have no gradient, but got"
                f" {self.trainer.precision}. Use --trainer.precision 32-true."
            )
        super().setup(stage)

    def on_predict_start(self) -> None:
        """Collect all target points of the test split, over which the barycentric map is computed."""
        data = getattr(self.trainer, "datamodule", None)
        if has_rows(data):
            self._pool = data.fetch("test", 0, torch.arange(data.size("test")))["target"].to(self.device)

    def on_predict_end(self) -> None:
        """Release the collected target points."""
        self._pool = None

    @override
    def _log_metrics(self, stage: Stage) -> None:
        super()._log_metrics(stage)
        if stage == "train":
            return
        none = torch.empty(0, self.dim, device=self.device)  # a process may get no batch
        held = zip((none, none), *self._held.pop(self._loader, ()), strict=True)
        source, target = (torch.cat(gather_unequal(torch.cat(points))) for points in held)
        self.held_out = self.held_out if self._loader else (source, target)
        # Over all pairs, which differs from a mean over batches.
        for name, value in (("objective", self.dual(source, target)), ("semi_dual", self.semi_dual(source, target))):
            self.log(f"{stage}/{name}", torch.tensor(value, dtype=torch.float64), prog_bar=True, **AGREED)

    def _source(self, x: Tensor) -> Tensor:
        return check_result(self.potentials, "source_potential", self.potentials.source_potential(x), x.shape[:1])

    def _target(self, y: Tensor) -> Tensor:
        return check_result(self.potentials, "target_potential", self.potentials.target_potential(y), y.shape[:1])

    def _surplus(self, x: Tensor, y: Tensor, u: Tensor, v: Tensor) -> Tensor:
        return (u.unsqueeze(1) + v - squared_distances(x, y)) / self.eps

    def _points(self, batch: Batch) -> tuple[Tensor, Tensor]:
        check_keys(batch, ["source", "target"], "Use a TransportDataModule.")
        x, y = batch["source"], batch["target"]
        if x.shape[-1] != self.dim or y.shape != x.shape:
            raise ConfigurationError(
                f"Expected source and target points with dim={self.dim} coordinates but got batches {tuple(x.shape)} and"
                f" {tuple(y.shape)}. Change `dim`."
            )
        if not x.is_floating_point() or y.dtype != x.dtype:
            raise ConfigurationError(
                f"Expected floating points of the same dtype but got {x.dtype} and {y.dtype}. Convert them."
            )
        return x, y

    def _breakdown(self, batch: Batch, count: int) -> ConfigurationError | DataError:
        """Log the number of overflowed exponentials, and return the error."""
        for name in ("source", "target"):
            broken = int((~batch[name].isfinite()).any(1).sum())
            if broken:
                return DataError(
                    f"Expected finite {name} points but got missing or infinite ones at {broken} of {len(batch[name])} in"
                    " a batch. Correct the data."
                )
        for logger in self.trainer.loggers if self._trainer is not None else []:
            logger.log_metrics({"train/overflows": float(count)}, step=self.global_step)
        kernels = isinstance(self.potentials, KernelPotentials)
        rate = f"`step_size` {self.potentials.step_size}" if kernels else "the learning rate"
        return ConfigurationError(
            f"Expected finite exponentials with `objective: {self.form}` but got an overflow at {count} of the batch's"
            f" pairs after step {self.global_step if self._trainer is not None else 0}. Decrease {rate}, or use"
            " `objective: safe`, whose steps are bounded. Checkpoints hold earlier, finite potentials."
        )


class _KernelSGD(torch.optim.Optimizer):
    """Optimizer that only runs the closure of a step, whose forward pass does the iterations of kernel SGD."""

    def __init__(self, potentials: KernelPotentials) -> None:
        super().__init__([potentials.coefficients], {})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        return None if closure is None else closure()


def _two(weights: Any) -> tuple[Tensor | None, Tensor | None]:
    """Return the weights of the source and of the target points, after a check that they are two."""
    if weights is None:
        return None, None
    if not isinstance(weights, tuple | list) or len(weights) != 2:
        raise ConfigurationError(f"Expected `weights` to be two tensors, (n,) and (m,), but got {shown(weights)}.")
    return weights[0], weights[1]
