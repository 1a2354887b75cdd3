"""Metrics whose states keep full precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torchmetrics import Metric
from typing_extensions import Self, override

__all__ = ["ExactMetric"]


class ExactMetric(Metric):
    """A metric whose states keep their dtype when the module that holds it is cast.

    Otherwise ``module.to(torch.bfloat16)``, for example by ``precision="bf16-true"``, would sum in 8 bits, and a mean over more
    than some hundred examples would be wrong.
    """

    full_state_update = False

    @property
    @override
    def update_called(self) -> bool:
        return True  # torchmetrics warns before the first update, but in distributed evaluation a process may get no batch

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> Self:
        """Move the states to another device without changing their dtype."""

        def moved(tensor: Tensor) -> Tensor:
            found = fn(tensor)
            return found if found.dtype == tensor.dtype else tensor.to(found.device)

        super()._apply(moved, *args, **kwargs)
        return self
