"""A generic solver of convex programs, the second way to compute a mapping or a risk."""

from __future__ import annotations

from typing import Any

import clarabel
import numpy as np
from scipy import sparse

__all__ = ["solved"]


def solved(
    quadratic: Any, linear: np.ndarray, constraints: Any, bounds: np.ndarray, cones: list[Any], tol: float = 1e-11
) -> np.ndarray:
    """Return the x that minimizes ``1/2 x'Px + q'x`` where ``b - A x`` lies in the cones, by an interior-point method.

    Args:
        quadratic: P, a sparse matrix.
        linear: q.
        constraints: A, a sparse matrix.
        bounds: b.
        cones: cones of clarabel, for consecutive rows of A.
        tol: tolerance of gap and feasibility.
    """
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = tol
    solution = clarabel.DefaultSolver(
        sparse.triu(quadratic).tocsc(), linear, constraints.tocsc(), bounds, cones, settings
    ).solve()
    assert "Solved" in str(solution.status), solution.status
    return np.array(solution.x)
