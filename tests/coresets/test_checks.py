"""Every selector keeps what the shared tester asks of it."""

from __future__ import annotations

import pytest

from lit_sparse.coresets import CoresetSelector
from lit_sparse.testing import SELECTOR_CHECKS, concrete_subclasses

SELECTORS = [example for kind in concrete_subclasses(CoresetSelector) for example in kind.examples()]


@pytest.mark.parametrize("name", SELECTOR_CHECKS)
@pytest.mark.parametrize("selector", SELECTORS, ids=repr)
def test_selector(selector: CoresetSelector, name: str) -> None:
    SELECTOR_CHECKS[name](selector)
