"""Structures given by a solver: any function that maximizes a linear function over vectors of zeros and ones."""

from __future__ import annotations

import multiprocessing
import pickle
import weakref
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Self, override

from lit_sparse.checks import FLAG, Count, ranges
from lit_sparse.errors import ConfigurationError, full_name
from lit_sparse.ground.torch_internals import on_values
from lit_sparse.structures.base import Structure, best_by_search

__all__ = ["FromSolver"]

#: How far from 0 and 1 a solver's numbers may be, because integer programs are solved up to a tolerance.
INTEGRAL = 1e-4
#: How much worse than another known solution one may be, in units of the sum of all scores' sizes: a solver's own tolerance.
WORSE = 1e-3
MOST_PROCESSES, MOST_KNOWN = 1000, 1_000_000

_task: tuple[Callable[..., Any], bool]  # of a worker process


@ranges(size=Count(), batched=FLAG, processes=Count(0, MOST_PROCESSES), cache=Count(0, MOST_KNOWN))
class FromSolver(Structure):
    """Structure of the solutions of a combinatorial problem, given as a function that returns the best one for scores.

    ``solve(scores)`` gets scores (size,), a float64 array, and returns the solution with the largest total score, a vector
    (size,) of zeros and ones. The set of solutions must not change. Forbidden entries get scores so negative that no
    solution has a one there unless all have one. Solutions are checked, and compared with each other to refuse a function
    that minimizes.

    With ``cache``, SparseMAP searches the last solutions first, and calls the function only for rows that none of them
    improves. The marginals are still exact within ``tol``, but the probabilities, which are not unique, and the rounding of
    marginals then depend on earlier calls.

    Args:
        solve: the function; it must be at the top level of a module if ``processes`` is not 0.
        size: number of entries.
        batched: whether ``solve`` gets all rows (B, size) at once and returns (B, size).
        processes: number of worker processes that share the rows; 0 to solve in this process.
        cache: number of solutions to keep; 0 for none.

    Raises:
        ConfigurationError: if an argument is invalid, or ``solve`` cannot be sent to processes.

    Example:
        >>> import torch
        >>> def solve(scores):  # one of the first two entries, one of the others
        ...     best = np.zeros(4)
        ...     best[[scores[:2].argmax(), 2 + scores[2:].argmax()]] = 1
        ...     return best
        >>> FromSolver(solve, 4).maximize(torch.tensor([[0.1, 0.3, -0.2, -0.5]])).tolist()
        [[0.0, 1.0, 1.0, 0.0]]
    """

    def __init__(
        self,
        solve: Callable[[np.ndarray], Any],
        size: int,
        *,
        batched: bool = False,
        processes: int = 0,
        cache: int = 0,
    ) -> None:
        self.solve, self._size = solve, size
        self.batched, self.processes, self.cache = batched, processes, cache
        self._known: dict[bytes, None] = {}  # the last solutions, the oldest first
        self._executor: ProcessPoolExecutor | None = None
        if self.processes:
            try:
                pickle.dumps(solve)
            except Exception as error:  # whatever the parts of the function raise
                raise ConfigurationError(
                    f"Expected a function that can be sent to processes but: {error}. Define it at the top level of a module,"
                    " or use processes=0."
                ) from error

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests: all bit vectors of length 4, solved row by row, and all rows at once."""
        return [cls(_positive, 4), cls(_positive, 4, batched=True, cache=5)]

    def __getstate__(self) -> dict[str, Any]:
        """Return the arguments, without solutions and processes."""
        return {**vars(self), "_known": {}, "_executor": None}

    @property
    @override
    def size(self) -> int:
        return self._size

    @on_values
    def maximize(self, scores: Tensor, potentials: Tensor | None = None) -> Tensor:
        """Return the solver's solution for each row of scores (B, size), after checking it.

        Raises:
            ConfigurationError: if a solution is not a binary vector of the right length, is worse than another known one,
                or has a one at a forbidden entry.
        """
        return best_by_search(self, scores, potentials, self._search, "a solution", "Forbid fewer entries.")

    @override
    def recall(self, scores: Tensor) -> Tensor | None:
        rows, known = _finite(scores.double().cpu().numpy()), self._matrix()
        if not len(known):
            return None
        best = known[(rows @ known.T).argmax(-1)]
        return None if ((best > 0) & (scores == -torch.inf).cpu().numpy()).any() else torch.from_numpy(best).to(scores)

    def _search(self, scores: np.ndarray) -> tuple[Any, Any]:
        rows = _finite(scores)
        found = self._solved(rows) if len(rows) else np.zeros(rows.shape, np.uint8)
        kept = self._known
        for key in map(np.ndarray.tobytes, found):
            kept.pop(key, None)
            kept[key] = None
        if len(rows):
            self._compare(rows, found)
        for key in list(kept)[: max(len(kept) - self.cache, 0)]:
            kept.pop(key, None)  # another thread may have been there
        return found, ~((found > 0) & (scores == -np.inf)).any(-1)

    def _matrix(self) -> np.ndarray:
        """Return the known solutions (n, size) float64."""
        return np.frombuffer(b"".join(list(self._known)), np.uint8).reshape(-1, self._size).astype(np.float64)

    def _compare(self, rows: np.ndarray, found: np.ndarray) -> None:
        """Refuse solutions that are worse than others."""
        lost = (rows @ self._matrix().T).max(-1, initial=-np.inf) - (rows * found).sum(-1)
        worst = int((lost / np.maximum(np.abs(rows).sum(-1), 1e-300)).argmax())
        if lost[worst] > WORSE * np.abs(rows[worst]).sum():
            raise ConfigurationError(
                f"Expected `solve` to return the solution with the largest total score but its solution for row {worst} has"
                f" {lost[worst]:.3g} less than another one that it has returned. If it minimizes, give it the negated scores."
            )

    def _solved(self, rows: np.ndarray) -> np.ndarray:
        """Return the solutions for finite scores, in this process or in others."""
        if not self.processes:
            return _solutions((self.solve, self.batched), rows)
        if self._executor is None:
            self._executor = ProcessPoolExecutor(
                self.processes, multiprocessing.get_context("spawn"), _begin, (self.solve, self.batched)
            )
            weakref.finalize(self, self._executor.shutdown, wait=False)
        try:
            return np.concatenate(list(self._executor.map(_work, np.array_split(rows, min(self.processes, len(rows))))))
        except BrokenProcessPool as error:
            self._executor = None
            raise ConfigurationError(
                "Expected processes that call `solve` but one ended early. Its own messages are above. A script needs its"
                ' calls below `if __name__ == "__main__":`, and the function must be importable; or use processes=0.'
            ) from error


def _begin(solve: Callable[..., Any], batched: bool) -> None:
    global _task
    _task = solve, batched


def _work(rows: np.ndarray) -> np.ndarray:
    return _solutions(_task, rows)


def _solutions(task: tuple[Callable[..., Any], bool], rows: np.ndarray) -> np.ndarray:
    """Return the checked solutions of a function, bytes (B, size)."""
    solve, batched = task
    return (
        _checked(solve(rows.copy()), rows.shape)
        if batched
        else np.stack([_checked(solve(row), row.shape) for row in rows.copy()])
    )


def _checked(found: Any, shape: tuple[int, ...]) -> np.ndarray:
    values = found.detach().cpu().numpy() if isinstance(found, Tensor) else found
    try:
        values = np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"Expected `solve` to return values of shape {shape} but got {full_name(found)}.") from error
    if values.shape != shape:
        raise ConfigurationError(f"Expected `solve` to return values of shape {shape} but got shape {values.shape}.")
    bits = values > 0.5
    if len(wrong := values[~(np.abs(values - bits) <= INTEGRAL)]):
        raise ConfigurationError(f"Expected `solve` to return zeros and ones but got {wrong[0]:.6g}.")
    return bits.astype(np.uint8)


def _finite(scores: np.ndarray) -> np.ndarray:
    """Return scores in which a forbidden entry costs more than all others together can gain."""
    allowed = scores > -np.inf
    sizes = np.where(allowed, np.abs(scores), 0.0).sum(-1, keepdims=True)
    return np.where(allowed, scores, -1.0 - sizes)


def _positive(scores: np.ndarray) -> np.ndarray:
    return scores > 0
