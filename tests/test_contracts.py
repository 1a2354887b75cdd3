"""All entry points of a class take the same tensors: each dtype, under autocast, with a row of NaN, and without rows."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from lit_sparse import estimators, mappings, nn, risks, structures, transport
from lit_sparse.errors import ConfigurationError
from lit_sparse.estimators import Estimator
from lit_sparse.mappings import Entmax, FenchelYoungLoss, LPSparseMAP, SparseMAP, SparseMapping, Sparsemax
from lit_sparse.nn import LinearFenchelYoungLoss, MultiheadAttention, SharedCategorical
from lit_sparse.risks import Risk
from lit_sparse.structures import Structure
from lit_sparse.testing import concrete_subclasses
from lit_sparse.transport import KernelPotentials, MLPPotentials

ROWS, BROKEN = 5, 2
FLOATING = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
OTHERS = (torch.int64, torch.uint8, torch.bool, torch.complex64)
#: Digits of a result, by the dtype of the input; half types have few on the way in already.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}


class Contract(NamedTuple):
    """The entry points of a part: functions of the part and of a floating tensor (ROWS, ...), by the name of the method."""

    part: Any
    entries: dict[str, Callable[[Any, Tensor], Tensor]]
    shape: tuple[int, ...] = (6,)
    rowwise: bool = True

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
        entries["loss"] = lambda part, x: part.loss(x, torch.zeros(x.shape, dtype=torch.float32))
    return Contract(part, entries)


def _estimator(part: Estimator) -> Contract:
    def loss(part: Estimator, x: Tensor) -> Tensor:
        torch.manual_seed(0)
        return part(x, lambda latent: latent.values.float().square().sum(-1), context=x.nan_to_num()[:, :3].float()).loss

    entries: dict[str, Callable[[Any, Tensor], Tensor]] = {"forward": loss}
    if part.latent == "categorical":
        part.bind(Sparsemax())
        entries["probabilities"] = lambda part, x: part.probabilities(x)
    return Contract(part.eval(), entries)


def _attention(part: MultiheadAttention, x: Tensor) -> Tensor:
    return part.attend_projected(x, *part.project_memory(x, x))[0]


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
            "probabilities": lambda part, x: part.probabilities(x)[1],
        },
    ),
    Contract(
        MultiheadAttention(6, 2, batch_first=True, mapping=Sparsemax()),
        {"forward": lambda part, x: part(x, x, x)[0], "attend_projected": _attention},
        (3, 6),
    ),
    Contract(
        SharedCategorical(6, 4),
        {
            "forward": lambda part, x: part(x, torch.zeros(x.shape[:2], dtype=torch.int64)),
            "mean": lambda part, x: part.mean(x),
        },
        (3, 6),
    ),
    *[
        Contract(
            part.build(6),
            {"source_potential": lambda part, x: part.source_potential(x), "target_potential": lambda part, x: part.target_potential(x)},
        )
        for part in (MLPPotentials(), KernelPotentials(capacity=4))
    ],
]


def result_of(contract: Contract, entry: str, x: Tensor) -> Tensor | None:
    """Return a result, or None if it is refused by an error of this package."""
    try:
        return contract.entries[entry](copy.deepcopy(contract.part), x).detach()
    except ConfigurationError:
        return None


def explore():
    torch.manual_seed(0)
    for c in CONTRACTS:
        x = torch.randn(ROWS, *c.shape, dtype=torch.float64).bfloat16().double()
        base = {}
        for e in c.entries:
            try: base[e] = result_of(c, e, x.float())
            except Exception as err: print(c, e, "float32", type(err).__name__, str(err)[:150]); continue
            for dt in (*FLOATING, *OTHERS):
                try:
                    r = result_of(c, e, x.to(dt))
                    if (r is None) == (dt in FLOATING): print(c, e, dt, "refused" if r is None else f"accepted {r.dtype}")
                    elif r is not None and r.shape and not torch.allclose(r.double(), base[e].double(), atol=TOLERANCE[dt], rtol=TOLERANCE[dt]): print(c, e, dt, "differs", (r.double()-base[e].double()).abs().max())
                except Exception as err: print(c, e, dt, type(err).__name__, str(err)[:150])
            try:
                with torch.autocast("cpu", torch.bfloat16): r = result_of(c, e, x.float())
                d=(r.double()-base[e].double()).abs().max().item()
                if d>1e-5: print(c,e,"autocast",d)
            except Exception as err: print(c, e, "autocast", type(err).__name__, str(err)[:150])
            try:
                y = x.float().clone(); y[BROKEN] = torch.nan
                r = result_of(c, e, y); keep = torch.arange(ROWS) != BROKEN
                if r is None: print(c,e,"NaN refused")
                elif not torch.allclose(r[keep], base[e][keep], atol=1e-6): print(c,e,"NaN spreads")
                elif not r[BROKEN].isnan().any(): print(c,e,"NaN hidden", r[BROKEN])
            except Exception as err: print(c, e, "NaN", type(err).__name__, str(err)[:150])
            try:
                r = result_of(c, e, x.float()[:0])
                if r is None or len(r): print(c,e,"empty", r if r is None else r.shape)
            except Exception as err: print(c, e, "empty", type(err).__name__, str(err)[:150])

if __name__=="__main__": explore()
