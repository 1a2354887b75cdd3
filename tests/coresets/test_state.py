"""Selections that are killed continue, and states of other selections are refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_sparse.coresets import (
    IHT,
    AcceleratedIHT,
    CoresetSelector,
    FileVectors,
    FrankWolfe,
    NonnegativeOMP,
    SelectionState,
    SparseVI,
    select_by_group,
)
from lit_sparse.coresets.pursuit import NonnegativeFit, Pursuit
from lit_sparse.coresets.vectors import DenseVectors
from lit_sparse.errors import CheckpointError, ConfigurationError

ROOT = Path(__file__).parents[2]
KILLED = """
import os, signal, sys
from lit_sparse.coresets import FileVectors, SelectionState
from tests.coresets.test_state import SELECTORS
class Killed(FileVectors):
    passes = 0
    def correlate(self, direction):
        self.passes += 1
        if self.passes == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().correlate(direction)
SELECTORS[sys.argv[2]](Killed(sys.argv[1]), 30, state=SelectionState(sys.argv[1] + ".state", every=4))
"""
SELECTORS: dict[str, CoresetSelector] = {
    "iterations": IHT(max_iter=40, tol=0.0, step="constant"),
    "polishing": AcceleratedIHT(debias=True, max_iter=15, tol=0.0),
    "pursuit": NonnegativeOMP(),
}


def vectors() -> torch.Tensor:
    return torch.randn(400, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.1


@pytest.mark.cases(gate=1)
@pytest.mark.parametrize(("name", "moment"), [("iterations", 75), ("polishing", 14), ("polishing", 17), ("pursuit", 23)])
def test_a_killed_process_continues(name: str, moment: int, tmp_path: Path) -> None:
    path = tmp_path / "vectors.npy"
    stored = FileVectors.save(vectors(), path, dtype=torch.float64)
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(path), name, str(moment)], cwd=ROOT, capture_output=True, timeout=200
    )
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    state = Path(f"{path}.state")
    assert state.is_file()
    selector = SELECTORS[name]
    found = selector(stored, 30, state=SelectionState(state))
    expected = selector(stored, 30)
    assert torch.equal(found.indices, expected.indices)
    assert torch.equal(found.weights, expected.weights)
    assert torch.equal(found.trace, expected.trace)
    assert not state.exists()


def killed(selector: CoresetSelector, path: Path, given: torch.Tensor, k: int = 30) -> None:
    """Write a state and stop."""

    class Stopping(SelectionState):
        def close(self) -> None:
            """Keep the file."""

    selector(given, k, torch.Generator().manual_seed(3), Stopping(path, every=3))
    assert path.is_file()


@pytest.mark.parametrize(
    ("selector", "k", "scale", "words"),
    [
        (AcceleratedIHT(max_iter=20), 29, 1.0, "different k"),
        (AcceleratedIHT(max_iter=21), 30, 1.0, "different max_iter"),
        (IHT(max_iter=20), 30, 1.0, "different selector"),
        (AcceleratedIHT(max_iter=20), 30, 1.01, "sum of the vectors"),
    ],
)
def test_states_of_other_selections_are_refused(
    selector: CoresetSelector, k: int, scale: float, words: str, tmp_path: Path
) -> None:
    path, given = tmp_path / "state", vectors()
    killed(AcceleratedIHT(max_iter=20), path, given)
    with pytest.raises(ConfigurationError, match=words):
        selector(scale * given, k, state=SelectionState(path))
    with pytest.raises(ConfigurationError, match="different shape"):
        AcceleratedIHT(max_iter=20)(given[:-1], 30, state=SelectionState(path))
    with pytest.raises(ConfigurationError, match="different order of the vectors"):
        AcceleratedIHT(max_iter=20)(given.flip(0), 30, state=SelectionState(path))
    assert path.is_file(), "a refused state is kept"


def test_vectors_without_effect_stay_excluded() -> None:
    given = vectors()
    one, two = (Pursuit(NonnegativeFit(given.sum(0), 5), given.norm(dim=1)) for _ in range(2))
    dense = DenseVectors(given)
    one.run(dense, 3, range(3))
    one.enter(7, torch.zeros(40, dtype=torch.float64) + given[one.fit.members[0]])  # in the span of the support
    two.load_state_dict(one.state_dict())
    first = one.next(dense)
    assert two.next(dense) == first
    excluded = set()
    for pursuit in (one, two):
        pursuit._barred[first] = False
        excluded.add(tuple(pursuit._barred.nonzero().squeeze(-1).tolist()))
    assert excluded == {(7,)}


def test_damaged_states_and_arguments_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    killed(NonnegativeOMP(), path, vectors())
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match=r"state.*Remove the file to begin anew\."):
        NonnegativeOMP()(vectors(), 30, state=SelectionState(path))
    for other in ({"weights": torch.zeros(3)}, [1, 2]):
        torch.save(other, path)
        with pytest.raises(CheckpointError, match="to be the state of a selection"):
            NonnegativeOMP()(vectors(), 30, state=SelectionState(path))
    with pytest.raises(ConfigurationError, match="`every`"):
        SelectionState(path, every=0)


def test_the_random_choices_of_a_killed_selection_are_continued(tmp_path: Path) -> None:
    path, selector = tmp_path / "state", IHT(max_iter=20, tol=0.0, batch=0.3, polish=False)
    killed(selector, path, vectors())
    found = selector(vectors(), 30, torch.Generator().manual_seed(99), SelectionState(path))
    expected = selector(vectors(), 30, torch.Generator().manual_seed(3))
    assert torch.equal(found.trace, expected.trace)


class Interrupted(IHT):
    """Iterations with random batches, of which the process survives a number."""

    left = 0

    def steps(self, number: int, here: Any = None) -> Iterator[int]:
        for step in super().steps(number, here):
            if type(self).left == 0:
                raise KeyboardInterrupt
            type(self).left -= 1
            yield step


@pytest.mark.parametrize("moment", [2, 11, 21, 25, 48, 59])
def test_a_selection_by_groups_continues_within_a_group(moment: int, tmp_path: Path) -> None:
    path, groups = tmp_path / "state", torch.arange(400) % 3
    selector = Interrupted(max_iter=20, tol=0.0, batch=0.3, polish=False)

    def select(left: int, seed: int, k: int = 30, classes: torch.Tensor = groups, kept: bool = True) -> Any:
        Interrupted.left = left
        state = SelectionState(path, every=3) if kept else None
        return select_by_group(selector, vectors(), k, classes, torch.Generator().manual_seed(seed), state)

    with pytest.raises(KeyboardInterrupt):
        select(moment, seed=3)
    with pytest.raises(ConfigurationError, match="different k"):
        select(1000, seed=3, k=31)
    for classes in (torch.arange(400) % 2, groups.flip(0)):
        with pytest.raises(ConfigurationError, match="different division into groups"):
            select(1000, seed=3, classes=classes)
    other = {"path": path, "every": 3}
    with pytest.raises(ConfigurationError, match="different division into groups"):
        selector(vectors(), 30, state=SelectionState(**other))
    found = select(1000, seed=99)
    done = 60 - (1000 - Interrupted.left)
    assert moment - done < 4, f"{moment} of 60 steps were done, and {done} of them were kept"
    expected = select(1000, seed=3, kept=False)
    assert torch.equal(found.indices, expected.indices)
    assert torch.equal(found.weights, expected.weights)
    assert found.objective == expected.objective
    assert found.weights.dtype == expected.weights.dtype == torch.float64
    assert not list(tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt):
        select(moment, seed=4)
    path.unlink()  # begin anew: the state of a group belongs to the former selection
    assert torch.equal(select(1000, seed=3).weights, expected.weights)


def places(found: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if place:
        yield place
    if isinstance(found, dict | list | tuple):
        for key, value in found.items() if isinstance(found, dict) else list(enumerate(found))[:2]:
            yield from places(value, (*place, key))


def changed(found: Any, place: tuple[Any, ...], value: Any) -> Any:
    """Return a copy with another value at a place, or without it if the value is ``...``."""
    key, *rest = place
    copied = dict(found) if isinstance(found, dict) else list(found)
    if not rest and value is ...:
        del copied[key]
    else:
        copied[key] = changed(found[key], tuple(rest), value) if rest else value
    return copied


@pytest.mark.parametrize(
    "selector",
    [IHT(max_iter=9, tol=0.0), NonnegativeOMP(), FrankWolfe(), SparseVI(None, updates=3)],
    ids=lambda it: type(it).__name__,
)
def test_every_entry_of_a_state_fits_or_is_refused(selector: CoresetSelector, tmp_path: Path) -> None:
    path, given = tmp_path / "state", vectors()[:60, :9]
    killed(selector, path, given, k=6)
    state = torch.load(path, weights_only=True)
    expected = selector(given, 6, state=SelectionState(path))
    refused = 0
    others = ("text", None, float("nan"), -7, 10**30, 10**6, [], {}, torch.full((2, 3, 1), 1.5), torch.tensor([10**6]), ...)
    for place in places(state):
        for value in others:
            if value is ... and isinstance(place[-1], int):
                continue
            torch.save(changed(state, place, value), path)
            try:
                found = selector(given, 6, state=SelectionState(path))
            except (CheckpointError, ConfigurationError) as error:
                assert "Remove the file to begin anew" in str(error) or "Remove the file" in str(error)
                refused += 1
            else:
                assert torch.equal(found.indices, expected.indices), (place, value)
                assert torch.equal(found.weights, expected.weights), (place, value)
    assert refused > 100


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_state_is_a_plain_file(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "state"
    killed(NonnegativeOMP(), tmp_path / "other", vectors())
    {"link": lambda: path.symlink_to(tmp_path / "other"), "pipe": lambda: os.mkfifo(path), "folder": path.mkdir}[kind]()
    with pytest.raises(CheckpointError, match=r"a plain file .* Remove the file to begin anew\."):
        NonnegativeOMP()(vectors(), 30, state=SelectionState(path))


@pytest.mark.parametrize(
    "change", [torch.Tensor.to_sparse, lambda value: value[:1].expand(value.shape), lambda value: value / 0]
)
@pytest.mark.parametrize("name", ["total", "here"])
def test_tensors_of_a_state_are_plain_and_finite(name: str, change: Any, tmp_path: Path) -> None:
    path = tmp_path / "state"
    killed(SELECTORS["iterations"], path, vectors())
    state = torch.load(path, weights_only=True)
    if name == "total":
        state["total"] = change(state["total"])
    else:
        support, *others = state["state"]["here"]
        state["state"]["here"] = support, *map(change, others)
    torch.save(state, path)
    with pytest.raises(CheckpointError, match=r"a plain tensor of finite numbers .* Remove the file to begin anew\."):
        SELECTORS["iterations"](vectors(), 30, torch.Generator().manual_seed(3), state=SelectionState(path))
