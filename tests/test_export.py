"""Modules export to ONNX and to programs of plain torch operations, and compute the same there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from lit_sparse.errors import ConfigurationError, MissingExtraError
from lit_sparse.export import OPSET, decompose, export_onnx
from lit_sparse.mappings import Entmax, Oscarmax, SparseMAP, SparseMapping, Sparsemax
from lit_sparse.nn import MultiheadAttention
from lit_sparse.structures import Budget
from lit_sparse.testing import concrete_subclasses

ROWS = 1000
NAN, INF = float("nan"), float("inf")
EXACT = [
    pytest.param(example, id=repr(example), marks=[pytest.mark.slow] if i else [])
    for cls in concrete_subclasses(SparseMapping)
    if not cls.iterative
    for i, example in enumerate(cls.examples())
]
ANY = {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:onnxscript"),
    pytest.mark.filterwarnings("ignore::FutureWarning:torch.onnx"),
]


class Masked(nn.Module):
    """A mapping that always gets a mask."""

    def __init__(self, mapping: SparseMapping) -> None:
        super().__init__()
        self.mapping = mapping

    def forward(self, scores: Tensor, mask: Tensor) -> Tensor:
        mapped: Tensor = self.mapping(scores, mask)
        return mapped


def hostile_rows(d: int) -> tuple[Tensor, Tensor]:
    """Return scores and masks (ROWS, d): ties, equal, huge, tiny and shifted scores, NaN, infinities and masked rows."""
    generator = torch.Generator().manual_seed(d)
    x = 2 * torch.randn(ROWS, d, generator=generator, dtype=torch.float64)
    x[100:200] = x[100:200].round()
    x[200:300] = x[200:300, :1]
    x[300:400] *= 1e6
    x[400:500] *= 1e30
    x[500:600] *= 1e-6
    x[600:700] += 1e4
    x[700:720] = 0.0
    mask = torch.rand(ROWS, d, generator=generator) > 0.3
    mask[800:] = True
    mask[900:950] = False
    mask[950] = False
    mask[950, -1] = True  # a row with one entry
    x[951:955, 0] = NAN
    x[955:960, -1] = INF
    x[960:965] = -INF
    x[965:970, : d // 2] = -INF
    x[970, 0], mask[970, 0] = NAN, False  # an invalid score that is forbidden
    x[971, 0], mask[971, 0] = INF, False
    return x.float(), mask


def session(path: Path) -> Any:
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def run(path: Path, **inputs: Tensor) -> list[Tensor]:
    found = session(path).run(None, {name: value.detach().numpy() for name, value in inputs.items()})
    return [torch.from_numpy(array) for array in found]


@pytest.mark.parametrize("mapping", EXACT)
def test_a_mapping_is_the_same_in_onnxruntime(mapping: SparseMapping, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    path = tmp_path / "mapping.onnx"
    example = torch.randn(3, 5), torch.ones(3, 5, dtype=torch.bool)
    model = export_onnx(Masked(mapping), example, path, dynamic_shapes=(ANY, ANY))
    assert model.model.opset_imports == {"": OPSET}  # standard operators alone
    for d in (11, 40, 2):
        scores, mask = hostile_rows(d)
        with torch.no_grad():
            expected = mapping(scores.double(), mask).float()
        (mapped,) = run(path, scores=scores, mask=mask)
        assert bool(expected[951:960].isnan().all())
        assert bool((mapped[~mask] == 0).all())
        torch.testing.assert_close(mapped, expected, rtol=0, atol=1e-6, equal_nan=True)
