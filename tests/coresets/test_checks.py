"""Every selector keeps what the shared tester asks of it."""

from __future__ import annotations

import pytest

from lit_sparse.coresets import CoresetSelector, SparseVI
from lit_sparse.testing import SELECTOR_CHECKS, concrete_subclasses

#: The first example of a class is in the quick tests, except SparseVI, which is in the gate. The others are slow.
SELECTORS = [
    pytest.param(
        example,
        marks=[pytest.mark.slow] if number else [pytest.mark.gate] if kind is SparseVI else [],
        id=repr(example),
    )
    for kind in concrete_subclasses(CoresetSelector)
    for number, example in enumerate(kind.examples())
]


@pytest.mark.parametrize("name", SELECTOR_CHECKS)
@pytest.mark.parametrize("selector", SELECTORS)
def test_selector(selector: CoresetSelector, name: str) -> None:
    SELECTOR_CHECKS[name](selector)
