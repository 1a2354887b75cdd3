"""Integers of 8 bits count as integers of 64 bits, though torch compares in 8 bits, and takes them for masks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lit_sparse.coresets import Coreset, Examples, LastLayerGradients, Uniform, select_by_group
from lit_sparse.mappings import FenchelYoungLoss, Sparsemax
from lit_sparse.metrics import CountHistogram, GroupMeans, MessageCounts, positional_disentanglement, topographic_similarity
from lit_sparse.nn import LinearFenchelYoungLoss, length_mask
from lit_sparse.risks import GroupDRO

VALUES = torch.tensor([1.0, 2.0, 4.0, 8.0])
WHOLE = torch.tensor([1, 200, 3, 156])


class Classifier(torch.nn.Linear):
    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        result: Tensor = self(batch["pixels"])
        return result


def computed(metric: Any, *arguments: Tensor) -> Any:
    metric.update(*arguments)
    return metric.compute()


CALLS: dict[str, Callable[[Tensor], Any]] = {
    "GroupMeans": lambda whole: computed(GroupMeans("loss", "max"), VALUES, whole),
    "MessageCounts": lambda whole: computed(MessageCounts(300), whole, whole % 3),
    "CountHistogram": lambda whole: computed(CountHistogram(), whole),
    "GroupDRO": lambda whole: GroupDRO(300)(VALUES, None, whole),
    "FenchelYoungLoss": lambda whole: FenchelYoungLoss(Sparsemax())(torch.eye(4, 300), whole),
    "LinearFenchelYoungLoss": lambda whole: LinearFenchelYoungLoss(Sparsemax(), 4, 300)(torch.eye(4), whole),
    "LastLayerGradients": lambda whole: LastLayerGradients(model=Classifier(4, 300))(
        Examples.of(pixels=torch.eye(4), label=whole)
    ),
    "length_mask": lambda whole: length_mask(whole, 300),
    "select_by_group": lambda whole: select_by_group(Uniform(), torch.eye(4), 4, whole).weights,
    "positional_disentanglement": lambda whole: positional_disentanglement(
        torch.cartesian_prod(torch.arange(2), torch.arange(2)), torch.stack([whole, whole.flip(0)], 1)
    ),
    "topographic_similarity": lambda whole: topographic_similarity(torch.eye(4), whole[:, None]),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore")
def test_integers_of_every_size(name: str) -> None:
    results = []
    for dtype in (torch.int64, torch.uint8):
        torch.manual_seed(0)
        results.append(CALLS[name](WHOLE.to(dtype)))
    torch.testing.assert_close(*results, rtol=0, atol=0, equal_nan=True)


def test_weights_in_bfloat16_are_saved(tmp_path: Path) -> None:
    Coreset(torch.tensor([0, 2]), torch.tensor([1.5, 2.25]).bfloat16(), 1.0, size=5).save(tmp_path / "a.npz")
    assert Coreset.load(tmp_path / "a.npz").weights.tolist() == [1.5, 2.25]
