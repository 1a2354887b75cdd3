"""Arrow files and columns in Arrow's format: what is read, what is refused, and that large tables lie on the disk."""

from __future__ import annotations

import csv
import io
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from lit_sparse.ground import stored
from lit_sparse.data import TableDataModule, columns
from lit_sparse.data.readers import text_tables
from lit_sparse.data.readers.splits import read_split
from lit_sparse.errors import DataError


def arrow(table: Any, kind: str = "file", **options: Any) -> bytes:
    buffer = io.BytesIO()
    with getattr(pyarrow.ipc, f"new_{kind}")(buffer, table.schema, **options) as writer:
        writer.write_table(table, max_chunksize=7)
    return buffer.getvalue()


def table(values: Any) -> Any:
    return pyarrow.table({"x": values})


def read(path: Path, content: bytes) -> list[Any]:
    path.write_bytes(content)
    return [*read_split(None, str(path), {"x": "x"})["x"]]


@pytest.mark.parametrize("kind", ["file", "stream"])
@pytest.mark.parametrize(
    "values", [["a", "\u2028", ""] * 9, [1.5, 2.0], [[1], [], [2, 3]], [{"de": "ja"}] * 3, [True, False], [2**40, -1]]
)
def test_arrow_files(tmp_path: Path, kind: str, values: list[Any]) -> None:
    assert read(tmp_path / "a.arrow", arrow(table(values), kind)) == values


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("kind", ["file", "stream"])
@pytest.mark.parametrize("values", [["a" * 999] * 99, pyarrow.array(["a" * 999] * 99).dictionary_encode()])
def test_compressed_values_are_not_unpacked(tmp_path: Path, kind: str, codec: str, values: Any) -> None:
    content = arrow(table(values), kind, options=pyarrow.ipc.IpcWriteOptions(compression=codec))
    with pytest.raises(DataError, match="its values are compressed; write it without compression"):
        read(tmp_path / "a.arrow", content)


@pytest.mark.parametrize(
    "values",
    [
        pyarrow.array(["a" * 999] * 99).dictionary_encode(),
        pyarrow.array(["a" * 999] * 99, pyarrow.string_view()),
        pyarrow.nulls(99),
        pyarrow.array([[None] * 99]),
        pyarrow.array([{}] * 99),
        pyarrow.array([b""] * 99, pyarrow.binary(0)),
    ],
    ids=lambda values: str(values.type),
)
def test_values_without_bytes_of_their_own_are_refused(tmp_path: Path, values: Any) -> None:
    with pytest.raises(DataError, match=r"values of type .* are not read|no value in column"):
        read(tmp_path / "a.arrow", arrow(table(values)))


