"""BudgetSparsemax: the layer, and the algorithm on rows with its derivative."""

from lit_sparse.mappings.budget_sparsemax.layer import BudgetSparsemax, budget_sparsemax

__all__ = ["BudgetSparsemax", "budget_sparsemax"]
