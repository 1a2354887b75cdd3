"""Without transformers, or with an old one, the next step is said."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch

from lit_sparse.errors import MissingExtraError
from lit_sparse.hf import from_pretrained, register, sparsify
from lit_sparse.mappings import Sparsemax

USES = [register, lambda: sparsify(torch.nn.Linear(2, 2), Sparsemax()), lambda: from_pretrained(torch.nn.Linear, "folder")]


@pytest.mark.parametrize("use", USES, ids=["register", "sparsify", "from_pretrained"])
def test_transformers_is_missing(use: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"need the extra 'hf'\. Install it with"):
        use()


@pytest.mark.parametrize("use", USES, ids=["register", "sparsify", "from_pretrained"])
def test_transformers_is_old(use: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    old = types.ModuleType("transformers")
    old.__version__ = "4.57.1"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers", old)
    with pytest.raises(MissingExtraError, match=r"the extra 'hf' with transformers 5 or newer but got 4\.57\.1\. Install"):
        use()
