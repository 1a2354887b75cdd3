"""An adversary that perturbs the inputs of a model at a cost."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lit_sparse.checks import FLOATS, POSITIVE, Count, Number, check_tensor
from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.arguments import checked

__all__ = ["INNER", "InputAdversary"]


#: Ranges of a risk's arguments for its adversary.
INNER = {"inner_steps": Count(0), "inner_lr": POSITIVE, "inner_momentum": Number(0.0, 1.0, open_high=True)}


class InputAdversary:
    r"""Adversary that perturbs a model's inputs to raise the loss, at a transport cost, by a few gradient steps.

    .. math:: \max_u \; \ell(u) - \kappa \, \lVert u - x \rVert^2

    where l is the loss, x the input, u the perturbed input and kappa the ``transport_cost``. The steps are Nesterov's
    accelerated gradient method.

    A maximizer exists only if the second derivatives of the loss are below 2 kappa; with a smaller kappa the iterates
    diverge.

    Args:
        transport_cost: kappa, the cost of a unit of squared distance, in units of the loss, > 0.
        steps: number of steps; 0 leaves the inputs unchanged.
        lr: step size; None for ``0.1 / transport_cost``.
        momentum: momentum, in [0, 1).

    Source: Gladin, Kroshnin, Zhu & Dvurechensky (2025), Improved Stochastic Optimization of LogSumExp, arXiv:2509.24894,
    section 3.3.

    Example:
        >>> import torch
        >>> adversary = InputAdversary(2.0, steps=200)
        >>> inputs, cost = adversary(lambda x: x.sum(1), torch.zeros(1, 3))
        >>> inputs  # 1 / (2 kappa)
        tensor([[0.2500, 0.2500, 0.2500]])
        >>> cost
        tensor([0.3750])
    """

    def __init__(self, transport_cost: float, steps: int = 5, lr: float | None = None, momentum: float = 0.4) -> None:
        self.transport_cost, self.steps, self.momentum = transport_cost, steps, momentum
        self.lr = 0.1 / transport_cost if lr is None else lr

    @checked
    def __call__(self, loss_fn: Callable[[Tensor], Tensor], inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the perturbed inputs u and their transport cost ``kappa |u - x|^2``, (B,), both without a gradient.

        Args:
            loss_fn: function from inputs (B, ...) to losses (B,). Each loss must depend on its own input only. Batch
                normalization is therefore not supported; its statistics would also count every step.
            inputs: (B, ...) floating.

        Raises:
            ConfigurationError: if the inputs are not floating, or the losses are not (B,).
        """
        shape = (None, *inputs.shape[1:])
        check_tensor(inputs, "floating inputs (B, ...) to perturb", shape=shape, dtypes=FLOATS)
        start = inputs.detach()
        moved, velocity = start, torch.zeros_like(start)
        for _ in range(self.steps):
            with torch.enable_grad():
                ahead = (moved + self.momentum * velocity).requires_grad_()
                losses = loss_fn(ahead)
                what = f"loss_fn to return one loss per input, {tuple(inputs.shape[:1])},"
                if not check_tensor(losses, what, shape=inputs.shape[:1]).requires_grad:
                    raise ConfigurationError(
                        "Expected losses with a gradient for the inputs but got none. Leave out detach() and no_grad()."
                    )
                (slope,) = torch.autograd.grad((losses - self.transport_cost * _squared_distance(ahead, start)).sum(), ahead)
            velocity = self.momentum * velocity + self.lr * slope
            moved = moved + velocity
        return moved.detach(), self.transport_cost * _squared_distance(moved, start).detach()


def _squared_distance(a: Tensor, b: Tensor) -> Tensor:
    """Return the squared Euclidean distance (B,) between a (B, ...) and b."""
    squares = (a - b).square()
    return squares.flatten(1).sum(1) if squares.dim() > 1 else squares
