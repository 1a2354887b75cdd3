"""Checks of what modules are called with, so that a wrong tensor is named instead of a product of matrices within."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lit_sparse.checks import FLOATS, check_mask, check_tensor, has_values
from lit_sparse.errors import ConfigurationError, full_name
from lit_sparse.ground.tensors import is_dense, shown
from lit_sparse.ground.torch_internals import autocast_enabled

__all__ = [
    *("check_floating", "check_ids", "check_input", "check_largest", "check_lengths", "check_sentences", "check_state"),
    "embedded",
]

#: Dtypes of lengths and of levels.
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def check_floating(name: str, given: object) -> None:
    """Raise an error unless a value is a floating tensor.

    Raises:
        ConfigurationError: if it is not.
    """
    check_tensor(given, f"floating {name}", dtypes=FLOATS, advice=" Convert them.")


def check_input(name: str, given: Tensor, shape: tuple[int | str, ...], weight: Tensor | None) -> None:
    """Raise an error unless a tensor has a shape and the dtype of a weight; under autocast any floating dtype will do.

    Args:
        name: name of the argument in the message.
        given: tensor to check.
        shape: sizes, and letters for those that may be any; a first ``"..."`` stands for any dimensions.
        weight: weight that the tensor is multiplied by; if it is quantized or None, any floating or quantized
            dtype will do.

    Raises:
        ConfigurationError: if it is no such tensor.
    """
    _check_shape(name, given, shape)
    if isinstance(weight, Tensor) and weight.dtype in FLOATS:  # quantized layers pack it, or store it in bytes
        if given.dtype != weight.dtype and not (given.dtype in FLOATS and autocast_enabled(given.device)):
            raise ConfigurationError(
                f"Expected {name} of {weight.dtype}, as the weights are, but got {given.dtype}. Convert one."
            )
    elif given.dtype not in FLOATS and not given.is_quantized:
        raise ConfigurationError(f"Expected {name} in a floating tensor but got {given.dtype}.")


def _check_shape(name: str, given: Tensor, shape: tuple[int | str, ...]) -> None:
    if not isinstance(given, Tensor) or not is_dense(given):
        raise ConfigurationError(f"Expected {name} in a dense torch tensor but got {shown(given)}.")
    sizes = shape[1:] if shape[0] == "..." else shape
    got = given.shape[given.dim() - len(sizes) :] if shape[0] == "..." else given.shape
    fits = given.dim() >= len(sizes) and len(got) == len(sizes)
    if not fits or any(isinstance(size, int) and size != found for size, found in zip(sizes, got, strict=True)):
        raise ConfigurationError(f"Expected {name} ({', '.join(map(str, shape))}) but got shape {tuple(given.shape)}.")


def check_state(what: str, given: dict[str, Tensor], shapes: dict[str, tuple[int | str, ...]], weight: Tensor) -> None:
    """Raise an error unless a dict of tensors, such as a memory, has the entries of one model and batch, and maybe others.

    Args:
        what: name of the dict in the message.
        given: dict to check.
        shapes: name -> shape; each letter stands for one size. ``mask`` is boolean, others are as for :func:`check_input`.
        weight: a weight of the model.

    Raises:
        ConfigurationError: naming what is wrong.
    """
    if not isinstance(given, dict) or not shapes.keys() <= given.keys():
        got = f"one with {', '.join(map(str, given))}" if isinstance(given, dict) else full_name(given)
        raise ConfigurationError(f"Expected the {what} of this model, with {', '.join(shapes)}, but got {got}.")
    sizes: dict[str, int] = {}
    for name, letters in shapes.items():
        entry = f"{name!r} of the {what}"
        shape = tuple(sizes.get(size, size) if isinstance(size, str) else size for size in letters)
        if name == "mask":
            _check_shape(entry, given[name], shape)
            check_mask(given[name], "a position is allowed")
        else:
            check_input(entry, given[name], shape, weight)
        sizes |= {size: length for size, length in zip(letters, given[name].shape, strict=True) if isinstance(size, str)}


def check_sentences(name: str, given: Tensor, lengths: Tensor, width: int, weight: Tensor) -> None:
    """Raise an error unless vectors (B, L, width) fit a weight and have a length (B,) each; see :func:`check_input`.

    Raises:
        ConfigurationError: naming what is wrong.
    """
    check_input(name, given, ("B", "L", width), weight)
    check_lengths(lengths, given.shape[1])
    if lengths.shape != given.shape[:1]:
        raise ConfigurationError(
            f"Expected lengths ({len(given)},), one for each of the {name}, but got {tuple(lengths.shape)}."
        )


def check_lengths(lengths: Tensor, size: int) -> None:
    """Raise an error unless the lengths (B,) of padded rows are integers in 0 .. size.

    Raises:
        ConfigurationError: naming what is wrong.
    """
    check_tensor(lengths, "lengths (B,) that are integers", shape=(None,), dtypes=INTEGERS)
    if lengths.is_cpu and has_values(lengths):
        check_largest("lengths", lengths, size, ", the padded length,")


def check_ids(name: str, given: Tensor, size: int) -> None:
    """Raise an error unless a tensor holds integers in 0 .. size - 1; their values are read on a CPU alone.

    Raises:
        ConfigurationError: naming the least and the largest one.
    """
    check_tensor(given, f"{name} in a tensor of torch.int64", dtypes=(torch.int64, torch.int32))
    if given.is_cpu and has_values(given):
        check_largest(name, given, size - 1)


def check_largest(name: str, given: Tensor, most: int, note: str = "", advice: str = "") -> None:
    """Raise an error unless integers are in 0 .. most.

    Args:
        name: name of the integers in the message.
        given: tensor to check.
        most: largest integer allowed.
        note: words after the range in the message, between commas.
        advice: end of the message, after a space.

    Raises:
        ConfigurationError: naming the least and the largest one.
    """
    if given.numel():
        least, largest = (int(end) for end in given.aminmax())
        if least < 0 or largest > most:
            raise ConfigurationError(f"Expected {name} in 0 .. {most}{note} but got {least} .. {largest}.{advice}")


def embedded(name: str, given: Tensor, embedding: nn.Module) -> Tensor:
    """Return the vectors of ids, which are checked if the embedding is torch's; see :func:`check_ids`."""
    if isinstance(embedding, nn.Embedding):
        check_ids(name, given, embedding.weight.shape[0])
    vectors: Tensor = embedding(given)
    return vectors
