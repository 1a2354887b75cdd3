"""Tables of predictions: the digits of their numbers, their columns, and what is not written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lit_sparse.callbacks import PredictionWriter
from lit_sparse.errors import DataError

#: Of Lightning, about loaders of which it does not know the indices.
pytestmark = pytest.mark.filterwarnings("ignore:Couldn't infer the batch indices:UserWarning")


def write(folder: Path, *batches: Any, **options: Any) -> str:
    writer = PredictionWriter(str(folder), **options)
    for batch in batches:
        writer.write_on_batch_end(None, None, batch)  # type: ignore[arg-type]
    writer.on_predict_end(None, None)  # type: ignore[arg-type]
    file = folder / "predictions.csv"
    return file.read_text() if file.is_file() else ""


def batch(first: int, count: int, width: int, **more: Any) -> dict[str, Any]:
    return {"index": torch.arange(first, first + count), "probs": torch.ones(count, width), **more}


def test_double_precision_keeps_its_digits(tmp_path: Path) -> None:
    value = torch.tensor([123456789.125], dtype=torch.float64)
    half = torch.tensor([0.5], dtype=torch.bfloat16)
    assert write(tmp_path, batch(0, 1, 1, mean=value, half=half)).split()[-1] == "0,1.0,123456789.125,0.5"


def test_batches_with_other_columns_are_refused(tmp_path: Path) -> None:
    label = {"label": torch.ones(2, dtype=torch.int64)}
    with pytest.raises(DataError, match=r"same columns .* got index, probs_0, probs_1, label after index, probs_0, label\."):
        write(tmp_path, batch(0, 2, 1, **label), batch(2, 2, 2, **label))
    assert not list(tmp_path.iterdir())


def test_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"different names .* got index, probs_0, probs_1, probs_1\."):
        write(tmp_path, batch(0, 2, 2, probs_1=torch.ones(2)))


def test_a_process_without_examples_writes_none(tmp_path: Path) -> None:
    assert write(tmp_path, batch(0, 0, 2), batch(0, 1, 2)) == "index,probs_0,probs_1\n0,1.0,1.0\n"


@pytest.mark.parametrize("more", [{"text": ["a"]}, {"scalar": torch.tensor(1.0)}, {"other": torch.ones(2)}])
def test_columns_of_another_kind_or_length_are_refused(more: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"Expected tensors \(B, \.\.\.\) from predict_step but got index \(1,\) of torch\.int64, "
    ):
        write(tmp_path, batch(0, 1, 2, **more))


def test_outputs_of_another_kind_are_not_dropped_in_silence(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="writes nothing: it expects a dict of tensors from predict_step but got torch.Tensor"):
        assert write(tmp_path, torch.ones(3)) == ""
