"""Risks: objectives over the losses of a batch, in place of their mean."""

from lit_sparse.ground.arguments import check_types
from lit_sparse.risks.base import BrokenLossError, Mean, Risk
from lit_sparse.risks.cvar import CVaR, MultilevelCVaR
from lit_sparse.risks.divergence_dro import KLDRO, ChiSquareDRO
from lit_sparse.risks.group_dro import GroupDRO
from lit_sparse.risks.logsumexp import safe_logsumexp
from lit_sparse.risks.safe_kl_dro import DualRisk, ExponentialOTDRO, SafeKLDRO, UnbalancedOTDRO

__all__ = [
    "KLDRO",
    "BrokenLossError",
    "CVaR",
    "ChiSquareDRO",
    "DualRisk",
    "ExponentialOTDRO",
    "GroupDRO",
    "Mean",
    "MultilevelCVaR",
    "Risk",
    "SafeKLDRO",
    "UnbalancedOTDRO",
    "safe_logsumexp",
]

check_types(globals())
