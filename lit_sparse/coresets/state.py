"""The state of a selection in a file, from which a killed selection continues."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import torch
from torch import Tensor

from lit_sparse.checks import Count, ranges
from lit_sparse.coresets.vectors import Vectors
from lit_sparse.errors import CheckpointError, ConfigurationError
from lit_sparse.ground.files import replaced
from lit_sparse.ground.state_checks import (
    ANY,
    COUNT,
    NUMBER,
    DictOf,
    Kind,
    ListOf,
    at_most,
    check_state,
    entries,
    is_plain,
    same,
)
from lit_sparse.ground.stored import open_plain
from lit_sparse.runs.checkpoint_files import SUGGESTION
from lit_sparse.runs.torch_files import read_torch_file

__all__ = ["Kept", "Resumable", "SelectionState", "indices", "length_of"]

ANEW = "Remove the file to begin anew."
#: Largest difference of the vectors' sum, as a fraction of it, in a continued selection, due to rounding.
ROUNDING = 1e-6
LEAST = Kind("a number >= 0", lambda found: isinstance(found, float) and found >= 0)
FINITE = Kind("a plain tensor of finite numbers", lambda value: is_plain(value) and bool(value.isfinite().all()))
#: Norms that are summed at a time.
CHUNK = 2**20


class Resumable(Protocol):
    """Protocol of the variables of a loop whose state can be stored and restored."""

    def state_dict(self) -> dict[str, Any]:
        """Return the variables as tensors, numbers, text, lists and dicts."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the variables from a stored state."""

    def state_example(self, state: dict[str, Any], size: int) -> Any:
        """Return an example of the state of a selection from ``size`` vectors, against which a stored state is checked."""