def test_fields_that_share_their_bytes_are_refused(tmp_path: Path) -> None:
    """A small file of many fields that refer to the same bytes would fill the memory."""
    rows, fields = 8 * 1001, 40
    values = pyarrow.StructArray.from_arrays([pyarrow.array(np.zeros(rows, bool))] * fields, [f"f{i}" for i in range(fields)])
    buffer = io.BytesIO()
    with pyarrow.ipc.new_stream(buffer, table(values).schema) as writer:
        writer.write_table(table(values))
    content, shared = buffer.getvalue(), bytearray(buffer.getvalue())
    sizes = [at for at in range(0, len(content) - 16, 8) if struct.unpack_from("<q", content, at + 8)[0] == rows // 8]
    assert len(sizes) == fields
    (body,) = (at for at in range(0, sizes[0], 8) if struct.unpack_from("<q", content, at)[0] == 1008 * fields)
    for at in sizes:
        struct.pack_into("<q", shared, at, 0)
    struct.pack_into("<q", shared, body, 1008)
    end = len(content) - 8
    assert read(tmp_path / "a.arrow", content)[0] == {f"f{i}": False for i in range(fields)}
    with pytest.raises(DataError, match="its values overlap"):
        read(tmp_path / "a.arrow", bytes(shared[: end - 1008 * (fields - 1)]) + content[end:])


@pytest.mark.parametrize("new", [pyarrow.ipc.new_stream, pyarrow.ipc.new_file])
def test_two_joined_arrow_files_are_no_file(tmp_path: Path, new: Any) -> None:
    """The rows of the second one would be left out in silence."""
    buffer, rows = io.BytesIO(), table([1.0, 2.0])
    with new(buffer, rows.schema) as writer:
        writer.write_table(rows)
    assert len(read(tmp_path / "a.arrow", buffer.getvalue())) == 2
    with pytest.raises(DataError, match="more follows after its end"):
        read(tmp_path / "a.arrow", 2 * buffer.getvalue())


def test_broken_arrow_files(tmp_path: Path) -> None:
    """Places outside of the file, text that is none, and any other changed byte: an error, or other values."""
    whole = arrow(table(["some text", "more"] * 40))
    draw = random.Random(0)
    for cut in (0, 5, 8, 40, len(whole) // 2):
        with pytest.raises(DataError, match=r"cannot be read as an Arrow file|holds no rows"):
            read(tmp_path / "a.arrow", whole[:cut])
    for _ in range(300):
        place = draw.randrange(len(whole))
        try:
            read(tmp_path / "a.arrow", whole[:place] + struct.pack("B", draw.randrange(256)) + whole[place + 1 :])
        except DataError as error:
            assert len(str(error)) < 700


def test_a_dotted_column_of_parquet_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "ALWAYS", 2**20)
    values = pyarrow.array(["x" * 2**18] * 40)
    parquet.write_table(pyarrow.table({"x.y": values}), tmp_path / "a.parquet", compression="zstd")
    with pytest.raises(DataError, match="to unpack to at most 1 MiB"):
        read_split(None, str(tmp_path / "a.parquet"), {"x": "x.y"})


def test_a_large_table_lies_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "MEMORY", 1000)
    made: list[Any] = []
    monkeypatch.setattr(columns, "_File", lambda file, schema, own=columns._File: made.append(schema) or own(file, schema))
    values = [f"text {n}" for n in range(9000)]
    (tmp_path / "t.csv").write_text("a,b\n" + "".join(f"{text},{n}\n" for n, text in enumerate(values)))
    found = read_split(str(tmp_path), "t", {"x": "a", "y": "b"})
    assert len(made) == 1
    assert found == {"x": values, "y": [*range(9000)]}
    text = found["x"]
    assert [text[0], text[-1], text[4096]] == [values[0], values[-1], values[4096]]
    for cut in (slice(4000, 4200), slice(None, 3), slice(8999, None), slice(5, 5), slice(None, None, 7), slice(9000, 9001)):
        assert text[cut] == values[cut]
    assert text + text == values + values
    assert columns.chosen(text, np.array([5, 8000])) == [values[5], values[8000]]
    with pytest.raises(IndexError):
        text[9000]
    monkeypatch.setattr(columns.tempfile, "TemporaryFile", lambda: open("/dev/full", "wb", 0))  # noqa: PTH123, SIM115
    with pytest.raises(DataError, match=r"cannot be kept in .* TMPDIR"):
        read_split(str(tmp_path), "t", {"x": "a", "y": "b"})


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet", "arrow"])
def test_numbers_of_every_kind_of_table(tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, group = [0.5, -2.0, 3.0, 1e3] * 5, [*range(20)], ["u", "v"] * 10
    made = pyarrow.table({"x": x, "y": y, "g": group})
    path = tmp_path / f"t.{ending}"
    if ending == "parquet":
        parquet.write_table(made, path)
    elif ending == "arrow":
        path.write_bytes(arrow(made))
    else:
        made.to_pandas().to_json(path, orient="records", lines=True) if ending == "jsonl" else made.to_pandas().to_csv(
            path, index=False, sep="," if ending == "csv" else "\t"
        )
    data = TableDataModule(str(path), features="x", target="y", group="g", use_all=True, intercept=False)
    data.setup()
    batch = data.fetch("train", 0, data.train_indices())
    assert batch["features"].squeeze(1).tolist() == x
    assert batch["target"].tolist() == y
    assert [data.group_names[i] for i in batch["group"].tolist()] == group


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_lines_with_and_without_quotation_marks(tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow reads the first lines, and Python the others."""
    monkeypatch.setattr(text_tables, "BLOCK", 64)
    values = [f"plain {n}" for n in range(50)] + ['say "yes", \nor not', "more"] * 20
    with (tmp_path / "t.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator=ending).writerows([["a", "b"], *([text, n] for n, text in enumerate(values))])
    assert read_split(str(tmp_path), "t", {"x": "a", "y": "b"}) == {"x": values, "y": [*range(90)]}
    with (tmp_path / "t.csv").open("a", newline="") as file:
        file.write(f'one{ending}"two",2{ending}')
    with pytest.raises(DataError, match=r"2 cells per line in .* but got 1 in line 112"):
        read_split(str(tmp_path), "t", {"x": "a", "y": "b"})
