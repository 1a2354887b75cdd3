"""Shared checks of coreset selectors: functions that raise an AssertionError for a coreset selector that fails."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import Tensor

from lit_sparse.coresets import BlockVectors, Coreset, CoresetSelector, FileVectors, SelectionState, Vectors
from lit_sparse.errors import DataError
from lit_sparse.testing.checks import Checks, check_copies, refuses

__all__ = ["SELECTOR_CHECKS", "check_selector"]

#: Name -> check. Each takes a selector and raises an AssertionError.
SELECTOR_CHECKS: Checks[CoresetSelector] = Checks(CoresetSelector)

SIZE, DRAWS = 60, 12


def check_selector(selector: CoresetSelector) -> None:
    """Run every shared check on a coreset selector.

    Raises:
        AssertionError: if a check fails; the message names it.

    Example:
        >>> from lit_sparse.coresets import GIGA
        >>> check_selector(GIGA())
    """
    SELECTOR_CHECKS.run(selector)


def _vectors(seed: int = 0, size: int = SIZE, shift: float = 0.5) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(size, DRAWS, generator=generator, dtype=torch.float64)
    return vectors * torch.rand(size, 1, generator=generator, dtype=torch.float64) + shift / DRAWS


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def _select(selector: CoresetSelector, vectors: Tensor | Vectors, k: int) -> Coreset:
    coreset = selector(vectors, k, _generator())
    assert isinstance(coreset, Coreset), f"expected a Coreset but got {type(coreset).__name__}"
    return coreset


def _distance(vectors: Tensor, coreset: Coreset) -> float:
    weights = coreset.dense().to(vectors)
    return float((vectors.double().sum(0) - weights.double() @ vectors.double()).square().sum())


@SELECTOR_CHECKS.add
def _feasible(selector: CoresetSelector) -> None:
    """At most k examples, ascending, with positive weights, and the objective that these have."""
    for k in (1, 2, 5, DRAWS, 20, SIZE):
        vectors = _vectors(k)
        coreset = _select(selector, vectors, k)
        assert len(coreset) <= k, f"expected at most {k} examples but got {len(coreset)}"
        assert coreset.size == SIZE
        assert coreset.indices.dtype == torch.int64
        assert bool((coreset.weights > 0).all()), "weights are positive"
        expected = _distance(vectors, coreset)
        whole = float(vectors.sum(0).square().sum())
        assert abs(coreset.objective - expected) <= 1e-9 * whole, f"the objective is {expected}, not {coreset.objective}"


@SELECTOR_CHECKS.add
def _repeatable(selector: CoresetSelector) -> None:
    """The same generator gives the same coreset, and torch's global generator is not used."""
    before = torch.random.get_rng_state()
    one, two = (_select(selector, _vectors(), 9) for _ in range(2))
    assert torch.equal(one.indices, two.indices)
    assert torch.equal(one.weights, two.weights)
    assert torch.equal(before, torch.random.get_rng_state()), "torch's own generator was used"


@SELECTOR_CHECKS.add
def _scale(selector: CoresetSelector) -> None:
    """Weights do not depend on the unit of the vectors, however small or large, in float64 and float32."""
    for dtype in (torch.float64, torch.float32):
        vectors = _vectors().to(dtype)
        expected = _select(selector, vectors, 9)
        for scale in (2.0**-40, 2.0**40, *((2.0**-166, 2.0**166) if dtype == torch.float64 else (2.0**-100, 2.0**100))):
            found = _select(selector, vectors * scale, 9)
            assert torch.equal(expected.indices, found.indices), f"scale {scale} selects others"
            torch.testing.assert_close(found.weights, expected.weights, rtol=1e-4, atol=1e-6)


@SELECTOR_CHECKS.add
def _blocks(selector: CoresetSelector) -> None:
    """Vectors that are made in blocks give the coreset of vectors in memory."""
    vectors = _vectors()
    expected = _select(selector, vectors, 9)
    found = _select(selector, BlockVectors(lambda indices: vectors[indices], SIZE, block_size=17), 9)
    assert torch.equal(expected.indices, found.indices)
    torch.testing.assert_close(found.weights, expected.weights, rtol=1e-6, atol=1e-8)


@SELECTOR_CHECKS.add
def _files(selector: CoresetSelector) -> None:
    """Vectors in a file give the coreset of vectors in memory."""
    vectors = _vectors()
    with tempfile.TemporaryDirectory() as folder:
        for dtype in (torch.float64, torch.bfloat16):
            given = vectors.to(dtype).double()
            stored = FileVectors.save(given, Path(folder) / "vectors.npy", dtype=dtype)
            expected = _select(selector, given.to(stored.dtype), 9)
            found = _select(selector, stored, 9)
            assert torch.equal(expected.indices, found.indices), f"vectors in a file of {dtype} select others"
            torch.testing.assert_close(found.weights, expected.weights, rtol=1e-4, atol=1e-6)