class Kept(SimpleNamespace):
    """Resumable variables of a loop: attributes that are tensors, numbers >= 0, lists of these, or tuples of tensors.

    A tuple begins with a support, whose indices its empty tensors belong to.

    Example:
        >>> here = Kept(weights=torch.zeros(3), trace=[])
        >>> here.load_state_dict({"weights": torch.ones(3), "trace": [1.5]})
        >>> here.trace
        [1.5]
    """

    def state_dict(self) -> dict[str, Any]:
        """Return the variables as a dict."""
        return {name: (*value,) if isinstance(value, tuple) else value for name, value in vars(self).items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the variables from a stored state; tensors go to the devices of the present ones."""
        for name, value in state.items():
            before = getattr(self, name)
            if isinstance(before, tuple):
                setattr(self, name, type(before)(*(part.to(own) for part, own in zip(value, before, strict=True))))
            else:
                setattr(self, name, value.to(before) if isinstance(before, Tensor) else value)

    def state_example(self, state: dict[str, Any], size: int) -> Any:
        """Return an example of the variables' state, against which a stored state is checked.

        Lists and empty tensors may grow, and there are as many weights as indices.
        """
        support = state.get("indices", state.get("support"))
        example: dict[str, Any] = {}
        for name, value in vars(self).items():
            if name in ("indices", "support"):
                example[name] = indices(size, value)
            elif name == "rounds":
                example[name] = ListOf(Kind("indices and as many weights", lambda pair: _is_round(pair, size)))
            elif isinstance(value, tuple):
                first = next(iter(state[name]), None) if isinstance(state.get(name), list | tuple) else None
                example[name] = (indices(size, value[0]), *(_grown(part, first) for part in value[1:]))
            elif isinstance(value, float):
                example[name] = LEAST
            else:
                example[name] = ListOf(NUMBER) if isinstance(value, list) else _grown(value, support)
        return example


def _grown(value: Any, support: Any) -> Any:
    """Return an example of a variable: an empty tensor becomes as long as a stored support."""
    return value.new_zeros(length_of(support)) if isinstance(value, Tensor) and value.shape == (0,) else value


def _is_round(pair: Any, size: int) -> bool:
    if not isinstance(pair, list | tuple) or len(pair) != 2 or not indices(size, torch.empty(0)).holds(pair[0]):
        return False
    return isinstance(pair[1], Tensor) and pair[1].is_floating_point() and pair[1].shape == (length_of(pair[0]),)


def indices(size: int, like: list[int] | Tensor, most: int | None = None) -> Kind:
    """Return an example of distinct indices of ``size`` vectors, to check a state against.

    Args:
        size: number of vectors.
        like: an object of the type that the indices have: a list, or a tensor (n,) int64.
        most: largest number of indices.
    """

    def holds(found: Any) -> bool:
        if type(found) is not type(like) or length_of(found) > (size if most is None else most):
            return False
        if isinstance(found, Tensor):
            found = found.tolist() if found.dtype == torch.int64 and found.dim() == 1 else None
        whole = isinstance(found, list) and all(type(index) is int and 0 <= index < size for index in found)
        return whole and len(set(found)) == len(found)

    return Kind(f"different indices in 0 .. {size - 1}", holds)


def length_of(found: Any) -> int:
    """Return the length of a stored list or tensor; 0 for any other object."""
    return len(found) if isinstance(found, list) or (isinstance(found, Tensor) and found.dim()) else 0


@ranges(every=Count())
class SelectionState:
    """File to which a selection writes its state now and then, so that an interrupted selection can continue.

    Args:
        path: the file. A selection continues from it if it exists, and removes it at the end.
        every: number of steps between two writes.

    Raises:
        ConfigurationError: unless ``every`` is positive.
    """

    def __init__(self, path: str | Path, *, every: int = 10) -> None:
        self.path = Path(path)
        self.every = every
        self._loops = self._steps = 0

    def open(self, vectors: Vectors, problem: dict[str, Any], generator: torch.Generator) -> None:
        """Begin a selection, reading its state from the file if there is one.

        Args:
            vectors: vectors to select from; among several processes, the first one reads and writes.
            problem: numbers and text that a resumed selection must have in common with the interrupted one.
            generator: source of random choices.

        Raises:
            CheckpointError: if the file is damaged.
            ConfigurationError: if the file belongs to another selection.
        """
        self._vectors, self._generator, self._loops, self._steps = vectors, generator, 0, 0
        self._problem = {**problem, "shape": list(vectors.shape), "dtype": str(vectors.dtype)}
        self._order = _order(vectors.norms)
        self._found: dict[str, Any] | None = None
        content = _content_of(self.path) if vectors.is_first else b""
        size = int(vectors.agree(torch.tensor(-1 if content is None else len(content))))
        if size < 0:  # on all processes
            raise CheckpointError(f"Expected {str(self.path)!r} to be a plain file that can be read but it is not. {ANEW}")
        if not size:
            return
        shared = torch.frombuffer(bytearray(content) if content else bytearray(size), dtype=torch.uint8)
        content = vectors.agree(shared).cpu().numpy().tobytes()
        try:
            self._found = read_torch_file(io.BytesIO(content), repr(str(self.path)))
        except CheckpointError as error:
            raise CheckpointError(str(error).replace(SUGGESTION, ANEW)) from error
        if not isinstance(self._found, dict) or not {"problem", "total", "order", "generator"} <= self._found.keys():
            raise CheckpointError(f"Expected {str(self.path)!r} to be the state of a selection. {ANEW}")
        example = {"problem": DictOf(ANY), "total": ANY, "order": 0.0, "loop": COUNT, "step": COUNT}
        self._check("", self._found, {**example, "generator": generator.get_state(), "state": DictOf(ANY)})
        problems = self._problem, self._found["problem"]
        others = [name for name in {**problems[0], **problems[1]} if not same(problems[1].get(name), problems[0].get(name))]
        total = vectors.total.cpu()
        if not others:
            self._check("total", self._found["total"], total)
        if not others and float((self._found["total"] - total).norm()) > ROUNDING * float(total.norm()):
            others = ["sum of the vectors"]
        tolerance = ROUNDING * float(vectors.norms.sum(dtype=torch.float64))
        if not others and abs(self._found["order"] - self._order) > tolerance:
            others = ["order of the vectors"]
        if others:
            raise ConfigurationError(
                f"Expected the state {str(self.path)!r} of this selection but got the state of a selection with a different"
                f" {others[0]}. Remove the file to begin anew, or continue with the options and data of the killed selection."
            )
        try:
            generator.set_state(self._found["generator"])
        except RuntimeError as error:
            raise CheckpointError(f"Expected {str(self.path)!r} to hold the state of a generator: {error}. {ANEW}") from error

    @property
    def is_new(self) -> bool:
        """Whether no state existed when the selection began."""
        return self._found is None

    def begin(self, here: Resumable, number: int) -> int | None:
        """Begin the next loop of the selector, restoring its variables if the selection was interrupted here or later.

        Args:
            here: variables of the loop.
            number: maximum number of its steps.

        Returns:
            The number of steps already done, or None if the loop had ended.

        Raises:
            CheckpointError: if the state does not match this loop.
        """
        self._loops += 1
        if self._found is None or self._found["loop"] < self._loops:
            return 0
        state = self._found["state"]
        self._check("state", state, here.state_example(state, self._vectors.shape[0]))
        here.load_state_dict(state)
        if self._found["loop"] > self._loops:
            return None
        self._check("step", self._found["step"], at_most(number))
        return int(self._found["step"])

    def keep(self, step: int, here: Resumable) -> None:
        """Write the state to the file, if enough steps were done since the last time.

        Args:
            step: number of steps of the loop done so far.
            here: variables of the loop.
        """
        self._steps += 1
        if self._steps % self.every or not self._vectors.is_first:
            return
        problem = {"problem": self._problem, "total": self._vectors.total.cpu(), "order": self._order}
        place = {"loop": self._loops, "step": step, "generator": self._generator.get_state()}
        with replaced(self.path, "wb") as file:
            torch.save({**problem, **place, "state": here.state_dict()}, file)

    def close(self) -> None:
        """Remove the file of the state at the end of a selection.

        Raises:
            CheckpointError: if the state had more loops than the selection.
        """
        if self._found is not None:
            self._check("loop", self._found["loop"], at_most(self._loops, 1))
        if self._vectors.is_first:
            self.path.unlink(missing_ok=True)

    def _check(self, place: str, found: Any, example: Any) -> None:
        source = repr(str(self.path))
        for name, value in entries(place, found):
            if isinstance(value, Tensor):
                check_state(source, name.lstrip("."), value, FINITE, ANEW)
        check_state(source, place, found, example, ANEW)


def _content_of(path: Path) -> bytes | None:
    """Return the content of a file, nothing if there is no file, and None if it cannot be read."""
    try:
        with open_plain(path, path.parent) as file:
            return file.read()
    except FileNotFoundError:
        return b""
    except OSError:
        return None


def _order(norms: Tensor) -> float:
    """Return a number that changes with the order of vectors of norms (N,), and by rounding with the norms."""
    order = 0.0
    for first in range(0, len(norms), CHUNK):  # so that memory does not grow with N
        part = norms[first : first + CHUNK].cpu().double()
        order += float(part @ torch.arange(first, first + len(part), dtype=torch.float64).cos())
    return order
