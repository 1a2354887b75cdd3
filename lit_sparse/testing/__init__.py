"""Shared testers of the interchangeable parts: for this package's own and for its users' parts.

Example:
    >>> from lit_sparse.mappings import Sparsemax
    >>> from lit_sparse.testing import MAPPING_CHECKS
    >>> MAPPING_CHECKS["simplex"](Sparsemax(gamma=0.3))
"""

from lit_sparse.testing.checks import concrete_subclasses
from lit_sparse.testing.estimators import ESTIMATOR_CHECKS, check_estimator
from lit_sparse.testing.mappings import MAPPING_CHECKS, check_mapping
from lit_sparse.testing.risks import RISK_CHECKS, check_risk
from lit_sparse.testing.selectors import SELECTOR_CHECKS, check_selector
from lit_sparse.testing.structures import STRUCTURE_CHECKS, check_structure

__all__ = [
    "ESTIMATOR_CHECKS",
    "MAPPING_CHECKS",
    "RISK_CHECKS",
    "SELECTOR_CHECKS",
    "STRUCTURE_CHECKS",
    "check_estimator",
    "check_mapping",
    "check_risk",
    "check_selector",
    "check_structure",
    "concrete_subclasses",
]
