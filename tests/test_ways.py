"""Every public operation gives its eager results in every way to run it, or is refused by an error of this package."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lit_sparse.errors import ConfigurationError
from lit_sparse.mappings import Sparsemax
from tests.support.operations import REFUSED, WAYS, Operation, operations, outcome, unlisted

EVERY = [*operations()]
FIRST = [operation for operation in EVERY if operation.first]


@pytest.mark.gate
def test_every_public_operation_is_there() -> None:
    assert unlisted() == []
    assert set().union(*REFUSED.values()) <= {operation.name for operation in FIRST}


@pytest.mark.gate
@pytest.mark.parametrize("operation", FIRST, ids=lambda operation: operation.name)
def test_ways_without_a_compiler(operation: Operation) -> None:
    found = {way: outcome(operation, way) for way in REFUSED}
    assert found == {way: operation.name not in names for way, names in REFUSED.items()}


@pytest.mark.slow
@pytest.mark.parametrize("operation", FIRST, ids=lambda operation: operation.name)
@pytest.mark.parametrize("way", [way for way in WAYS if way not in REFUSED])
def test_ways_with_a_compiler(operation: Operation, way: str) -> None:
    outcome(operation, way)


@pytest.mark.slow
@pytest.mark.parametrize("operation", [op for op in EVERY if not op.first], ids=lambda operation: operation.name)
def test_other_arguments(operation: Operation) -> None:
    for way in REFUSED:
        outcome(operation, way)


@pytest.mark.gate
def test_a_trace_has_the_derivatives() -> None:
    x, other = torch.randn(4, 6), torch.randn(4, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(Sparsemax(), (x,))

    def slope(function: object) -> Tensor:
        leaf = other.clone().requires_grad_()
        return torch.autograd.grad((function(leaf) ** 2).sum(), leaf)[0]  # type: ignore[operator]

    for _ in range(3):  # TorchScript specializes the first calls
        torch.testing.assert_close(slope(traced), slope(Sparsemax()))


@pytest.mark.gate
@pytest.mark.filterwarnings("ignore")
def test_the_old_onnx_exporter_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"dynamo=False, which cannot write lit_sparse::project_simplex\. Call"):
        torch.onnx.export(Sparsemax(), (torch.randn(4, 6),), tmp_path / "model.onnx", dynamo=False)
