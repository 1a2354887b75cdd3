"""Predicted text: one line per input, in order, for any batches, processes and characters."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lit_sparse.callbacks import PredictionWriter, TextPredictionWriter
from lit_sparse.callbacks.writers.outputs import check_indices, write_files
from lit_sparse.callbacks.writers.text_predictions import _json, _one_line
from lit_sparse.errors import ConfigurationError, DataError
from tests.support.processes import run_processes

#: Everything that ends a line for ``str.splitlines``, and more that a file could stumble over.
BREAKS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
HOSTILE = [
    "",
    " ",
    "plain",
    "a\nb",
    "a\r\nb",
    f"x{BREAKS}y",
    "nul\x00",
    "half \ud800",
    "עברית",
    "😀",
    "中文",
    '"quoted"\\',
    "\ufeff",
    "tab\t",
]


#: Of Lightning, about loaders of which it does not know the indices.
pytestmark = pytest.mark.filterwarnings("ignore:Couldn't infer the batch indices:UserWarning")


def outputs_of(indices: list[int], **more: Any) -> dict[str, Any]:
    """Outputs of a model's ``predict_step``."""
    return {
        "lines": [f"line {index}\n" for index in indices],
        "index": torch.tensor(indices, dtype=torch.int64),
        "source": [f"source {index}" for index in indices],
        "candidates": [[{"text": f"line {i}\n", "score": -0.5 * i}, {"text": "", "score": float("-inf")}] for i in indices],
        **more,
    }


def attention_of(indices: list[int]) -> dict[str, Any]:
    """Attention of one to three output tokens over two to five source tokens, zero-padded."""
    weights = torch.zeros(len(indices), 3, 5)
    for row, index in enumerate(indices):
        weights[row, : 1 + index % 3, : 2 + index % 4] = torch.tensor(1 / (2 + index % 4))
    return {
        "attention": weights,
        "source_tokens": [[f"s{i}" for i in range(2 + index % 4)] for index in indices],
        "output_tokens": [[f"t{i}" for i in range(1 + index % 3)] for index in indices],
    }


class Loader:
    """The batches of a process: every n-th input, longest first, as if they were bucketed."""

    def __init__(self, indices: Tensor, size: int) -> None:
        self.batches = indices.flip(0).split(size)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.batches)


class Speaker(pl.LightningModule):
    """A model that predicts a line per input."""

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.inputs, self.size = inputs, size

    def predict_dataloader(self) -> Loader:
        return Loader(torch.arange(self.trainer.global_rank, self.inputs, self.trainer.world_size), self.size)

    def predict_step(self, batch: Tensor, batch_idx: int) -> dict[str, Any]:
        indices = batch.tolist()
        return {**outputs_of(indices), **attention_of(indices)}


def predict(model: pl.LightningModule, *callbacks: pl.Callback, **options: Any) -> None:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(accelerator="cpu", callbacks=list(callbacks), **{**quiet, **options})
    trainer.predict(model, return_predictions=False)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def written(folder: Path, *batches: Any, **options: Any) -> tuple[list[str], list[dict[str, Any]]]:
    """Hand batches to a writer; return the lines and the objects that it wrote."""
    writer = TextPredictionWriter(str(folder), **options)
    writer.on_predict_start(None, None)  # type: ignore[arg-type]
    for batch in batches:
        writer.write_on_batch_end(None, None, batch)  # type: ignore[arg-type]
    writer.on_predict_end(None, None)  # type: ignore[arg-type]
    text = (folder / "predictions.txt").read_bytes().decode()
    objects = (folder / "predictions.jsonl").read_bytes().decode()
    assert text.splitlines() == text.split("\n")[:-1], "any reader finds the same lines"
    assert objects.splitlines() == objects.split("\n")[:-1]
    return text.splitlines(), [json.loads(line, parse_constant=pytest.fail) for line in objects.splitlines()]


