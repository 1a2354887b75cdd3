"""Ranges that classes declare for the arguments of their constructors."""

from __future__ import annotations

import inspect
import math
import pkgutil
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch

import lit_sparse
from lit_sparse import checks
from lit_sparse.checks import POSITIVE, Count, Range, ranges
from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.arguments import _hints

SUBPACKAGES = [import_module(f"lit_sparse.{each.name}") for each in pkgutil.iter_modules(lit_sparse.__path__) if each.ispkg]
PUBLIC = [getattr(module, name) for module in SUBPACKAGES for name in getattr(module, "__all__", ())]
CHECKED = {kind for made in PUBLIC if isinstance(made, type) for kind in made.__mro__ if hasattr(kind.__init__, "__wrapped__")}
CLASSES = {kind for kind in CHECKED if "RANGES" in vars(kind)}
CASES = sorted(((kind, name) for kind in CLASSES for name in kind.RANGES), key=lambda case: (case[0].__name__, case[1]))
WORDS = sorted(
    (
        (kind, name)
        for kind in CHECKED
        for name, hint in _hints(inspect.unwrap(kind.__init__))[1].items()
        if "Literal[" in str(hint)
    ),
    key=str,
)
#: Check without bounds -> values at its bounds, and beyond.
FIXED: dict[Any, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    checks.check_positive: ((1e-30, 1e30), (0.0, math.nextafter(1e-30, 0), math.nextafter(1e30, math.inf), math.nan)),
    checks.check_integer: ((1 - 2**63, 2**63 - 1), (-(2**63), 2**63, 0.5)),
    checks.check_flag: ((True, False), (0, "no")),
    checks.check_shape: (((), (0, 2)), ((-1,), 2)),
    checks.check_widths: (((), (1, 1_000_000)), ((0,), (1_000_001,), "8")),
}


def at_and_beyond(declared: Range) -> tuple[list[Any], list[Any]]:
    """Return values at the bounds of a range, or just inside of open ones, and the next ones outside."""
    if declared.check in FIXED:
        inside, outside = FIXED[declared.check]
        return [*inside], [*outside]
    bounds = declared.bounds
    if "least" in bounds:
        least, most = bounds["least"], bounds["most"] or 2**63 - 1
        return [least, most], [least - 1, most + 1, least + 0.5, True]
    inside, outside = [], [math.nan, "x"]
    for end, is_open, out in ((bounds["low"], "open_low", -math.inf), (bounds["high"], "open_high", math.inf)):
        inside.append(math.nextafter(end, -out) if bounds.get(is_open) else end)
        outside += [end] if bounds.get(is_open) else [] if end == out else [math.nextafter(end, out)]
    return inside, outside


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_bound_is_allowed_and_the_next_value_is_not(kind: Any, name: str) -> None:
    """A constructor does not run with a wrong argument, so that none needs an object here, nor its other arguments."""
    declared: Range = kind.RANGES[name]
    inside, outside = at_and_beyond(declared)
    for value in inside:
        assert declared(name, value) == value
    for value in outside:
        with pytest.raises(ConfigurationError, match=f"`{name}`"):
            kind.__init__(None, **{name: value})
    default = inspect.signature(kind.__init__).parameters[name].default
    if default not in (None, inspect.Parameter.empty):
        assert (declared(name, default), type(declared(name, default))) == (default, type(default))


@pytest.mark.parametrize(("kind", "name"), WORDS)
def test_another_word_is_not_allowed(kind: Any, name: str) -> None:
    needed = {"path": ""} if name == "distractors" else {}
    with pytest.raises(ConfigurationError, match=f"`{name}` to be .*one of"):
        kind.__init__(None, **{name: "another"}, **needed)


def test_all_public_classes_are_found() -> None:
    assert (len(CLASSES) > 80, len(WORDS) > 40) == (True, True)
    assert {case[0].__module__.split(".")[1] for case in CASES} >= {"mappings", "estimators", "risks", "models", "data", "nn"}


def test_every_seed_has_a_range() -> None:
    seeds = [(kind, name) for kind in CHECKED for name in inspect.signature(kind).parameters if name.endswith("seed")]
    declared = {(kind, name) for kind, name in seeds if any(name in vars(part).get("RANGES", {}) for part in kind.__mro__)}
    assert len(seeds) > 5 and not {*seeds} - declared


def test_no_description_asks_for_endless_iterations() -> None:
    limits = {(kind, name): kind.RANGES[name].bounds["most"] for kind, name in CASES if name == "max_iter"}
    assert len(limits) > 2 and {*limits.values()} == {checks.MOST_ITERATIONS}


@ranges(k=Count(), gamma=POSITIVE)
class Part:
    def __init__(self, k: int | None, *, gamma: float = 1.0, **options: Any) -> None:
        self.k, self.gamma, self.options = k, gamma, options


class Derived(Part):
    def __init__(self, gamma: Any) -> None:
        super().__init__(3, gamma=gamma, other=0)


def test_a_constructor_gets_numbers_of_python() -> None:
    part = Part(np.int64(2), gamma=torch.tensor(0.5))  # type: ignore[arg-type]
    assert (type(part.k), type(part.gamma)) == (int, float)
    assert (Part(None).k, Derived(np.float32(0.5)).gamma, Derived(0.5).options) == (None, 0.5, {"other": 0})
    for call in (lambda: Part(0), lambda: Part(k=0), lambda: Derived(0), lambda: Derived(None)):
        with pytest.raises(ConfigurationError, match=r"Expected argument `(k|gamma)` to be"):
            call()
    with pytest.raises(TypeError):
        Part(1, 1.0)  # type: ignore[misc]


def test_ranges_are_checked_in_a_graph() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        return x * Part(3, gamma=-1).gamma

    with pytest.raises(Exception, match="Expected argument `gamma`"):
        torch.compile(call, backend="eager")(torch.ones(2))
