"""Risks: objectives over the losses of a batch, in place of their mean."""

from lit_sparse.risks.base import BrokenLossError, Risk
from lit_sparse.risks.cvar import CVaR
from lit_sparse.risks.kl_dro import KLDRO
from lit_sparse.risks.logsumexp import safe_logsumexp
from lit_sparse.risks.mean import Mean
from lit_sparse.risks.safe_kl_dro import DualRisk, SafeKLDRO
from lit_sparse.risks.unbalanced_ot_dro import ExponentialOTDRO, UnbalancedOTDRO

__all__ = [
    "KLDRO",
    "BrokenLossError",
    "CVaR",
    "DualRisk",
    "ExponentialOTDRO",
    "Mean",
    "Risk",
    "SafeKLDRO",
    "UnbalancedOTDRO",
    "safe_logsumexp",
]