@pytest.mark.parametrize("size", [1, 4, 11])
def test_inputs_come_in_their_order(tmp_path: Path, size: int) -> None:
    predict(Speaker(11, size), TextPredictionWriter(str(tmp_path)), PredictionWriter(str(tmp_path)))
    assert set(files(tmp_path)) == {"predictions.txt", "predictions.jsonl"}, "and PredictionWriter writes nothing"
    assert files(tmp_path)["predictions.txt"] == b"".join(b"line %d \n" % index for index in range(11))
    rows = [json.loads(line) for line in files(tmp_path)["predictions.jsonl"].splitlines()]
    expected = [{"text": "line 10\n", "score": -5.0}, {"text": "", "score": None}]
    assert rows[10] == {"index": 10, "source": "source 10", "outputs": expected}
    assert [row["index"] for row in rows] == list(range(11))


def test_a_line_is_a_line_whatever_it_says(tmp_path: Path) -> None:
    order = list(reversed(range(len(HOSTILE))))
    batch = {"lines": [HOSTILE[index] for index in order], "index": torch.tensor(order)}
    lines, rows = written(tmp_path, batch)
    assert lines[:5] == ["", " ", "plain", "a b", "a  b"]
    assert lines[5:8] == [f"x{' ' * len(BREAKS)}y", "nul ", "half \ufffd"]
    assert lines[8:] == HOSTILE[8:]
    assert [row["outputs"] for row in rows] == [[{"text": text}] for text in HOSTILE], "nothing is lost in JSON"
    assert "中文".encode() in (tmp_path / "predictions.jsonl").read_bytes(), "and it can be read"
    assert "source" not in rows[0]


@given(st.text(st.characters(exclude_categories=()) | st.sampled_from(BREAKS), max_size=12))
def test_any_text_is_one_line(text: str) -> None:
    for line in (_one_line(text), _json({"index": 0, "line": text, "source": text})):
        assert len(f".{line}.\n".splitlines()) == 1
        assert io.TextIOWrapper(io.BytesIO(f"{line}\n".encode()), "utf-8", newline=None).read() == f"{line}\n"
    assert "\x00" not in _one_line(text)
    assert len(_one_line(text)) == len(text)
    assert json.loads(line) == {"index": 0, "source": text, "outputs": [{"text": text}]}


def test_attention_is_written_where_it_is_asked_for(tmp_path: Path) -> None:
    indices = [3, 0, 2, 1]
    batch = {**outputs_of(indices), **attention_of(indices)}
    batch["attention"][1, 0] = torch.tensor([1e-12, 1.0, 0.0, 0.0, 0.0])
    batch["attention"][3, 0, 0] = float("nan")
    _, rows = written(tmp_path, batch, attention=True)
    assert list(rows[0]) == ["index", "source", "outputs", "source_tokens", "output_tokens", "attention"]
    assert rows[0]["attention"] == [[1e-12, 1.0]], "what is not zero does not become so"
    assert rows[1]["attention"][0][0] is None
    assert rows[1]["attention"][1] == [0.333333] * 3
    assert [len(row["attention"]) for row in rows] == [len(row["output_tokens"]) for row in rows] == [1, 2, 3, 1]
    assert [len(row["attention"][0]) for row in rows] == [len(row["source_tokens"]) for row in rows] == [2, 3, 4, 5]
    _, rows = written(tmp_path, batch)
    assert "attention" not in rows[0]


def test_heads_in_half_precision(tmp_path: Path) -> None:
    tokens = {"source_tokens": [["a", "b"]], "output_tokens": [["c"]]}
    weights = torch.tensor([[[[0.25, 0.75]], [[0.0, 1.0]]]], dtype=torch.bfloat16)
    _, rows = written(tmp_path, {"lines": ["c"], "index": torch.tensor([0]), "attention": weights, **tokens}, attention=True)
    assert rows[0]["attention"] == [[[0.25, 0.75]], [[0.0, 1.0]]]


