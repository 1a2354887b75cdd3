"""The interface of all risks: objectives over the losses of a batch of examples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import Self

from lit_sparse.checks import FLOATS
from lit_sparse.distributed import gather_unequal, rank, world_size
from lit_sparse.errors import ConfigurationError, DataError, full_name, shown_arguments
from lit_sparse.risks.input_adversary import InputAdversary
from lit_sparse.torch_internals import can_read_values

__all__ = ["BrokenLossError", "Risk", "gathered_losses"]


class BrokenLossError(DataError):
    """A loss is NaN or infinite.

    Args:
        row: which of the losses, the first one.
        value: what it is.
        broken: how many are.
        losses: how many there are.
        hint: what else is known.
    """

    def __init__(self, row: int, value: float, broken: int, losses: int, hint: str = "") -> None:
        self.row, self.value, self.broken, self.losses, self.hint = row, value, broken, losses, hint
        super().__init__(self._message(""))

    def _message(self, where: str) -> str:
        return (
            f"Expected finite losses but the loss of example {self.row} of the batch{where} is {self.value} ({self.broken} of"
            f" {self.losses} are NaN or infinite). Nothing was learnt from this batch. If training diverged, lower the learning"
            f" rate.{self.hint}"
        )

    def located(self, row: int, where: str) -> BrokenLossError:
        """Return the error for an example whose loss has another place, with more words for where it is."""
        found = BrokenLossError(row, self.value, self.broken, self.losses, self.hint)
        found.args = (found._message(where),)
        return found


class Risk(nn.Module, ABC):
    """Turns the losses of the examples of a batch into one number to minimize.

    A subclass implements :meth:`measure` and keeps each constructor argument as an attribute of the same name.
    """

    #: The estimate's mean over random batches is the objective over all examples, whatever the size of a batch. Others look at
    #: a batch as a whole; of several processes each then trains on the losses of all.
    unbiased: ClassVar[bool] = False
    #: Adversary by which :meth:`perturb` perturbs inputs; None to leave them unchanged.
    adversary: InputAdversary | None = None
    #: An infinite loss is an error, as NaN is.
    finite: ClassVar[bool] = True

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances that the shared tests run; override it when arguments are needed."""
        return [cls()]

    def forward(self, losses: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the objective, a scalar; half precision is computed, and returned, in float32.

        Args:
            losses: (B,) floating, one an example.
            weights: (B,) not negative: how many examples each stands for, as those of a coreset, in units in which they are 1
                on average over the data. None for 1. What the loss is where the weight is 0 does not matter, unless it has a
                history: a NaN would reach that, whatever its weight.

        Raises:
            ConfigurationError: for an empty batch, or losses or weights of another shape or type.
            BrokenLossError: if a loss is NaN or infinite, before anything is learnt from it; the look at them waits for an
                accelerator. Not looked for under ``torch.func`` and ``torch.compile``.
        """
        if not isinstance(losses, Tensor) or losses.dtype not in FLOATS:
            got = losses.dtype if isinstance(losses, Tensor) else full_name(losses)
            raise ConfigurationError(f"Expected losses in a floating torch tensor but got {got}.")
        if losses.dim() != 1:
            raise ConfigurationError(
                f"Expected one loss an example, of shape (B,), but got {tuple(losses.shape)}. Use reduction='none'."
            )
        if losses.shape[0] == 0:
            raise ConfigurationError("Expected the loss of at least one example but the batch is empty.")
        losses = losses.to(torch.promote_types(losses.dtype, torch.float32))
        if weights is not None:
            weights = self._weights(weights, losses)
            if losses.is_leaf:  # a NaN of weight 0 would still go back into a network
                losses = torch.where(weights > 0, losses, 0.0)
        self._check_losses(losses)
        if weights is not None:
            losses = torch.where(weights > 0, losses, 0.0)
        if not self.unbiased and self.training and losses.requires_grad and world_size() > 1:
            found = self._over_processes(losses, weights)
        else:
            found = self.measure(losses, weights)
        if found.dim():
            raise ConfigurationError(
                f"Expected `measure` of {full_name(self)} to return a scalar but got {tuple(found.shape)}."
            )
        return found

    @abstractmethod
    def measure(self, losses: Tensor, weights: Tensor | None) -> Tensor:
        """Return the objective; see :meth:`forward`, which has checked the arguments. At least one loss is there."""

    def perturb(self, loss_fn: Callable[[Tensor], Tensor], inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs to train on in place of the given ones, and their transport cost.

        A model calls it first. It hands the losses at the returned inputs, less the cost, to the risk.

        Args:
            loss_fn: function from inputs (B, ...) to losses (B,).
            inputs: (B, ...) floating.

        Returns:
            Inputs of the same shape, and costs (B,) in units of the loss; the same inputs and zeros without an adversary.
        """
        return (inputs, inputs.new_zeros(len(inputs))) if self.adversary is None else self.adversary(loss_fn, inputs)

    def dual_parameters(self) -> list[nn.Parameter]:
        """Return what is minimized over beside the model, with a learning rate of its own if :attr:`dual_lr` says so."""
        return []

    #: The learning rate of those; None for the model's.
    dual_lr: float | None = None

    def measurements(self) -> dict[str, float]:
        """Return numbers to log for an epoch of training."""
        return {}

    def extra_repr(self) -> str:
        """Return the arguments."""
        return shown_arguments(self)

    @property
    def _needs_weight(self) -> bool:
        """Whether there is no objective where all weights are 0."""
        return not self.unbiased

    def _weights(self, weights: Tensor, losses: Tensor) -> Tensor:
        if not isinstance(weights, Tensor) or weights.shape != losses.shape:
            got = tuple(weights.shape) if isinstance(weights, Tensor) else full_name(weights)
            raise ConfigurationError(f"Expected one weight an example, of shape {tuple(losses.shape)}, but got {got}.")
        weights = weights.to(losses.dtype)
        if can_read_values() and losses.device.type == "cpu":
            wrong = ~((weights >= 0) & (weights < torch.inf))
            if bool(wrong.any()):
                row = int(wrong.nonzero()[0])
                raise ConfigurationError(
                    f"Expected weights that are finite and not negative but that of example {row} is {float(weights[row])}."
                )
            if self._needs_weight and not bool((weights > 0).any()):
                raise ConfigurationError("Expected at least one weight above 0 in a batch but all are 0.")
        return weights

    def _check_losses(self, losses: Tensor) -> None:
        if not can_read_values() or losses.is_meta:
            return
        wrong = ~losses.detach().isfinite() if self.finite else losses.detach().isnan()
        if bool(wrong.any()):
            row = int(wrong.nonzero()[0])
            raise BrokenLossError(row, float(losses[row].detach()), int(wrong.sum()), len(losses), self._hint())

    def _hint(self) -> str:
        return "" if self.adversary is None else " Or the adversary diverges: raise lam, or lower inner_lr."

    def _over_processes(self, losses: Tensor, weights: Tensor | None) -> Tensor:
        """Return the objective of the losses of all processes, with a gradient whose mean over them is the objective's."""
        weights = torch.ones_like(losses) if weights is None else weights
        parts = gather_unequal(torch.stack([losses.detach(), weights], 1))
        parts[rank()] = torch.stack([losses, weights], 1)
        all_losses, all_weights = torch.cat(parts).unbind(1)
        found = self.measure(all_losses, all_weights)
        return found + (len(parts) - 1) * (found - found.detach())


def gathered_losses(losses: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return losses and weights of all processes, without a gradient; those given where there is one process."""
    losses = losses.detach()
    if world_size() == 1:
        return losses, weights
    weights = torch.ones_like(losses) if weights is None else weights
    all_losses, all_weights = torch.cat(gather_unequal(torch.stack([losses, weights], 1))).unbind(1)
    return all_losses, all_weights
