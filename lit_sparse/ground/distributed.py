"""Communication between the processes of a distributed run.

All functions also work with a single process, and with builds of torch that lack ``torch.distributed``: the rank is then 0, and
a process gets its own values back.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from lit_sparse.errors import ConfigurationError

__all__ = [
    "SHARD_NAMES",
    "broadcast",
    "gather",
    "gather_objects",
    "gather_to_first",
    "gather_unequal",
    "group_for_run",
    "is_first",
    "is_lost",
    "join_launched",
    "rank",
    "reduce",
    "shard",
    "unflatten",
    "world_size",
]

Value = TypeVar("Value")
#: Classes in the list of the tensors of a sharded checkpoint.
SHARD_NAMES = {
    "torch.distributed.checkpoint.filesystem._StorageInfo",
    *(
        f"torch.distributed.checkpoint.metadata.{name}"
        for name in (
            *("BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta"),
            *("TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING"),
        )
    ),
}


def _has_group() -> bool:
    """Return whether a process group is initialized; ``is_initialized`` is absent from builds without distributed."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


@contextmanager
def group_for_run() -> Iterator[None]:
    """Provide a context that destroys, when it ends without an error, the process group initialized within it.

    A gloo group that still exists at the interpreter's exit may abort the process. Lightning destroys only NCCL groups.
    """
    had_group = _has_group()
    yield
    if _has_group() and not had_group:
        torch.distributed.destroy_process_group()


def join_launched() -> None:
    """Initialize the process group if a launcher such as ``torchrun`` has set torch's variables and no group exists."""
    if torch.distributed.is_available() and not _has_group() and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        torch.distributed.init_process_group("gloo")


def is_lost(error: BaseException) -> bool:
    """Return whether an error of a distributed run means that another process has ended or cannot be reached."""
    if not _has_group():
        return False
    return isinstance(error, torch.distributed.DistError) or (isinstance(error, RuntimeError) and "/gloo/" in str(error))


def rank(group: Any = None) -> int:
    """Return the rank of this process in a group; None for all processes."""
    return torch.distributed.get_rank(group) if _has_group() else 0


def world_size(group: Any = None) -> int:
    """Return the number of processes in a group; None for all processes.

    Example:
        >>> world_size(), rank(), is_first()
        (1, 0, True)
    """
    return torch.distributed.get_world_size(group) if _has_group() else 1


def is_first(group: Any = None) -> bool:
    """Return whether this process is the first of a group; None for all processes."""
    return rank(group) == 0


def reduce(value: Tensor, group: Any = None) -> Tensor:
    """Return the sum of a tensor over processes, on each of them; all must call it with tensors of one shape.

    Args:
        value: any tensor; it is not changed.
        group: process group; None for all processes.
    """
    if world_size(group) == 1:
        return value
    total = value.clone(memory_format=torch.contiguous_format)
    torch.distributed.all_reduce(total, group=group)
    return total


def broadcast(value: Tensor, group: Any = None) -> Tensor:
    """Return the first process's tensor on each process of a group; all must call it with tensors of one shape.

    Args:
        value: any tensor; it is not changed.
        group: process group; None for all processes.
    """
    if world_size(group) == 1:
        return value
    received = value.clone(memory_format=torch.contiguous_format)
    first = 0 if group is None else torch.distributed.get_global_rank(group, 0)
    torch.distributed.broadcast(received, first, group=group)
    return received


def gather(value: Tensor, group: Any = None) -> list[Tensor]:
    """Return the tensors of all processes, by rank, on each process; all must call it with tensors of one shape.

    Args:
        value: any tensor; gradients do not flow to other processes.
        group: process group; None for all processes.
    """
    if world_size(group) == 1:
        return [value]
    parts = [torch.empty_like(value, memory_format=torch.contiguous_format) for _ in range(world_size(group))]
    torch.distributed.all_gather(parts, value.contiguous(), group=group)
    return parts


def gather_unequal(value: Tensor, group: Any = None) -> list[Tensor]:
    """Return the tensors (N, ...) of all processes, by rank, on each process; N may differ, and may be zero.

    Args:
        value: (N, ...).
        group: process group; None for all processes.
    """
    if world_size(group) == 1:
        return [value]
    sizes = [int(size) for size in gather(torch.tensor(len(value), device=value.device), group)]
    padded = nn.functional.pad(value, (*(0, 0) * (value.dim() - 1), 0, max(sizes) - len(value)))
    return [part[:size] for part, size in zip(gather(padded, group), sizes, strict=True)]


def gather_objects(value: Value) -> list[Value]:
    """Return the objects of all processes, by rank, on each process; they are pickled, so tensors should be on the CPU."""
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    torch.distributed.all_gather_object(values, value)
    return values


def gather_to_first(value: Value) -> list[Value]:
    """Return the objects of all processes, by rank, on the first process, and an empty list on the others."""
    if world_size() == 1:
        return [value]
    values: list[Any] | None = [None] * world_size() if is_first() else None
    torch.distributed.gather_object(value, values)
    return values or []


def shard(module: nn.Module, mesh: Any, methods: Iterable[str]) -> None:
    """Shard the weights of a module over the processes of a mesh; ``forward`` and methods still compute with whole weights.

    Args:
        module: the module, changed in place.
        mesh: device mesh of Lightning's ModelParallelStrategy.
        methods: names of methods besides ``forward`` that compute with the weights.

    Raises:
        ConfigurationError: for a mesh with tensor parallelism.
    """
    if (size := mesh["tensor_parallel"].size()) > 1:
        raise ConfigurationError(
            f"Expected `tensor_parallel_size` of ModelParallelStrategy to be 1 but got {size}. Set it to 1, and"
            " `data_parallel_size` to the number of processes."
        )
    from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

    if not isinstance(module, FSDPModule):
        whole = {value for value in module.parameters() if value.dim() == 0 and not value.requires_grad}  # counts and means
        fully_shard(module, mesh=mesh["data_parallel"], ignored_params=whole)
        for name in methods:
            register_fsdp_forward_method(module, name)


def unflatten(flat: dict[str, Any], places: dict[str, Any]) -> dict[str, Any]:
    """Return the nested dicts and lists of a sharded checkpoint, given its values by name and each name's path."""
    from torch.distributed.checkpoint._nested_dict import unflatten_state_dict

    return dict(unflatten_state_dict(flat, places))