def test_only_what_is_written_is_kept() -> None:
    indices = [0, 1]
    writer = TextPredictionWriter()
    writer.write_on_batch_end(None, None, {**outputs_of(indices), **attention_of(indices)})  # type: ignore[arg-type]
    assert ["attention" in row for row in writer._rows] == [False, False]
    writer = TextPredictionWriter(attention=True)
    writer.write_on_batch_end(None, None, {**outputs_of(indices), **attention_of(indices)})  # type: ignore[arg-type]
    assert [row["attention"].weights.untyped_storage().nbytes() for row in writer._rows] == [4 * 2, 4 * 2 * 3]


def test_missing_and_repeated_inputs_are_named(tmp_path: Path) -> None:
    for batches, message in (
        (([0, 1], [4]), r"Nothing was predicted for input 2, 3 \(numbered from 0\)"),
        (([1],), "input 0 "),
        (
            (
                [0],
                [1_000_000_000_000],
            ),
            r"input 1, 2, 3, 4, 5, \.\.\. \(999999999999 in all\)",
        ),
        (([0, 1], [1, 2, 2]), "more than one prediction for input 1, 2 "),
        (([0, -1],), "numbered from 0 but got index -1"),
    ):
        with pytest.raises(DataError, match=message):
            written(tmp_path, *map(outputs_of, batches))
    assert list(tmp_path.iterdir()) == []


@given(st.lists(st.integers(0, 12), max_size=12))
def test_indices_are_right_only_if_each_comes_once(indices: list[int]) -> None:
    if sorted(indices) == list(range(len(indices))):
        check_indices(indices)
        return
    with pytest.raises(DataError) as caught:
        check_indices(indices)
    twice = sorted({index for index in indices if indices.count(index) > 1})
    wrong = twice or sorted(set(range(max(indices))) - set(indices))
    named = ", ".join(map(str, wrong[:5]))
    assert f"for input {named}{', ... ' if len(wrong) > 5 else ' '}(" in str(caught.value)


def test_outputs_that_do_not_fit(tmp_path: Path) -> None:
    good = {**outputs_of([0, 1]), **attention_of([0, 1])}
    for name in ("index", "source", "candidates", "attention", "source_tokens", "output_tokens"):
        with pytest.raises(DataError, match=f"Expected `{name}` to have one entry for each of 2 lines but got 1"):
            written(tmp_path, {**good, name: good[name][:1]}, attention=True)
    with pytest.raises(DataError, match="Expected `index`"):
        written(tmp_path, {"lines": ["a"]})
    with pytest.raises(
        ConfigurationError, match=r"Expected `attention`, `source_tokens`, `output_tokens` in .*attention=False"
    ):
        written(tmp_path, outputs_of([0, 1]), attention=True)


def test_other_models_are_left_alone(tmp_path: Path) -> None:
    writer = TextPredictionWriter(str(tmp_path))
    for outputs in (None, torch.zeros(2), [], {"index": torch.arange(2), "symbol": torch.arange(2)}):
        writer.write_on_batch_end(None, None, outputs)  # type: ignore[arg-type]
    writer.on_predict_end(None, None)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
    table = PredictionWriter(str(tmp_path))
    table.write_on_batch_end(None, None, outputs)  # type: ignore[arg-type]
    table.on_predict_end(SimpleNamespace(world_size=1), None)  # type: ignore[arg-type]
    assert files(tmp_path) == {"predictions.csv": b"index,symbol\r\n0,0\r\n1,1\r\n"}


def test_a_second_prediction_replaces_the_first(tmp_path: Path) -> None:
    writer = TextPredictionWriter(str(tmp_path))
    writer.write_on_batch_end(None, None, outputs_of([7]))  # type: ignore[arg-type]  # of one that was interrupted
    for inputs in (11, 3):
        predict(Speaker(inputs, 2), writer)
        assert (tmp_path / "predictions.txt").read_bytes().count(b"\n") == inputs


