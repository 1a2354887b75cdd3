"""The interface of all risks: objectives over the losses of a batch of examples; and the mean, as usual in training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import Self, override

from lit_sparse.checks import FLOATS, INTEGERS, check_tensor, shown
from lit_sparse.errors import ConfigurationError, DataError, full_name
from lit_sparse.ground.arguments import shown_arguments
from lit_sparse.ground.distributed import gather_unequal, rank, world_size
from lit_sparse.ground.torch_internals import can_read_values
from lit_sparse.risks.input_adversary import InputAdversary

__all__ = ["BrokenLossError", "Mean", "Risk", "gathered_losses", "mean_of"]


class BrokenLossError(DataError):
    """Error raised when a loss is NaN or infinite.

    Args:
        row: index of the first such loss.
        value: its value.
        broken: number of such losses.
        losses: number of losses in the batch.
        hint: further advice for the message.
    """

    def __init__(self, row: int, value: float, broken: int, losses: int, hint: str = "") -> None:
        self.row, self.value, self.broken, self.losses, self.hint = row, value, broken, losses, hint
        super().__init__(self._message(""))

    def _message(self, where: str) -> str:
        return (
            f"Expected finite losses but the loss of example {self.row} of the batch{where} is {self.value} ({self.broken} of"
            f" {self.losses} are NaN or infinite). Nothing was learned from this batch. If training diverged, lower the"
            f" learning rate.{self.hint}"
        )

    def located(self, row: int, where: str) -> BrokenLossError:
        """Return a copy of this error with another row index, and words that name the place of the loss."""
        found = BrokenLossError(row, self.value, self.broken, self.losses, self.hint)
        found.args = (found._message(where),)
        return found


class Risk(nn.Module, ABC):
    """Base class of risks, which turn the losses of a batch into one number to minimize, in place of their mean.

    A subclass implements :meth:`measure` and keeps each constructor argument as an attribute of the same name.
    """

    #: Whether the mean of batch estimates is the objective over all examples, for every batch size. Otherwise the risk needs
    #: whole batches, and each process trains on the losses gathered from all processes.
    unbiased: ClassVar[bool] = False
    #: Whether it is convex in the losses, which keeps a convex problem one; a trimmed mean is not.
    convex: ClassVar[bool] = True
    #: Adversary by which :meth:`perturb` perturbs inputs; None to leave them unchanged.
    adversary: InputAdversary | None = None
    #: Whether infinite losses, besides NaN, are an error.
    finite: ClassVar[bool] = True
    #: Whether losses are checked on an accelerator, too, which synchronizes it.
    synchronizes: ClassVar[bool] = True
    #: Entry of a batch with the group (B,) of each example, which models pass on; None for a risk without groups.
    group_key: str | None = None

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests; override it when arguments are needed."""
        return [cls()]

    def forward(self, losses: Tensor, weights: Tensor | None = None, groups: Tensor | None = None) -> Tensor:
        """Return the risk of a batch of losses, a scalar to minimize; half precision is computed and returned in float32.

        Args:
            losses: (B,) floating, one per example.
            weights: (B,) number of examples that each example represents, not negative, for example of a coreset. Their
                average over the data is 1. None for weights of 1. Losses of weight 0 are ignored; a NaN among them still
                reaches the gradient.
            groups: (B,) integers, the group of each example, for a risk with a :attr:`group_key`.

        Raises:
            ConfigurationError: for an empty batch, losses, weights or groups of a wrong shape or dtype, or missing groups.
            BrokenLossError: if a loss is NaN or infinite, before the model learns from it. This check synchronizes the
                accelerator; it is left out under ``torch.func`` and ``torch.compile``.
        """
        check_losses(losses)
        columns, readable = self._columns(groups, losses), can_read_values()
        losses = losses.to(torch.promote_types(losses.dtype, torch.float32))
        if weights is not None:
            weights = self._weights(weights, losses, readable, self._needs_weight)
            if losses.is_leaf:  # in a graph, a NaN of weight 0 would still reach the network's gradient
                losses = torch.where(weights > 0, losses, 0.0)
        if readable and not losses.is_meta and (self.synchronizes or losses.device.type == "cpu"):
            self._check_losses(losses)
        if weights is not None:
            losses = torch.where(weights > 0, losses, 0.0)
        if not self.unbiased and self.training and losses.requires_grad and world_size() > 1:
            found = self._over_processes(losses, weights, *columns)
        else:
            found = self.measure(losses, weights, *columns)
        if not isinstance(found, Tensor) or found.dim() or not found.is_floating_point():
            what = f"`measure` of {full_name(self)} to return a floating scalar tensor"
            raise ConfigurationError(f"Expected {what} but got {shown(found)}.")
        return found

    @abstractmethod
    def measure(self, losses: Tensor, weights: Tensor | None, *args: Any, **kwargs: Any) -> Tensor:
        """Return the risk of one or more losses (B,) with optional weights (B,), a scalar; :meth:`forward` checks arguments.

        A risk with a :attr:`group_key` gets the groups (B,) as its third argument.
        """

    def draw_rows(self, size: int) -> Tensor | None:
        """Return the indices (M,) of the examples of a training batch whose losses are needed; None for all of them.

        A model calls this first, and passes the losses of these rows to the risk.
        """
        return None

    def perturb(self, loss_fn: Callable[[Tensor], Tensor], inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs to train on in place of the given ones, and their transport cost.

        A model calls this first. It passes the losses at the returned inputs, minus the cost, to the risk.

        Args:
            loss_fn: function from inputs (B, ...) to losses (B,).
            inputs: (B, ...) floating.

        Returns:
            Inputs of the same shape, and costs (B,) in units of the loss; the same inputs and zeros without an adversary.
        """
        return (inputs, inputs.new_zeros(len(inputs))) if self.adversary is None else self.adversary(loss_fn, inputs)

    def dual_parameters(self) -> list[nn.Parameter]:
        """Return parameters of the risk that are minimized together with the model's, at the learning rate :attr:`dual_lr`."""
        return []

    #: Learning rate of the dual parameters; None for the model's.
    dual_lr: float | None = None

    def measurements(self) -> dict[str, float]:
        """Return numbers to log after each training epoch, by name."""
        return {}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move to another device with the model, but never to a dtype of lower precision than float32."""
        before = {name: value.detach().clone() for name, value in self.state_dict(keep_vars=True).items()}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, value in self.state_dict(keep_vars=True).items():
            if value.is_floating_point() and torch.finfo(value.dtype).bits < 32:
                value.data = before[name].to(value.device)
        return self

    def extra_repr(self) -> str:
        """Return the arguments."""
        return shown_arguments(self)

    @property
    def _needs_weight(self) -> bool:
        """Return whether the objective is undefined where all weights are 0."""
        return not self.unbiased

    def _weights(self, weights: Tensor, losses: Tensor, readable: bool, needed: bool) -> Tensor:
        check_tensor(weights, f"one weight per example, real and of shape {tuple(losses.shape)},", shape=losses.shape)
        weights = weights.to(losses.dtype)
        if readable and losses.device.type == "cpu":
            wrong = ~((weights >= 0) & (weights < torch.inf))
            if bool(wrong.any()):
                row = int(wrong.nonzero()[0])
                raise ConfigurationError(
                    f"Expected finite, nonnegative weights but got {float(weights[row])} for example {row}."
                )
            if needed and not bool((weights > 0).any()):
                raise ConfigurationError("Expected at least one weight above 0 in a batch but all are 0.")
        return weights

    def _columns(self, groups: Tensor | None, losses: Tensor) -> tuple[Tensor, ...]:
        """Return the arguments of :meth:`measure` after the weights."""
        if self.group_key is None:
            return ()
        what = f"the group of each example, integers of shape {tuple(losses.shape)},"
        advice = f" Use data whose batches have an entry {self.group_key!r}, or another risk."
        found = check_tensor(groups, what, shape=losses.shape, dtypes=INTEGERS, advice=advice)
        return (found.to(losses.device),)

    def _check_losses(self, losses: Tensor) -> None:
        wrong = ~losses.detach().isfinite() if self.finite else losses.detach().isnan()
        if bool(wrong.any()):
            row = int(wrong.nonzero()[0])
            raise BrokenLossError(row, float(losses[row].detach()), int(wrong.sum()), len(losses), self._hint())

    def _hint(self) -> str:
        return "" if self.adversary is None else " Or the adversary diverges: raise transport_cost, or lower inner_lr."

    def _over_processes(self, losses: Tensor, weights: Tensor | None, *columns: Tensor) -> Tensor:
        """Return the objective of the losses of all processes; averaging its gradient over processes gives the exact one."""
        weights = torch.ones_like(losses) if weights is None else weights
        own = [losses, weights, *(column.to(losses.dtype) for column in columns)]
        parts = gather_unequal(torch.stack([column.detach() for column in own], 1))
        parts[rank()] = torch.stack(own, 1)
        all_losses, all_weights, *others = torch.cat(parts).unbind(1)
        found = self.measure(all_losses, all_weights, *(other.long() for other in others))
        return found + (len(parts) - 1) * (found - found.detach())


def check_losses(losses: Tensor) -> None:
    """Check that losses are floating, (B,), of at least one example.

    Raises:
        ConfigurationError: if they are not.
    """
    advice = " Use reduction='none'."
    check_tensor(
        losses, "one floating loss per example, in a tensor of shape (B,),", shape=(None,), dtypes=FLOATS, advice=advice
    )
    if losses.shape[0] == 0:
        raise ConfigurationError("Expected the loss of at least one example but the batch is empty.")


def gathered_losses(losses: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return losses (B,) and weights (B,) of all processes, without a gradient; with one process, the given ones."""
    losses = losses.detach()
    if world_size() == 1:
        return losses, weights
    weights = torch.ones_like(losses) if weights is None else weights
    all_losses, all_weights = torch.cat(gather_unequal(torch.stack([losses, weights], 1))).unbind(1)
    return all_losses, all_weights


def mean_of(losses: Tensor, weights: Tensor | None) -> Tensor:
    """Return the scalar mean of losses (B,) times weights (B,)."""
    return losses.mean() if weights is None else (weights * losses).mean()


class Mean(Risk):
    r"""Mean over the batch of weight times loss, the usual objective of training.

    .. math:: \frac{1}{B} \sum_{i=1}^{B} w_i \ell_i

    where l are the losses of the batch and w their weights, 1 by default.

    On an accelerator losses are not checked for NaN: the check would synchronize, and mixed precision skips such steps
    anyway.

    Example:
        >>> import torch
        >>> float(Mean()(torch.tensor([1.0, 2.0, 6.0])))
        3.0
    """

    unbiased: ClassVar[bool] = True
    finite: ClassVar[bool] = False
    synchronizes: ClassVar[bool] = False

    @override
    def measure(self, losses: Tensor, weights: Tensor | None) -> Tensor:
        return mean_of(losses, weights)
