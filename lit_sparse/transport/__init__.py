"""Entropic optimal transport: measures, the dual problem, and potentials that solve it."""

from lit_sparse.ground.arguments import check_types
from lit_sparse.transport.dual import (
    TransportObjective,
    dual_value,
    grid_measure,
    log_plan_density,
    plan_penalty,
    semi_discrete_potentials,
    semi_dual_value,
    sinkhorn_potentials,
    squared_distances,
)
from lit_sparse.transport.measures import GaussianMixture, Measure
from lit_sparse.transport.potentials import KernelPotentials, MLPPotentials, Potentials

__all__ = [
    "GaussianMixture",
    "KernelPotentials",
    "MLPPotentials",
    "Measure",
    "Potentials",
    "TransportObjective",
    "dual_value",
    "grid_measure",
    "log_plan_density",
    "plan_penalty",
    "semi_discrete_potentials",
    "semi_dual_value",
    "sinkhorn_potentials",
    "squared_distances",
]

check_types(globals())
