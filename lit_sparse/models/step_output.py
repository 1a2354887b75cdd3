"""The output of one step of a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

__all__ = ["StepOutput"]


@dataclass
class StepOutput:
    """Losses and measurements of one batch, from which the base class computes the objective.

    Args:
        losses: (R,) losses, whose risk training minimizes. R is the batch size B unless ``example_index`` is given.
        objective: scalar to minimize in training, for a model whose objective is not the risk of ``losses``.
        example_index: (R,) position in the batch of the example that each loss belongs to.
        transport_cost: (R,) cost of the perturbed inputs, from :meth:`LitSparseModule.perturbed`, subtracted from the losses.
        penalty: scalar term of the objective and the logged loss, such as a prior's.
        per_example: name -> (M,) values, whose exact mean is logged as ``{stage}/{name}``; ``loss`` is ``losses`` by default.
        support_size: (N,) int64, number of values with probability above zero, per decision.
        decoder_calls: (N,) int64, number of decoder evaluations, per decision.
        num_allowed: (N,) int64, number of entries that are not masked, per decision.
        groups: (N,) int64, number of groups of equal neighbours, per decision.
        artifacts: tensors and texts for callbacks to draw, in validation and test.
    """

    losses: Tensor | None = None
    objective: Tensor | None = None
    example_index: Tensor | None = None
    transport_cost: Tensor | None = None
    penalty: Tensor | None = None
    per_example: dict[str, Tensor] = field(default_factory=dict)
    support_size: Tensor | None = None
    decoder_calls: Tensor | None = None
    num_allowed: Tensor | None = None
    groups: Tensor | None = None
    artifacts: dict[str, Any] = field(default_factory=dict)
