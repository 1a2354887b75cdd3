"""The part of an expected loss over structures that the scores determine."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lit_sparse.estimators import LatentBatch, SparseMAPMarginalize
from lit_sparse.mappings import functional as F
from lit_sparse.structures import Assignment, BitVector, Structure

GENERATOR = torch.Generator().manual_seed(0)
WEIGHT = torch.randn(36, dtype=torch.float64, generator=GENERATOR)
PAIRS = torch.randn(36, 36, dtype=torch.float64, generator=GENERATOR) / 6
SCORES = torch.randn(30, 36, dtype=torch.float64, generator=GENERATOR)
NUDGED = SCORES + 1e-9 * torch.randn(30, 36, dtype=torch.float64, generator=GENERATOR)


def linear(latent: LatentBatch) -> Tensor:
    return latent.values @ WEIGHT


def nonlinear(latent: LatentBatch) -> Tensor:
    return torch.sin(3 * (latent.values @ WEIGHT)) + ((latent.values @ PAIRS) * latent.values).sum(-1)


def change(structure: Structure, loss: object, **options: str) -> float:
    estimator = SparseMAPMarginalize(structure, **options)  # type: ignore[arg-type]
    losses = [estimator(scores, loss).loss for scores in (SCORES, NUDGED)]  # type: ignore[arg-type]
    return float((losses[0] - losses[1]).abs().max())


@pytest.mark.gate
def test_a_linear_loss_over_assignments_is_a_function_of_the_scores_and_another_is_not() -> None:
    """Rounding decides which of many distributions with the same marginals the active set takes."""
    marginals = [F.sparsemap(scores, Assignment()).marginals for scores in (SCORES, NUDGED)]
    torch.testing.assert_close(*marginals, rtol=0, atol=1e-7)
    assert change(Assignment(), linear) < 1e-6
    assert change(Assignment(), nonlinear) > 1e-3
    assert "other losses may jump" in " ".join(str(SparseMAPMarginalize.__doc__).split())


def test_a_nested_decomposition_is_a_function_of_the_scores() -> None:
    assert change(BitVector(), nonlinear, decomposition="nested") < 1e-6
