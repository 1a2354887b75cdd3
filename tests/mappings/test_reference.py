"""Exact answers computed elsewhere, in float64 and float32."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_sparse.mappings import functional as F

FUNCTIONS = {
    "softmax": F.softmax,
    "sparsemax": F.sparsemax,
    "topk_sparsemax": F.topk_sparsemax,
    "entmax": F.entmax,
    "sq_pnorm_max": F.sq_pnorm_max,
    "fusedmax": F.fusedmax,
    "oscarmax": F.oscarmax,
    "oscarmax_approx": partial(F.oscarmax, exact=False),
    "hoyer": F.hoyer_projection,
    "hoyer_nonneg": partial(F.hoyer_projection, nonneg=True),
}


@pytest.fixture(scope="module")
def cases(shared: Path) -> list[dict[str, Any]]:
    return json.loads((shared / "reference" / "mappings.json").read_text())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_reference_cases(name: str, cases: list[dict[str, Any]]) -> None:
    chosen = [case for case in cases if case["mapping"] == name]
    assert len(chosen) == (25 if name.startswith("hoyer") else 60)
    for case in chosen:
        x, y = torch.tensor(case["x"], dtype=torch.float64), torch.tensor(case["y"], dtype=torch.float64)
        torch.testing.assert_close(FUNCTIONS[name](x, **case["params"]), y, atol=1e-6, rtol=0)
        single = FUNCTIONS[name](x.float(), **case["params"])
        rounded = FUNCTIONS[name](x.float().double(), **case["params"])  # what rounding the input alone does
        allowed = 1e-5 + (rounded - y).abs()
        assert bool(((single.double() - y).abs() <= allowed).all())
