"""Files at URLs: tables, parallel text and folders through fsspec."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from lit_sparse.data import TableDataModule, TranslationDataModule
from lit_sparse.data.readers import sizes
from lit_sparse.data.readers.splits import read_split
from lit_sparse.data.readers.text_files import read_lines
from lit_sparse.errors import DataError
from tests.data.test_stream import order_of

AB = {"x": "a", "y": "b"}
ROWS = {"x": [1, 2], "y": ["u", "v"]}


@pytest.fixture
def memory() -> Iterator[Any]:
    files = fsspec.filesystem("memory")
    files.store.clear()
    yield files
    files.store.clear()


def table() -> Any:
    return pyarrow.table({"a": [1, 2], "b": ["u", "v"]})


def as_parquet() -> bytes:
    buffer = io.BytesIO()
    parquet.write_table(table(), buffer)
    return buffer.getvalue()


def as_arrow() -> bytes:
    buffer = io.BytesIO()
    with pyarrow.ipc.new_file(buffer, table().schema) as writer:
        writer.write_table(table())
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", b"a,b\n1,u\n2,v\n"),
        ("t.csv.gz", gzip.compress(b"a,b\n1,u\n2,v\n", mtime=0)),
        ("t.jsonl", b'{"a": 1, "b": "u"}\n{"a": 2, "b": "v"}\n'),
        ("t.parquet", as_parquet()),
        ("t.arrow", as_arrow()),
    ],
)
def test_tables_at_urls(memory: Any, name: str, content: bytes, tmp_path: Path) -> None:
    memory.pipe_file(f"/some/folder/{name}", content)
    assert read_split("memory://some/folder", "t", AB) == ROWS
    assert read_split(None, f"memory://some/folder/{name}", AB) == ROWS
    (tmp_path / name).write_bytes(content)
    assert read_split(tmp_path.as_uri(), "t", AB) == ROWS
    with pytest.raises(DataError, match=r"'memory://.*some/folder/tt' does not exist\..* holds t\..*Did you mean 't'"):
        read_split("memory://some/folder", "tt", AB)
    with pytest.raises(DataError, match="The folder 'memory://nowhere' does not exist"):
        read_split("memory://nowhere", "t", AB)


def test_parallel_text_and_numbers_at_urls(memory: Any) -> None:
    for split in ("train", "val", "test"):
        for side in ("de", "en"):
            memory.pipe_file(f"/pairs/{split}.{side}", b"ein satz\nnoch ein satz\n")
    assert read_lines("memory://pairs/train.de") == ["ein satz", "noch ein satz"]
    for streaming in (False, True):
        assert sorted(order_of(TranslationDataModule("memory://pairs", source="de", target="en", streaming=streaming))) == [
            0,
            1,
        ]
    memory.pipe_file("/rows.csv", b"x,y\n" + b"".join(b"%d,%d\n" % (n, 2 * n) for n in range(50)))
    buffer = io.BytesIO()
    np.savez(buffer, x=np.ones((50, 1)), y=np.ones(50))
    memory.pipe_file("/rows.npz", buffer.getvalue())
    for name in ("rows.csv", "rows.npz"):
        data = TableDataModule(f"memory://{name}", features="x", target="y")
        data.setup()
        assert data.size("train") == 40


def test_urls_that_cannot_be_read(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for url in ("nosuch://x/t.csv", "zip://t.csv::memory://a.zip", "reference://x", "simplecache::memory://a.csv"):
        with pytest.raises(DataError, match=r"cannot be reached|points into another file"):
            read_split(None, url, AB)
    with pytest.raises(DataError, match=r"There is no file|does not exist"):
        read_lines("memory://none.txt")
    monkeypatch.setattr(sizes, "ROWS", 2**10)
    memory.pipe_file("/bomb.csv.gz", gzip.compress(b"\n" * 2**20, mtime=0))
    with pytest.raises(DataError, match="Expected at most 4,"):
        read_split(None, "memory://bomb.csv.gz", AB)
