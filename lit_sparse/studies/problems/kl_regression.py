"""Linear regression with KL-DRO in a loop of its own, which is faster than ``lit-sparse fit`` and gives equal numbers."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from lit_sparse.data import CaliforniaHousingDataModule
from lit_sparse.data.splits import in_batches, shuffled
from lit_sparse.risks.safe_kl_dro import link_value

__all__ = ["california", "optimum"]

RHO, LAM, MOMENTUM = 1e-3, 1.0, 0.9


def california(
    seed: int, *, path: str, link: str | None, batch_size: int, lr: float, epochs: int = 50, every: int = 10
) -> list[dict[str, float]]:
    """Train linear regression with KL-DRO on California housing, and return its objective after some epochs.

    The order of the data is as in ``CaliforniaHousingDataModule(seed=seed)``.

    Args:
        seed: seed of the order.
        path: path of the CSV file.
        link: link of :class:`~lit_sparse.risks.SafeKLDRO`, or None for log-sum-exp of each batch.
        batch_size: number of examples in a batch.
        lr: learning rate.
        epochs: number of epochs.
        every: number of epochs between two results; the first, second and fifth epoch are also returned.

    Returns:
        ``epoch`` and ``objective``, lam log mean exp of the squared errors of all examples, in float64.

    Source: Gladin, Kroshnin, Zhu & Dvurechensky (2025), Improved Stochastic Optimization of LogSumExp, arXiv:2509.24894,
    section 3.2 and figure 3.
    """
    x, y = load(path)
    theta = least_squares(x, y).clone().requires_grad_()
    dual = torch.zeros((), requires_grad=True)
    optimizer = torch.optim.SGD([theta, dual] if link else [theta], lr=lr, momentum=MOMENTUM, nesterov=True)
    curve = [{"epoch": 0.0, "objective": float(log_mean_exp(theta.detach(), x, y))}]
    for epoch in range(1, epochs + 1):
        for rows in in_batches(shuffled(len(y), seed, epoch - 1), batch_size):
            losses = ((x[rows] * theta).sum(-1) - y[rows]).square()
            optimizer.zero_grad()
            _objective(losses, dual, link).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        if epoch in (1, 2, 5, epochs) or epoch % every == 0:
            curve.append({"epoch": float(epoch), "objective": float(log_mean_exp(theta.detach(), x, y))})
    return curve


@cache
def load(path: str) -> tuple[Tensor, Tensor]:
    """Return the standardized features of California housing with an intercept (N, 9), and the targets (N,)."""
    data = CaliforniaHousingDataModule(path=path, use_all=True)
    data.setup()
    batch = data.fetch("train", 0, torch.arange(data.size("train")))
    return batch["features"], batch["target"]


def log_mean_exp(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the KL-DRO objective of all data at parameters (D,), in float64."""
    losses = (x.double() @ theta.double() - y.double()).square()
    return LAM * (torch.logsumexp(losses / LAM, 0) - math.log(len(y)))


def least_squares(x: Tensor, y: Tensor) -> Tensor:
    """Return the least-squares solution (D,), from which training starts."""
    found: Tensor = torch.linalg.lstsq(x.double(), y.double().unsqueeze(1), driver="gelsd").solution[:, 0].float()
    return found


def _objective(losses: Tensor, dual: Tensor, link: str | None) -> Tensor:
    if link is None:
        return LAM * (torch.logsumexp(losses / LAM, 0) - math.log(len(losses)))
    return dual + LAM * link_value((losses - dual) / LAM, RHO, link).mean() - LAM


def optimum(seed: int, *, path: str) -> dict[str, float]:
    """Return the minimum of the KL-DRO objective, by Newton's method on all data, in float64."""
    x, y = (part.double() for part in load(path))
    theta = least_squares(x, y).double()
    for _ in range(200):
        slope, curvature = (kind(log_mean_exp)(theta, x, y) for kind in (torch.func.grad, torch.func.hessian))
        move, size, value = torch.linalg.solve(curvature, slope), 1.0, log_mean_exp(theta, x, y)
        while log_mean_exp(theta - size * move, x, y) > value - 1e-4 * size * (slope @ move) and size > 1e-12:
            size /= 2
        theta = theta - size * move
        if float(slope.norm()) < 1e-11:
            break
    return {"objective": float(log_mean_exp(theta, x, y))}
