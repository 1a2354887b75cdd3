"""All entry points of a class take the same tensors: each dtype, under autocast, with a row of NaN, and without rows."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from lit_sparse.errors import ConfigurationError
from lit_sparse.estimators import Estimator
from lit_sparse.mappings import Entmax, FenchelYoungLoss, LPSparseMAP, SparseMAP, SparseMapping, Sparsemax
from lit_sparse.nn import LinearFenchelYoungLoss, SharedCategorical
from lit_sparse.testing import concrete_subclasses

ROWS, BROKEN = 5, 2
OTHERS = (torch.int64, torch.uint8, torch.bool, torch.complex64)
#: Digits of a result, by the dtype of the input; half types have few on the way in already.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}


class Contract(NamedTuple):
    """The entry points of a part: functions of the part and of a floating tensor (ROWS, ...), by the name of the method."""

    part: Any
    entries: dict[str, Callable[[Any, Tensor], Tensor]]
    shape: tuple[int, ...] = (6,)
    autocast: float = 1e-5

    def __repr__(self) -> str:
        return type(self.part).__name__


def _mapping(part: SparseMapping) -> Contract:
    entries: dict[str, Callable[[Any, Tensor], Tensor]] = {
        "forward": lambda part, x: part(x),
        "map": lambda part, x: part.map(x, None, -1),
        "map_block": lambda part, x: part.map_block(x),
    }
    if part.has_value:
        entries |= {"value": lambda part, x: part.value(x), "value_along": lambda part, x: part.value_along(x, None, -1)}
    if isinstance(part, SparseMAP | LPSparseMAP):
        entries["solve"] = lambda part, x: part.solve(x).marginals
    return Contract(part, entries)


def _estimator(part: Estimator) -> Contract:
    def loss(part: Estimator, x: Tensor) -> Tensor:
        torch.manual_seed(0)
        context = (x.real if x.is_complex() else x).nan_to_num()[:, :3].float()
        return part(x, lambda latent: latent.values.float().square().sum(-1), context=context).loss

    entries: dict[str, Callable[[Any, Tensor], Tensor]] = {"forward": loss}
    if part.latent == "categorical":
        part.bind(Sparsemax())
        entries["probabilities"] = lambda part, x: part.probabilities(x)
    return Contract(part.eval(), entries)


CONTRACTS = [
    *[_mapping(cls.examples()[0]) for cls in concrete_subclasses(SparseMapping)],
    *[_estimator(cls.examples()[0]) for cls in concrete_subclasses(Estimator)],
    Contract(
        FenchelYoungLoss(Sparsemax(), reduction="none"),
        {
            "forward": lambda part, x: part(x, torch.zeros(len(x), dtype=torch.int64)),
            "of_labels": lambda part, x: part.of_labels(x, torch.zeros(len(x), dtype=torch.int64)),
        },
    ),
    Contract(
        LinearFenchelYoungLoss(Entmax(1.5), 6, 9, reduction="none"),
        {
            "forward": lambda part, x: part(x, torch.zeros(len(x), dtype=torch.int64)),
            "probabilities": lambda part, x: part.probabilities(x)[1].sort(-1).values[:, -2:],
        },
    ),
    Contract(
        SharedCategorical(6, 4),
        {
            "forward": lambda part, x: part(x, torch.zeros(x.shape[:2], dtype=torch.int64)),
            "mean": lambda part, x: part.mean(x),
        },
        (3, 6),
    ),
]


def call(contract: Contract, entry: str, x: Tensor) -> Tensor:
    return contract.entries[entry](copy.deepcopy(contract.part), x).detach().double()


def scores(contract: Contract) -> Tensor:
    """Return numbers that every dtype has."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(ROWS, *contract.shape, generator=generator).bfloat16().float()


@pytest.mark.gate
@pytest.mark.parametrize("contract", CONTRACTS, ids=repr)
def test_all_entry_points_take_the_same_tensors(contract: Contract) -> None:
    x, whole = scores(contract), torch.arange(ROWS) != BROKEN
    broken = x.clone()
    broken[BROKEN] = torch.nan
    for entry in contract.entries:
        expected = call(contract, entry, x)
        for dtype, tolerance in TOLERANCE.items():
            torch.testing.assert_close(call(contract, entry, x.to(dtype)), expected, rtol=tolerance, atol=tolerance)
        for dtype in OTHERS:
            with pytest.raises(ConfigurationError):
                call(contract, entry, x.to(dtype))
        with torch.autocast("cpu", torch.bfloat16):
            tolerance = contract.autocast
            torch.testing.assert_close(call(contract, entry, x), expected, rtol=tolerance, atol=tolerance)
        invalid = call(contract, entry, broken)
        torch.testing.assert_close(invalid[whole], expected[whole])
        assert invalid[BROKEN].isnan().any()
        assert len(call(contract, entry, x[:0])) == 0
