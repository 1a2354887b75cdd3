"""Rows that hypothesis draws, and what two implementations of a row kernel must agree on."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from lit_sparse.kernels import RowKernel
from lit_sparse.kernels.groups import code_of

__all__ = ["assert_same_groups", "by_reference", "fixed_settings", "rows", "smooth_rows"]


def fixed_settings(examples: int) -> settings:
    """The same examples every time."""
    return settings(max_examples=examples, derandomize=True, database=None)


def by_reference(kernel: RowKernel, *args: Any) -> Any:
    """Compute in plain torch operations what the kernel computes."""
    return kernel._on_tensors(kernel.reference, args)


@st.composite
def smooth_rows(draw: st.DrawFn, longest: int = 50, count: int = 10) -> Tensor:
    """Draw (count, d) scores in float64 without exact ties: noise, walks, noisy steps, deep valleys; some with holes."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    d = int(rng.integers(1, longest + 1))
    x = rng.standard_normal((count, d))
    kind = draw(st.sampled_from(["noise", "walk", "steps", "valleys"]))
    if kind == "walk":
        x = x.cumsum(-1) / d**0.5
    elif kind == "steps":
        x = np.repeat(x, 5, -1)[:, :d] + 0.05 * rng.standard_normal((count, d))
    elif kind == "valleys":
        x = 0.3 * x - 10.0 ** rng.integers(-1, 7) * (rng.random((count, d)) < 0.3)
    x = x * 10.0 ** rng.choice([-2, -1, 0, 0, 1])
    x[rng.random((count, d)) < rng.choice([0.0, 0.0, 0.2, 0.8])] = -np.inf
    return torch.from_numpy(x)


@st.composite
def rows(draw: st.DrawFn, longest: int = 50) -> Tensor:
    """Draw the same with ties, and with rows that are empty, NaN or infinite, in several types."""
    x = draw(smooth_rows(longest))
    if draw(st.booleans()):
        x = x.mul(8).round().div(8)
    x[0], x[1, 0], x[2, -1], x[3] = -torch.inf, torch.nan, torch.inf, x[3].nan_to_num(0.0, 0.0, 0.0)[0]
    return x.to(draw(st.sampled_from([torch.float64, torch.float32, torch.bfloat16])))


def assert_same_groups(labels: Tensor, others: Tensor) -> None:
    """Check that two labellings make the same groups with the same codes, for any numbering."""
    assert torch.equal(labels < 0, others < 0)
    assert torch.equal(torch.where(labels < 0, 0, code_of(labels)), torch.where(others < 0, 0, code_of(others)))
    ours, theirs = labels >> 3, others >> 3
    together = ours.unsqueeze(-1) == ours.unsqueeze(-2)
    assert torch.equal(together, theirs.unsqueeze(-1) == theirs.unsqueeze(-2))
