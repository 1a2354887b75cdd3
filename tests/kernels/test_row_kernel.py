"""Errors of row kernels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lit_sparse.errors import ConfigurationError
from lit_sparse.kernels import RowKernel
from lit_sparse.mappings import functional as F


def double(x: Tensor, gamma: float) -> Tensor:
    return 2 * x


def test_a_name_that_is_taken() -> None:
    """A second operator of one name would replace the first in every graph."""
    with pytest.raises(ConfigurationError, match=r"lit_sparse\.kernels\.simplex already has a `project_simplex`"):
        RowKernel("project_simplex", "(Tensor x, float gamma) -> Tensor", double, double)
    x = torch.tensor([1.0, 0.0])
    assert torch.equal(torch.compile(F.sparsemax, fullgraph=True, backend="aot_eager")(x), F.sparsemax(x))
