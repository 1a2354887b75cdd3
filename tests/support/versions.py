"""Marks of tests that need a newer torch than the oldest one."""

from __future__ import annotations

import pytest
import torch

#: Mappings are whole in graphs of torch.compile.
needs_custom_operators = pytest.mark.skipif(
    not hasattr(torch.library, "custom_op"), reason="torch before 2.4 has no custom operators: graphs break at mappings"
)
