"""The output of one step of a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from lit_sparse.errors import ConfigurationError, full_name

__all__ = ["StepOutput"]


@dataclass
class StepOutput:
    """Output of a model's step: losses and measurements of one batch, from which the objective is computed.

    Args:
        losses: (R,) losses, whose risk is minimized in training. R is the batch size B unless ``example_index`` is given.
        objective: scalar to minimize in training, for a model whose objective is not the risk of ``losses``.
        example_index: (R,) position in the batch of each loss's example.
        transport_cost: (R,) cost of the perturbed inputs, from :meth:`LitSparseModule.perturbed`, subtracted from the
            losses.
        penalty: scalar term of the objective and the logged loss, such as a prior's.
        per_example: name -> (M,) values, whose exact mean is logged as ``{stage}/{name}``; ``loss`` is ``losses`` by
            default.
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

    def check_measurements(self, model: object) -> None:
        """Check that each measurement has one number for each example or decision.

        Args:
            model: model whose step returned them.

        Raises:
            ConfigurationError: if a measurement has a wrong shape, or is not a tensor.
        """
        if not isinstance(self.per_example, dict):
            raise ConfigurationError(
                f"Expected `per_example` of {full_name(model)} to be a dict of tensors but got {full_name(self.per_example)}."
            )
        counts = {name: getattr(self, name) for name in ("support_size", "decoder_calls", "num_allowed", "groups")}
        for name, values in (self.per_example | {name: count for name, count in counts.items() if count is not None}).items():
            if not isinstance(values, Tensor) or values.ndim != 1:
                got = tuple(values.shape) if isinstance(values, Tensor) else full_name(values)
                raise ConfigurationError(
                    f"Expected {name!r} in the step's output of {full_name(model)} to be a tensor (M,) but got {got}."
                )
