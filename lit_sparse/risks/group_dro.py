"""The worst group of examples, with group weights that are learned online."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Self, override

from lit_sparse.checks import FEATURES, POSITIVE, Number, check_count, ranges
from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.torch_internals import can_read_values
from lit_sparse.risks.base import Risk

__all__ = ["GroupDRO"]


@ranges(num_groups=FEATURES, step_size=POSITIVE, adjustment=Number(0.0, 1e12))
class GroupDRO(Risk):
    r"""Mean loss of the worst group of examples, by group weights q that grow with a group's loss.

    .. math:: \min_\theta \max_q \sum_g q_g L_g(\theta), \qquad q_g \propto q_g \exp(\eta L_g)

    where theta are the model's parameters, L_g is the mean loss of group g and eta the ``step_size``. Each training batch
    updates q first, and uses the new q in its objective. Groups without an example in the batch have the loss 0, in the
    update as well: they lose weight. A negative number marks an example of unknown group, which is ignored. The result is
    multiplied by the mean weight of the examples, so that one group gives :class:`lit_sparse.risks.Mean`. In distributed
    training, losses are gathered from all processes, and q is the same on each. Evaluation leaves q as it is.

    Args:
        num_groups: number of groups, which are numbered from 0.
        step_size: eta, per unit of loss, > 0. The larger it is, the sooner one group has all the weight.
        adjustment: C, the size adjustment: ``C / sqrt(n)`` is added to the loss of a group of n training examples, because
            small groups generalize worse. 0 for none.
        group_sizes: n of each group; needed with an ``adjustment``.
        group_key: entry of a batch with the group of each example; ``"label"`` for the worst class.

    Raises:
        ConfigurationError: for an argument outside its range, or a group that is not one of these.

    Source: Sagawa, Koh, Hashimoto & Liang (2020), Distributionally Robust Neural Networks for Group Shifts, algorithm 1 and
    equation 5, arXiv:1911.08731.

    Example:
        >>> import torch
        >>> risk = GroupDRO(2, step_size=0.5)
        >>> losses = torch.tensor([1.0, 3.0, 0.0], requires_grad=True)
        >>> for _ in range(100):
        ...     value = risk(losses, groups=torch.tensor([0, 0, 1]))
        >>> value.detach()  # the first group
        tensor(2.)
    """

    #: (G,) logarithms of q.
    log_weights: Tensor

    def __init__(
        self,
        num_groups: int,
        step_size: float = 0.01,
        *,
        adjustment: float = 0.0,
        group_sizes: list[int] | None = None,
        group_key: str = "group",
    ) -> None:
        super().__init__()
        self.num_groups, self.step_size, self.adjustment = num_groups, step_size, adjustment
        if adjustment and group_sizes is None:
            raise ConfigurationError("Expected `group_sizes` together with `adjustment` but got none. Give a size per group.")
        if group_sizes is not None and len(group_sizes) != num_groups:
            raise ConfigurationError(
                f"Expected argument `group_sizes` with {num_groups} sizes but got {len(group_sizes)}. Give one per group."
            )
        self.group_sizes = None if group_sizes is None else [check_count("group_sizes", size) for size in group_sizes]
        self.group_key = group_key
        self.register_buffer("log_weights", torch.zeros(num_groups).log_softmax(0))

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests: a small step, and a large step with a size adjustment."""
        return [cls(3), cls(2, 1.0, adjustment=2.0, group_sizes=[90, 10])]

    @override
    def measure(self, losses: Tensor, weights: Tensor | None, groups: Tensor) -> Tensor:
        groups = groups.long()  # a number that is compared with integers of 8 bits would become one of them
        self._check_groups(groups)
        weights = torch.ones_like(losses) if weights is None else weights
        member = groups.unsqueeze(1) == torch.arange(self.num_groups, device=groups.device)  # (B, G)
        mass = torch.where(member, weights.unsqueeze(1), 0.0).sum(0)
        there = mass > 0
        totals = torch.where(member, (weights * losses).unsqueeze(1), 0.0).sum(0)
        means = torch.where(there, totals / torch.where(there, mass, 1.0), 0.0)
        if self.group_sizes is not None:
            means = means + torch.where(there, self.adjustment * losses.new_tensor(self.group_sizes).rsqrt(), 0.0)
        log_weights = self.log_weights.to(losses.dtype)
        if self.training and losses.requires_grad and (torch.compiler.is_compiling() or can_read_values()):
            most = torch.finfo(losses.dtype).max / 4  # a step that overflows would leave NaN in q for ever
            step = (self.step_size * means.detach()).clamp(-most, most)
            log_weights = (log_weights + step).log_softmax(0).clamp_min(torch.finfo(self.log_weights.dtype).min)
            with torch.no_grad():
                self.log_weights.copy_(log_weights)
        known = member.any(1).sum().clamp_min(1)
        return (log_weights.exp() * means).sum() * mass.sum() / known

    def measurements(self) -> dict[str, float]:
        """Return the weight q of each group by name, such as ``group_weight_0``."""
        return {f"group_weight_{group}": value for group, value in enumerate(self.log_weights.exp().tolist())}

    def _check_groups(self, groups: Tensor) -> None:
        if not can_read_values() or groups.device.type != "cpu":
            return
        wrong = groups >= self.num_groups
        if bool(wrong.any()):
            row = int(wrong.nonzero()[0])
            raise ConfigurationError(
                f"Expected groups of at most {self.num_groups - 1} but got {int(groups[row])} for example {row}. Set"
                " `num_groups` to the number of groups."
            )
