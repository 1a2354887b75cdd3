"""The bases of all metrics: exact states and torchmetrics' keyword arguments, and sums over inputs for generated text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import wraps
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from typing_extensions import Self, override

from lit_sparse.checks import REALS, check_tensor
from lit_sparse.errors import ConfigurationError, DataError, full_name
from lit_sparse.ground.arguments import KeepsArguments, checked
from lit_sparse.kernels.row_sums import add_exactly

__all__ = ["ExactMetric", "TextMetric", "check_name", "check_texts"]


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
            if value.layout != torch.strided or value.is_nested or value.is_meta or value.dtype not in REALS:
                raise ConfigurationError(
                    f"Expected {type(self).__name__} to get real numbers in dense tensors but got {value.dtype} {value.layout}"
                    f" on {value.device}. Convert them."
                )
        (update if len(tensors) == len(values) else other)(self, *args, **options)

    return called


class TextMetric(ExactMetric, ABC):
    """Base class of metrics of generated text, computed from sums over inputs, whatever the batches and processes.

    A subclass defines the summands (:meth:`statistics`) and computes scores from the sums (:meth:`scores`). Texts stay on
    the CPU; the sums are on the metric's device. Sums in float64 store their rounding errors in a second row, so that they
    are rounded once, at the end.

    Args:
        columns: number of sums K.
        dtype: dtype of the sums, int64 or float64.
        options: keyword arguments of torchmetrics, such as ``sync_on_compute``.
    """

    higher_is_better: bool | None = True
    sums: Tensor
    seen: Tensor

    def __init__(self, columns: int, dtype: torch.dtype = torch.int64, /, **options: Any) -> None:
        super().__init__(**options)
        if dtype.is_floating_point:
            self.add_state("sums", torch.zeros(2, columns, dtype=dtype), dist_reduce_fx=_added)
        else:
            self.add_state("sums", torch.zeros(columns, dtype=dtype), dist_reduce_fx="sum")
        # Inputs, references, and squares of the references per input, which show whether that number is constant.
        self.add_state("seen", torch.zeros(3, dtype=torch.int64), dist_reduce_fx="sum")
        self._reported: tuple[int, list[int]] | None = None

    @abstractmethod
    def statistics(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Tensor:
        """Return the summands (N, K) of the metric for each input, on the CPU.

        Args:
            hypotheses: N >= 1 texts.
            references: references of each hypothesis, at least one.
        """

    @abstractmethod
    def scores(self, sums: Tensor, number: int) -> dict[str, float]:
        """Return the scores to log from the sums (K,); the first score is the main one.

        Args:
            sums: sums on the CPU; zeros with ``number`` = 1 if there are no inputs and only the keys matter.
            number: number of inputs N.
        """

    @abstractmethod
    def described(self, references: int | None) -> str:
        """Return the metric's signature for a number of references per input, None if that number varies."""

    def update(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> None:
        """Add hypotheses and their references.

        Args:
            hypotheses: N texts, which may be empty.
            references: references of each hypothesis, at least one; their number may differ between inputs.

        Raises:
            DataError: if an input has no reference, the numbers of inputs differ, or an item is not a text.
        """
        check_texts(hypotheses, references)
        self._reported = None
        if not hypotheses:
            return
        numbers = torch.tensor([len(some) for some in references])
        shape = (len(hypotheses), self.sums.shape[-1])
        what = f"`statistics` of {full_name(self)} to return a row per text, {shape},"
        summands = check_tensor(self.statistics(hypotheses, references), what, shape=shape).to(self.sums)
        self.sums = self.sums + summands.sum(0) if self.sums.ndim == 1 else add_exactly(torch.cat([self.sums, summands]))
        self.seen += torch.stack([torch.ones_like(numbers), numbers, numbers.square()]).sum(-1).to(self.seen)

    def compute(self) -> dict[str, Tensor]:
        """Return the scores by suffix of their log keys, as float64 scalars; NaN without inputs."""
        seen = self.seen.tolist()
        self._reported = (self.update_count, seen)  # numbers of all processes, for the signature
        scores = self.scores(self.totals.cpu(), max(seen[0], 1))
        if not isinstance(scores, dict):
            raise ConfigurationError(
                f"Expected `scores` of {full_name(self)} to return a dict of numbers but got {full_name(scores)}."
            )
        values = {key: value if seen[0] else torch.nan for key, value in scores.items()}
        return {key: torch.tensor(value, dtype=torch.float64, device=self.sums.device) for key, value in values.items()}

    @property
    def totals(self) -> Tensor:
        """The sums (K,) over all inputs, rounded once."""
        return self.sums if self.sums.ndim == 1 else self.sums[0]

    def reset(self) -> None:
        """Remove all inputs."""
        super().reset()
        self._reported = None

    @property
    def signature(self) -> str | None:
        """Signature of the settings that determine the scores, in sacrebleu's form; None without inputs.

        After :meth:`compute`, it describes the inputs of all processes; before that, only this process's inputs.
        """
        reported = self._reported
        number, total, squares = reported[1] if reported and reported[0] == self.update_count else self.seen.tolist()
        if not number:
            return None
        return self.described(total // number if number * squares == total**2 else None)  # equality in Cauchy-Schwarz


def _added(sums: Tensor) -> Tensor:
    """Return the sum, in two rows (2, K), of the sums (p, 2, K) of processes."""
    return add_exactly(sums.flatten(0, 1))


def check_texts(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    """Check that each hypothesis has references, and that all are texts.

    Raises:
        DataError: if an input has a wrong form.
    """
    for name, texts in (("hypotheses", hypotheses), ("references", references)):
        if isinstance(texts, str) or not isinstance(texts, Sequence):
            raise DataError(f"Expected `{name}` to be a list with one entry per input but got {type(texts).__name__}.")
    if len(hypotheses) != len(references):
        raise DataError(
            f"Expected references for each hypothesis but got {len(hypotheses)} hypotheses, references for {len(references)}."
        )
    for index, (hypothesis, some) in enumerate(zip(hypotheses, references, strict=True)):
        if not isinstance(hypothesis, str):
            raise DataError(f"Expected hypotheses[{index}] to be a str but got {type(hypothesis).__name__}.")
        if isinstance(some, str) or not isinstance(some, Sequence):
            raise DataError(
                f"Expected references[{index}] to be a list of str, such as ['the only one'], but got {type(some).__name__}."
            )
        if not some:
            raise DataError(f"Expected at least one reference for each hypothesis but references[{index}] is empty.")
        for number, reference in enumerate(some):
            if not isinstance(reference, str):
                raise DataError(f"Expected references[{index}][{number}] to be a str but got {type(reference).__name__}.")


def check_name(name: str, value: str) -> str:
    """Return a name for log keys, after a check.

    Raises:
        ConfigurationError: if it is not a nonempty text.
    """
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"Expected argument `{name}` to be a name for log keys but got {value!r}.")
    return value