@SELECTOR_CHECKS.add
def _resumes(selector: CoresetSelector) -> None:
    """A selection that is killed at any moment continues, and gives the same coreset, to the last bit."""
    vectors = _vectors()
    whole, calls = _counted(vectors, 10**9)
    expected = _select(selector, whole, 9)
    number = calls[0]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.pt"
        for moment in sorted({2 + (number - 2) * part // 5 for part in range(1, 5)}):
            killed, state = _counted(vectors, moment)[0], SelectionState(path, every=1)
            refuses(lambda killed=killed, state=state: selector(killed, 9, _generator(), state), "reads", InterruptedError)  # type: ignore[misc]
            written = path.is_file()
            again, calls = _counted(vectors, 10**9)
            found = selector(again, 9, _generator(), SelectionState(path))
            assert torch.equal(expected.indices, found.indices), f"after read {moment} of {number} it selects others"
            assert torch.equal(expected.weights, found.weights), f"after read {moment} of {number} weights differ"
            assert torch.equal(expected.trace, found.trace), f"after read {moment} of {number} the trace differs"
            assert not written or calls[0] < number, "a continued selection repeats all steps"
            assert not path.exists(), "the state is not removed"


def _counted(vectors: Tensor, most: int) -> tuple[BlockVectors, list[int]]:
    """Return vectors of which only so many reads succeed, and a list with the number of reads."""
    calls = [0]

    def rows(indices: Tensor) -> Tensor:
        calls[0] += 1
        if calls[0] > most:
            raise InterruptedError(f"the vectors get no more than {most} reads")
        return vectors[indices]

    return BlockVectors(rows, len(vectors)), calls


@SELECTOR_CHECKS.add
def _types(selector: CoresetSelector) -> None:
    """Half precision, non-contiguous vectors and such that need a gradient; inputs are not changed."""
    vectors = _vectors()
    for given in (
        vectors.float(),
        vectors.bfloat16(),
        vectors.half(),
        vectors.mT.contiguous().mT,
        vectors.clone().requires_grad_(),
    ):
        kept = given.detach().clone()
        coreset = _select(selector, given, 9)
        assert not coreset.weights.requires_grad
        assert torch.equal(kept, given.detach()), "the vectors were changed"
        whole = float(kept.double().sum(0).square().sum())
        assert abs(coreset.objective - _distance(kept.double(), coreset)) <= 1e-4 * whole


@SELECTOR_CHECKS.add
def _awkward(selector: CoresetSelector) -> None:
    """Vectors that are zero, equal, opposite or one alone give a coreset that can be used."""
    vectors = _vectors()
    zeros = torch.cat([torch.zeros(5, DRAWS, dtype=torch.float64), vectors])
    equal = vectors[:1].repeat(8, 1)
    for name, given in (("zero", zeros), ("equal", equal), ("one", vectors[:1]), ("long", 1e3 * equal + vectors[:8])):
        k = min(4, len(given))
        coreset = _select(selector, given, k)
        assert len(coreset) <= k, name
        assert bool(coreset.weights.isfinite().all()), name
        assert abs(coreset.objective - _distance(given, coreset)) <= 1e-8 * float(given.sum(0).square().sum()), name
    alone = _select(selector, vectors[:1], 1)
    share = 1e-2 if selector.approximate else 1e-9
    assert alone.objective <= share * float(vectors[0].square().sum()), "one example stands for itself"
    opposite = torch.cat([vectors, -vectors])
    assert bool(_select(selector, opposite, 4).weights.isfinite().all()), "a sum of zero"


@SELECTOR_CHECKS.add
def _refuses(selector: CoresetSelector) -> None:
    """Invalid input is refused with its own message."""
    vectors = _vectors()
    for k in (0, -1, 2.5, True):
        refuses(lambda k=k: selector(vectors, k), "`k`")  # type: ignore[misc]
    refuses(lambda: selector(vectors, SIZE + 1), f"at most {SIZE}")
    for given in (vectors[0], vectors.long(), [[1.0]]):
        refuses(lambda given=given: selector(given, 1), "`vectors`")  # type: ignore[misc]
    broken = vectors.clone()
    broken[17, 3] = torch.nan
    infinite = vectors.clone()
    infinite[4, 0] = torch.inf
    for given, words in (
        (broken, "example 17"),
        (infinite, "example 4"),
        (torch.zeros_like(vectors), "zero"),
        (vectors[:0], "at least one example"),
    ):
        refuses(lambda given=given: selector(given, 1), words, DataError)  # type: ignore[misc]


@SELECTOR_CHECKS.add
def _module(selector: CoresetSelector) -> None:
    """It can be pickled, copied and printed, and has no state."""
    check_copies(selector, lambda other: _select(other, _vectors(), 9).indices)
    assert type(selector).__name__ in repr(selector)
    assert not selector.state_dict()