def test_each_batch_is_written_at_once(tmp_path: Path) -> None:
    """Then nothing is kept, and a second prediction begins anew."""
    for inputs in (11, 3):
        writer = TextPredictionWriter(str(tmp_path), write_interval="batch")
        predict(Speaker(inputs, 2), writer)
        assert sorted(json.loads(row)["index"] for row in (tmp_path / "predictions.jsonl").read_text().splitlines()) == [
            *range(inputs)
        ]
        assert not writer._rows and (tmp_path / "predictions.txt").read_bytes().count(b"\n") == inputs
    table = PredictionWriter(str(tmp_path), write_interval="batch")
    trainer: Any = SimpleNamespace(world_size=2, global_rank=1)
    for index in (3, 1):
        table.write_on_batch_end(trainer, None, {"index": torch.tensor([index]), "symbol": torch.tensor([0])})  # type: ignore[arg-type]
        assert (tmp_path / "predictions_1.csv").read_text().splitlines()[-1] == f"{index},0"
    table.on_predict_end(trainer, None)  # type: ignore[arg-type]
    assert (tmp_path / "predictions_1.csv").read_text().count("index") == 1 and not (tmp_path / "predictions.csv").exists()
    with pytest.raises(ConfigurationError, match="`write_interval`"):
        PredictionWriter(write_interval="never")  # type: ignore[arg-type]


def test_files_appear_whole_or_not_at_all(tmp_path: Path) -> None:
    def broken() -> Iterator[str]:
        yield "new"
        raise RuntimeError("the disk is full")

    (tmp_path / "a").write_text("old\n")
    with pytest.raises(RuntimeError, match="full"):
        write_files({tmp_path / "a": ["new"], tmp_path / "b": broken()})
    assert files(tmp_path) == {"a": b"old\n"}
    write_files({tmp_path / "a": ["new"], tmp_path / "b": []})
    assert files(tmp_path) == {"a": b"new\n", "b": b""}


def test_the_folder_of_a_trainer_without_a_logger(tmp_path: Path) -> None:
    predict(Speaker(2, 2), TextPredictionWriter(), default_root_dir=str(tmp_path))
    assert set(files(tmp_path)) == {"predictions.txt", "predictions.jsonl"}


@pytest.mark.slow
def test_two_processes_write_what_one_does(tmp_path: Path) -> None:
    for name, options in (("one", {}), ("two", {"strategy": "ddp_spawn", "devices": 2})):
        predict(Speaker(11, 3), TextPredictionWriter(str(tmp_path / name), attention=True), **options)
    assert files(tmp_path / "two") == files(tmp_path / "one")
    assert len(files(tmp_path / "two")) == 2


SHARES = {
    "uneven": ([[3, 1], [0]], [[2]], None),
    "idle": ([], [[1, 0]], None),
    "twice": ([[0, 1]], [[1]], "more than one prediction for input 1 "),
    "missing": ([[0]], [[2]], "for input 1 "),
    "nothing": ([], [], None),
}


def _process(rank: int, store: str, folder: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    for name, (*shares, message) in SHARES.items():
        writer = TextPredictionWriter(f"{folder}/{name}")
        for indices in shares[rank]:
            writer.write_on_batch_end(None, None, outputs_of(indices))  # type: ignore[arg-type]
        if message is None:
            writer.on_predict_end(None, None)  # type: ignore[arg-type]
            continue
        with pytest.raises(DataError, match=message):  # on both: neither waits for the other
            writer.on_predict_end(None, None)  # type: ignore[arg-type]
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_inputs_are_shared_out_in_any_way(tmp_path: Path) -> None:
    run_processes(_process, (str(tmp_path / "store"), str(tmp_path)), 2)
    lines = {name: tmp_path / name / "predictions.txt" for name in SHARES}
    assert {name for name, path in lines.items() if path.exists()} == {"uneven", "idle"}
    assert lines["uneven"].read_text() == "line 0 \nline 1 \nline 2 \nline 3 \n"
    assert lines["idle"].read_text() == "line 0 \nline 1 \n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"attention": 1}, "`attention` to be True or False but got 1"),
        ({"folder": 1}, "`folder` to be a path or None but got 1"),
    ],
)
def test_arguments_are_checked(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        TextPredictionWriter(**arguments)
