"""Limits on what is allocated while a model is built from a checkpoint, because its sizes come from the file."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode
from typing_extensions import Self

from lit_sparse.errors import CheckpointError

__all__ = ["Limits"]

FACTORIES = {
    *(torch.arange, torch.empty, torch.empty_strided, torch.eye, torch.full, torch.linspace, torch.logspace, torch.ones),
    *(torch.rand, torch.randint, torch.randn, torch.randperm, torch.zeros),
}
#: What a model may allocate beyond twice the tensors of its file: elements in one tensor, elements and parameters in all.
SPARE_ELEMENTS, SPARE_PARAMETERS = 2**24, 500


class Limits(NamedTuple):
    """Limits on the size of a model whose weights are in a file, so that a malicious description cannot fill the memory.

    Attributes:
        source: name of the file in messages.
        elements: maximum number of elements of one tensor, and of all parameters.
        parameters: maximum number of parameters.
    """

    source: str
    elements: int
    parameters: int

    @classmethod
    def of(cls, source: str, state: Mapping[str, Any]) -> Self:
        """Return limits for a model with given weights: about twice their number, and twice their size.

        Args:
            source: name of the file in messages.
            state: the weights by name, as read from a file.
        """
        tensors = [value for value in state.values() if isinstance(value, Tensor)]
        storages = [value.untyped_storage() for value in tensors if value.layout == torch.strided]
        sizes = {storage.data_ptr(): storage.nbytes() for storage in storages}
        return cls(source, 2 * sum(sizes.values()) + SPARE_ELEMENTS, 2 * len(tensors) + SPARE_PARAMETERS)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Raise an error, within a context, before more than the limits is allocated.

        Raises:
            CheckpointError: if a limit would be exceeded.
        """
        limited = _Limited(self)
        handle = register_module_parameter_registration_hook(limited.count)
        try:
            with limited:
                yield
        finally:
            handle.remove()

    def exceeded(self, what: str) -> CheckpointError:
        """Return the error for a model that is larger than the weights in its file."""
        return CheckpointError(
            f"Expected sizes in {self.source} that fit its weights but got a model with {what}. The file is damaged,"
            " or its description was changed. Use another checkpoint."
        )


class _Limited(TorchFunctionMode):
    """Refuses to make tensors that are too large, and counts the parameters and the copies that repeated layers make."""

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self.limits, self.thread = limits, threading.get_ident()
        self.parameters = self.elements = 0

    def count(self, module: nn.Module, name: str, parameter: Any) -> None:
        """Count a parameter that this thread gives a module."""
        if threading.get_ident() == self.thread and parameter is not None:
            self.add(0 if isinstance(parameter, nn.UninitializedParameter) else parameter.numel())

    def add(self, elements: int) -> None:
        """Count a parameter of so many elements."""
        self.parameters += 1
        self.elements += elements
        if self.parameters > self.limits.parameters:
            raise self.limits.exceeded(f"more than {self.limits.parameters:,} parameters")
        if self.elements > self.limits.elements:
            raise self.limits.exceeded(f"parameters of more than {self.limits.elements:,} elements")

    def __torch_function__(self, func: Any, types: Any, args: Iterable[Any] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in FACTORIES:
            options = {name: value for name, value in kwargs.items() if name not in ("generator", "out", "pin_memory")}
            elements = func(*args, **{**options, "device": "meta"}).numel()
            if elements > self.limits.elements:
                raise self.limits.exceeded(f"a tensor of {elements:,} elements")
        if func is Tensor.clone:
            self.add(next(iter(args)).numel())
        return func(*args, **kwargs)
