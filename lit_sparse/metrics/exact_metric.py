"""The base of all metrics: exact states, and torchmetrics' keyword arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from typing_extensions import Self, override

from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.arguments import KeepsArguments, checked

__all__ = ["ExactMetric"]


class ExactMetric(KeepsArguments, Metric):
    """Base class of metrics whose states keep their dtype when the module that holds the metric is cast.

    Otherwise ``module.to(torch.bfloat16)``, for example by ``precision="bf16-true"``, would sum in 8 bits, and a mean over
    more than some hundred examples would be wrong. In a ``MetricCollection`` it shares its states only with metrics of the
    same class and arguments.

    The arguments are torchmetrics' keyword arguments of every metric, which a subclass accepts as ``**options``.
    """

    full_state_update = False
    is_differentiable = False
    higher_is_better: bool | None = None

    def __init__(
        self,
        *,
        compute_on_cpu: bool = False,
        dist_sync_on_step: bool = False,
        process_group: Any = None,
        dist_sync_fn: Callable[..., Any] | None = None,
        distributed_available_fn: Callable[..., Any] | None = None,
        sync_on_compute: bool = True,
        compute_with_cache: bool = True,
    ) -> None:
        super().__init__(
            compute_on_cpu=compute_on_cpu,
            dist_sync_on_step=dist_sync_on_step,
            process_group=process_group,
            dist_sync_fn=dist_sync_fn,
            distributed_available_fn=distributed_available_fn,
            sync_on_compute=sync_on_compute,
            compute_with_cache=compute_with_cache,
        )
        # A collection merges metrics whose states have equal names and, after the first update, equal values. The name of an
        # empty list, which is never gathered, tells them apart.
        made = f"{type(self).__module__}.{type(self).__qualname__} {sorted(self._arguments.items())}"
        name = f"made_by_{blake2b(made.encode(), digest_size=8).hexdigest()}"
        self.add_state(name, [], dist_reduce_fx="sum")

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "update" in vars(cls) and cls.__module__.startswith("lit_sparse."):
            cls.update = _of_numbers(cls.update)  # type: ignore[method-assign]

    @override
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Add a batch and return the metric's value on it; after an error, the metric is unchanged."""
        before = {**vars(self), **self._copy_state_dict()}
        try:
            return super().forward(*args, **kwargs)
        except Exception:
            vars(self).update(before)
            raise

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


def _of_numbers(update: Callable[..., None]) -> Callable[..., None]:
    """Return an ``update`` that refuses tensors without real numbers to sum, and arguments of another type."""
    other = checked(update)

    @wraps(update)
    def called(self: ExactMetric, *args: Any, **options: Any) -> None:
        values = (*args, *options.values())
        tensors = [value for value in values if isinstance(value, Tensor)]
        for value in tensors:
            if value.layout != torch.strided or value.is_nested or value.is_meta or value.is_complex():
                raise ConfigurationError(
                    f"Expected {type(self).__name__} to get real numbers in dense tensors but got {value.dtype} {value.layout}"
                    f" on {value.device}. Convert them."
                )
        (update if len(tensors) == len(values) else other)(self, *args, **options)

    return called
