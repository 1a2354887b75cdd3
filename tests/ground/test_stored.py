"""A file of a run or of results that is not plain, small and of the expected shape is refused in one message with its name."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from lit_sparse.ground import stored
from lit_sparse.cli.loggers import RunCSVLogger
from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.stored import check_members, read_attention, read_json, read_metrics, read_png, read_table, read_yaml
from lit_sparse.lightning.choice import pl

ATTENTION = {"title": "", "source": ["a", "b"], "output": ["o"], "heads": [[[0, 0.5]]]}
LAUGHS = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9))]
)
MERGES = "\n".join(["a0: &a0 {k: 1}", *(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}" for i in range(1, 9))])
rows = partial(read_table, needed=("cell", "seed"), integers=["seed"], numbers=("x",), lists=("values",))

BAD: dict[str, tuple[Callable[..., Any], bytes, str]] = {
    "yaml, binary": (read_yaml, b"\xff\xfe\x00a", "text in UTF-8 in .* but got the byte 0xff at position 0"),
    "yaml, list": (read_yaml, b"[1, 2]", "keys and values in .* but got list"),
    "yaml, empty": (read_yaml, b"", "keys and values in .* but got NoneType"),
    "yaml, syntax": (read_yaml, b"a: [", "YAML in .* but got in line 1"),
    "yaml, tag": (read_yaml, b"a: !!python/object/apply:os.system [x]", "could not determine a constructor"),
    "yaml, no date": (read_yaml, b"a: 2001-99-99", "month must be in 1..12"),
    "yaml, no bool": (read_yaml, b"a: !!bool x", "YAML in"),
    "yaml, deep": (read_yaml, b"a: " + b"[" * 5000, "YAML in|50 levels"),
    "yaml, levels": (read_yaml, b"a: " + b"[" * 60 + b"]" * 60, "50 levels"),
    "yaml, in itself": (read_yaml, b"a: &a [*a]", "contains itself by an alias"),
    "yaml, laughs": (read_yaml, LAUGHS.encode(), "100,000 values"),
    "yaml, merges": (read_yaml, MERGES.encode(), "merge"),
    "yaml, integer": (read_yaml, b"a: 0x" + b"f" * 50, "64 bits"),
    "yaml, base 60": (read_yaml, b"a: " + b"1:" * 400_000 + b"1", "a number of more than 64 bits"),
    "yaml, base 60, tag": (read_yaml, b"a: !!float '" + b"1:" * 400_000 + b"1'", "a number of more than 64 bits"),
    "yaml, digits": (read_yaml, b"a: " + b"9" * 5000, "a number of more than 64 bits"),
    "yaml, twice": (read_yaml, b"a: 1\nb: 1\na: 2", "in line 3, column 1: a second key 'a'"),
    "yaml, values": (read_yaml, b"a: [" + b"1," * 110_000 + b"]", "in line 1, .*100,000 values"),
    "yaml, large": (read_yaml, b"#" * (2**20 + 1), "at most 1,048,576 bytes"),
    "json, broken": (read_json, b"{broken", "JSON in"),
    "json, deep": (read_json, b"[" * 100_000, "JSON in"),
    "json, digits": (read_json, b'{"a": ' + b"9" * 5000 + b"}", "JSON in"),
    "json, twice": (read_json, b'{"a": {"b": 1, "b": 2}}', "JSON in .* but got a key is twice in an object with \\['b'\\]"),
    "json, list": (read_json, b"[]", "keys and values in .* but got list"),
    "json, utf-16": (read_json, "{}".encode("utf-16"), "text in UTF-8"),
    "attention, word": (read_attention, json.dumps(ATTENTION | {"heads": [[["x", 1]]]}).encode(), "a row of weights"),
    "attention, whole": (read_attention, json.dumps(ATTENTION | {"heads": [[[1, 0]]]}).encode(), "a row of weights"),
    "attention, large": (read_attention, json.dumps(ATTENTION | {"heads": [[[1e300, 0]]]}).encode(), "a row of weights"),
    "attention, row": (read_attention, json.dumps(ATTENTION | {"heads": [[[0.5]]]}).encode(), "a row of weights"),
    "attention, rows": (read_attention, json.dumps(ATTENTION | {"heads": [[]]}).encode(), "a row of weights"),
    "attention, heads": (read_attention, json.dumps(ATTENTION | {"heads": 3}).encode(), "a row of weights"),
    "attention, source": (read_attention, json.dumps(ATTENTION | {"source": "ab"}).encode(), "a row of weights"),
    "attention, tokens": (read_attention, json.dumps(ATTENTION | {"output": [1]}).encode(), "a row of weights"),
    "attention, title": (read_attention, json.dumps({**ATTENTION, "title": None}).encode(), "a title"),
    "attention, list": (read_attention, b"[]", "a title"),
    "picture": (read_png, b"<svg>", "a PNG picture in .* but got b'<svg>'"),
    "picture, huge": (read_png, b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + b"\0\1\0\0" * 2, "but got 65,536 x 65,536"),
    "picture, cut": (read_png, b"\x89PNG\r\n\x1a\n", "but got 0 x 0"),
    "rows, no column": (rows, b"cell,x\na,1\n", "columns cell, seed in .* but got none of the name 'seed'"),
    "rows, twice": (rows, b"cell,seed,x,x\na,1,2,3\n", "unique columns in .* but got 'cell, seed, x, x'"),
    "rows, seed": (rows, b"cell,seed\na,../b\n", "an integer as `seed` in line 2 in .* but got '../b'"),
    "rows, spelled": (rows, b"cell,seed\na,0\na,00\n", "an integer as `seed` in line 3 in .* but got '00'"),
    "rows, text": (rows, b"cell,seed,x\na,1,\nb,1,abc\n", "column 'x' in line 3 in .* but got 'abc'"),
    "rows, underscore": (rows, b"cell,seed,x\na,1,1_0\n", "column 'x' in line 2 in .* but got '1_0'"),
    "rows, other digits": (rows, "cell,seed,x\na,1,\uff11\n".encode(), "column 'x' in line 2 in"),
    "rows, space": (rows, b"cell,seed,x\na,1, 1\n", "column 'x' in line 2 in .* but got ' 1'"),
    "rows, open quote": (rows, b'cell,seed,x\na,1,2\n"b,1,2\nc,1,2\n', "a table in .* in line 4: unexpected end"),
    "rows, open quote, cut": (rows, b'cell,seed,x\na,1,2\n"b,1,2\nc,1,2', "a table in .* in line 4: unexpected end"),
    "rows, text after a quote": (rows, b'cell,seed,x\n"b"c,1,2\n', "a table in .* in line 2"),
    "rows, empty": (
        lambda path, within: read_table(path, within, needed=["x"], filled=["x"], numbers=["x"]),
        b"x,y\n1,2\n,3\n",
        "column 'x' in line 3 in .* but got ''",
    ),
    "rows, list": (rows, b"cell,seed,values\na,1,1 2 y\n", "column 'values' in line 2 in .* but got 'y'"),
    "rows, huge": (rows, b"cell,seed,x\na,1,1e300\n", "at most 1e\\+100"),
    "rows, short": (rows, b"cell,seed,x\na,1\n", "3 cells in line 2 in .* but got 2"),
    "rows, long": (rows, b"cell,seed,x\na,1,2,3", "3 cells in line 2 in .* but got 4"),
    "rows, quoted": (rows, b'cell,seed\n"' + b"a" * 200_000 + b'",1\n', "a table in"),
    "rows, binary": (rows, b"cell,seed\n\xff,1\n", "text in UTF-8"),
}


@pytest.mark.parametrize(("read", "content", "message"), BAD.values(), ids=[*BAD])
def test_bad_content_is_refused(read: Callable[..., Any], content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ConfigurationError, match=f"(?s){message}") as caught:
        read(tmp_path / "file", tmp_path)
    assert repr(str(tmp_path / "file")) in str(caught.value)
    assert len(str(caught.value)) < 800 + len(str(tmp_path))


@pytest.mark.parametrize("read", [read_yaml, read_json, read_table, read_attention, read_png])
@pytest.mark.parametrize("kind", ["symbolic link", "link above", "pipe", "folder", "device", "long", "nul"])
def test_only_plain_files_are_read(read: Callable[..., Any], kind: str, tmp_path: Path) -> None:
    run, path = tmp_path / "run", tmp_path / "run" / "file"
    run.mkdir()
    (tmp_path / "outside").write_bytes(b"a: 1\n")
    if kind == "symbolic link":
        path.symlink_to(tmp_path / "outside")
    elif kind == "link above":
        (run / "below").symlink_to(tmp_path)
        path = run / "below" / "outside"
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path, run = Path("/dev/zero"), Path("/dev")
    else:
        path = run / ("x" * 3000 if kind == "long" else "\0")
    with pytest.raises(ConfigurationError, match=kind if kind in ("pipe", "folder", "symbolic link", "device") else "got"):
        read(path, run)


def test_good_content_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    assert read_yaml(file) is read_json(file) is None
    assert read_table(file) == read_metrics(tmp_path) == []
    file.write_text("a: &a [1, x]\nb: *a\nd: 2001-01-02\n")
    assert (read_yaml(file, tmp_path) or {})["b"] == [1, "x"]
    file.write_text("a: &a {x: 1}\nb: {<<: *a}\n")
    assert (read_yaml(file) or {})["b"] == {"x": 1}, "a file of the user's"
    file.write_text(f"a: {{{', '.join(f'k{n}: 1:30' for n in range(200))}}}\n#{' ' * 2**20}\n")
    monkeypatch.setattr(stored, "MAX_VALUES", 100)
    assert len((read_yaml(file) or {})["a"]) == 200, "of any size"
    file.write_text("a: 1\na: 2\n")
    with pytest.raises(ConfigurationError, match="a second key 'a'"):
        read_yaml(file)
    monkeypatch.undo()
    file.write_text(json.dumps(ATTENTION))
    assert read_attention(file, tmp_path) == ATTENTION
    file.write_text('\ufeffcell,seed,x,values\na,-1,nan,1 2\n\n"b,\n",2,,\nc,3,0.')
    assert [row["cell"] for row in rows(file)] == ["a", "b,\n"], "a line that a killed process left is dropped"
    file.write_text('cell,seed,x,values\na,-1,nan,1 2\n"b')
    assert [row["cell"] for row in rows(file)] == ["a"], "also one within a quote"
    (tmp_path / "link").symlink_to(file)
    assert rows(tmp_path / "link") == rows(file), "the user may name a link"
    monkeypatch.setattr(stored, "MAX_CELLS", 7)
    with pytest.raises(ConfigurationError, match="at most 7 cells"):
        rows(file)
    file.write_text("x\n" + "1\n" * 5)
    monkeypatch.setattr(stored, "MAX_CELLS", 20)
    with pytest.raises(ConfigurationError, match="at most 20 cells"):  # a row takes memory, too
        read_table(file)


def test_metrics(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("epoch,step,val/loss\n0,5,\n1,9,inf\n")
    assert read_metrics(tmp_path) == [{"epoch": 0.0, "step": 5.0}, {"epoch": 1.0, "step": 9.0, "val/loss": float("inf")}]
    for line, message in (("nan,1,1", "finite numbers in column 'epoch'"), ("1,2,abc", "column 'val/loss' in line 2")):
        path.write_text(f"epoch,step,val/loss\n{line}\n")
        with pytest.raises(ConfigurationError, match=message):
            read_metrics(tmp_path)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("-1,1,1", "column 'epoch', at least 0"),
        ("0,-1,1", "column 'step', at least 0"),
        ("1,9,1\n0,12,1", "'val/loss' in order .* but got epoch 0, step 12 after epoch 1, step 9"),
        ("0,9,1\n1,5,1", "'val/loss' in order .* but got epoch 1, step 5 after epoch 0, step 9"),
        ("1,,1\n0,,1", "'val/loss' in order"),
        ("0,5,1\n0,5,\n0,5,2", r"one 'val/loss' at epoch 0, step 5 in .* but got 1\.0 and 2\.0"),
        ("0,5,nan\n0,5,2", "one 'val/loss'"),
    ],
)
def test_metrics_that_contradict_each_other_are_refused(lines: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text(f"epoch,step,val/loss\n{lines}\n")
    (tmp_path / "config.yaml").write_text("trainer:\n  accumulate_grad_batches: 1\n")
    with pytest.raises(ConfigurationError, match=message):
        read_metrics(tmp_path)


@pytest.mark.parametrize(
    "lines",
    [
        "0,5,1,\n0,5,,2\n0,5,1,\n1,5,2,",  # training, validation, a row that was logged ahead
        "0,0,,1\n,0,1,\n,0,2,\n0,9,,1\n,1,1,",  # a callback's rows, and steps that a model logs, have no epoch
        "0,9,nan,\n0,9,nan,",
        "0,49,,1\n0,0,1,\n0,99,,1\n1,1,2,",  # each column is in order
    ],
)
def test_metrics_as_lightning_logs_them(lines: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text(f"epoch,step,val/loss,train/loss\n{lines}\n")
    assert len(read_metrics(tmp_path)) == lines.count("\n") + 1


def test_validations_before_a_step_is_complete_are_logged_at_one_step(tmp_path: Path) -> None:
    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1, 1)

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.layer(batch).sum()
            return found

        def validation_step(self, batch: torch.Tensor) -> None:
            self.log("val/loss", float(self.trainer.fit_loop.batch_idx))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    options: dict[str, Any] = {"accumulate_grad_batches": 2, "val_check_interval": 1, "max_epochs": 1, "log_every_n_steps": 1}
    quiet: dict[str, Any] = dict.fromkeys(("enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    data = DataLoader(torch.ones(2, 1))
    pl.Trainer(accelerator="cpu", logger=RunCSVLogger(str(tmp_path)), **options, **quiet).fit(Model(), data, data)
    with pytest.raises(ConfigurationError, match="one 'val/loss' at epoch 0, step 0"):
        read_metrics(tmp_path)
    (tmp_path / "config.yaml").write_text("trainer:\n  accumulate_grad_batches: 2\n")
    assert [line["val/loss"] for line in read_metrics(tmp_path) if "val/loss" in line] == [0, 1]


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_archives_are_packed_by_deflate_or_not_at_all(method: int, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w", method) as archive:
        archive.writestr("a", bytes(1000))
    with zipfile.ZipFile(tmp_path / "x.zip") as archive:
        if method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            check_members(archive)
        else:
            with pytest.raises(zipfile.BadZipFile, match="another method than deflate"):
                check_members(archive)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_archives_have_each_name_once(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("a", b"1")
        check_members(archive)
        archive.writestr("a", b"2")
        with pytest.raises(zipfile.BadZipFile, match="the same name"):
            check_members(archive)


def test_columns_have_printable_names(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("epoch,val/\x1b[31mloss\n0,1\n")
    with pytest.raises(ConfigurationError, match="printable"):
        read_metrics(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"epoch,step\n0,x\n", b"epoch,step\n0,1,2\n", b"epoch,step\n\xff,1\n", b'epoch,step\n"' + b"a" * 200_000 + b"\n"],
)
def test_a_continued_run_reads_its_metrics_with_the_same_checks(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"metrics\.csv"):
        RunCSVLogger(str(tmp_path), kept=1).experiment  # noqa: B018
    assert (tmp_path / "metrics.csv").read_bytes() == content


def test_a_file_that_is_replaced_by_another_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between a check of the name and the opening of the file."""
    (tmp_path / "outside").write_text("a: 1\n")
    (tmp_path / "run").mkdir()
    makers: list[Callable[[], object]] = []
    file, opened = tmp_path / "run" / "file", os.open

    def replacing(path: Any, flags: int, *args: Any, **options: Any) -> int:
        if str(path).endswith("file"):
            file.unlink()
            makers.pop()()
        return opened(path, flags, *args, **options)

    monkeypatch.setattr(stored.os, "open", replacing)
    monkeypatch.setattr(stored.os, "supports_dir_fd", {replacing})
    for make, within, kind in (
        (lambda: file.symlink_to(tmp_path / "outside"), tmp_path / "run", "a symbolic link"),
        (lambda: os.mkfifo(file), None, "a pipe"),
    ):
        file.unlink(missing_ok=True)
        file.write_text("a: 2\n")
        makers.append(make)
        with pytest.raises(ConfigurationError, match=kind):
            read_yaml(file, within)


@pytest.mark.parametrize("text", ["a: &a [*a]", "&a {b: *a}", "a: &a {<<: *a, b: 1}"])
def test_a_file_of_the_user_has_no_value_that_contains_itself(text: str, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match="a value that contains itself by an alias"):
        read_yaml(tmp_path / "own.yaml")


def test_a_continued_table_has_all_rows_of_its_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("epoch,step\n0,1\n")
    with pytest.raises(ConfigurationError, match=r"Expected 2 rows in .* but got 1"):
        RunCSVLogger(str(tmp_path), kept=2).experiment  # noqa: B018
