"""Run folders and what lies in them: checkpoints, configs, status; how they are read without trusting them."""

from lit_sparse.runs.status import read_status
from lit_sparse.runs.trust import trusting

__all__ = ["read_status", "trusting"]
