"""Small files that unpack to much are refused, and large files are read without copies."""

from __future__ import annotations

import bz2
import gzip
import io
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import parquet as arrow

from lit_sparse.ground import stored
from lit_sparse.data import (
    TableDataModule,
)
from lit_sparse.data.readers import sizes
from lit_sparse.data.readers.arrays import open_arrays, read_npy
from lit_sparse.data.readers.splits import read_split
from lit_sparse.data.readers.text_files import read_lines
from lit_sparse.data.readers.word_vectors import read_vectors
from lit_sparse.errors import ConfigurationError, DataError
from lit_sparse.runs import result_files

from .test_bad_files import COMPLEX, VECTORS, Use, cached, dumped, game, houses, images, labels, npy, npz, table, vectors


# A bound that tests can reach without much memory: files unpack to 4 MiB, or to 250 times their size.
@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "ALWAYS", 2**22)


ZEROS = 2**23
TEXT = "x" * (ZEROS // 8)


def written(values: Callable[[], Any], **options: Any) -> bytes:
    """Return a Parquet file of one column."""
    buffer = io.BytesIO()
    arrow.write_table(pyarrow.table({"x": values()}), buffer, **{"compression": "zstd", **options})
    return buffer.getvalue()


def column(path: Path) -> dict[str, list[Any]]:
    return read_split(None, str(path), {"x": "x"})


def wide_vectors(path: Path) -> object:
    return read_vectors(str(path), [str(number) for number in range(2**9)])


def understated(content: bytes) -> bytes:
    """Return a Parquet file whose footer says that its column takes 40 bytes."""
    size = arrow.read_metadata(io.BytesIO(content)).row_group(0).column(0).total_uncompressed_size
    real, other = (bytes(2 * one >> 7 * place & 127 | 128 * (place < 3) for place in range(4)) for one in (size, 40))
    assert real in content
    return content.replace(real, other)


BOMBS: dict[str, tuple[Use, str, Callable[[], bytes]]] = {
    "idx": (
        images,
        "train-images-idx3-ubyte.gz",
        lambda: gzip.compress(bytes([0, 0, 8, 3]) + struct.pack(">3I", ZEROS // 784, 28, 28) + bytes(ZEROS // 784 * 784)),
    ),
    "text": (
        lambda path: read_split(None, str(path), {"x": "a"}),
        "a.jsonl.gz",
        lambda: gzip.compress(b'{"a": "' + b"x" * ZEROS + b'"}'),
    ),
    "libsvm-bz2": (table, "a.libsvm.bz2", lambda: bz2.compress(b"1 1:1\n" * (ZEROS // 6 + 1))),
    "libsvm": (table, "a.libsvm.gz", lambda: gzip.compress(b"1 1:1\n" * (ZEROS // 6 + 1))),
    "npz-table": (table, "a.npz", lambda: npz(X=npy(np.zeros((ZEROS // 8, 1))), y=npy(np.zeros(ZEROS // 8)))),
    "npz-labels": (labels, "a.npz", lambda: npz(labels=npy(np.zeros(ZEROS, np.uint8)))),
    "npz-game": (game, "a.npz", lambda: npz(features=npy(np.zeros((ZEROS, 1), np.uint8)))),
    "vectors-gz": (vectors, "a.txt.gz", lambda: gzip.compress(b"a 1 2\n" * (ZEROS // 6 + 1))),
    "vectors-zip": (vectors, "a.zip", lambda: zipped("a.txt", b"a 1 2\n" * (ZEROS // 6 + 1))),
    "vectors-pt": (vectors, "a.pt", lambda: deflated(cached(["a", "b"], torch.zeros(2, ZEROS // 8)))),
    **{
        f"parquet-{kind}": (column, "a.parquet", partial(written, values, **options))
        for kind, (values, options) in {
            "text": (lambda: pyarrow.array([TEXT] * 8), {}),
            "dictionary": (lambda: pyarrow.array([TEXT] * 8).dictionary_encode(), {}),
            "fixed": (lambda: pyarrow.array([TEXT.encode()] * 8, pyarrow.binary(len(TEXT))), {}),
            "struct": (lambda: pyarrow.array([{"a": "b", "c": TEXT}] * 8), {}),
            "list": (lambda: pyarrow.array([[], [TEXT] * 8]), {}),
            "map": (lambda: pyarrow.array([[(TEXT, "a")]] * 8, pyarrow.map_(pyarrow.string(), pyarrow.string())), {}),
            "numbers": (lambda: pyarrow.array([[1] * (ZEROS // 8)]), {}),
            "numbers in structs": (lambda: pyarrow.array([[{"a": 1}] * (ZEROS // 100)]), {}),
            "plain": (lambda: pyarrow.array([TEXT * 8]), {"use_dictionary": False, "compression": "zstd"}),
        }.items()
    },
    "parquet-footer": (
        column,
        "a.parquet",
        lambda: understated(written(lambda: pyarrow.array([TEXT * 8]), use_dictionary=False, write_statistics=False)),
    ),
    "vectors-wide": (wide_vectors, "a.txt", lambda: b"a" + b" 1" * 2**12 + b"\n"),
    "sklearn": (houses, "cal_housing_py3.pkz", lambda: dumped(np.zeros((ZEROS // 72 + 1, 9)))),
}


def zipped(name: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return buffer.getvalue()


def deflated(archive: bytes) -> bytes:
    """Return a zip archive with its members compressed."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as old, zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    return buffer.getvalue()


@pytest.mark.cases(quick=2, gate=99)
@pytest.mark.parametrize("case", BOMBS)
def test_a_small_file_that_unpacks_to_much_is_refused(tmp_path: Path, small: None, case: str) -> None:
    use, name, content = BOMBS[case]
    packed = content()
    assert 250 * len(packed) < ZEROS
    (tmp_path / name).write_bytes(packed)
    with pytest.raises(DataError, match=r"to unpack to at most 4 MiB but got more: .* takes .* or more"):
        use(tmp_path / name)


MANY = 2**20


LONG: dict[str, tuple[Use, str, Callable[[], bytes]]] = {
    "lines": (read_lines, "a.txt.gz", lambda: gzip.compress(b"\n" * MANY)),
    "bz2": (read_lines, "a.txt.bz2", lambda: bz2.compress(b"\n" * MANY)),
    "segments": (read_lines, "a.sgm.gz", lambda: gzip.compress(b"\n" * MANY)),
    "csv": (column, "a.csv.gz", lambda: gzip.compress(b"\n" * MANY)),
    "tsv": (column, "a.tsv.gz", lambda: gzip.compress(b"\n" * MANY)),
    "cells": (column, "a.tsv.gz", lambda: gzip.compress(b"\t" * MANY)),
    "numbers": (column, "a.json.gz", lambda: gzip.compress(b'{"x":[' + b"1," * MANY + b"1]}")),
    "jsonl": (column, "a.jsonl.gz", lambda: gzip.compress(b"\n" * MANY)),
    "json": (column, "a.json.gz", lambda: gzip.compress(b"[" + b"{}," * MANY + b"{}]")),
    "json-values": (column, "a.json.gz", lambda: gzip.compress(b'{"x":[' + b"[]," * MANY + b"[]]}")),
    "parquet": (column, "a.parquet", lambda: written(lambda: pyarrow.array(["a"] * MANY))),
    "libsvm": (table, "a.libsvm.gz", lambda: gzip.compress(b"\n" * MANY)),
    "vectors-gz": (vectors, "a.txt.gz", lambda: gzip.compress(b"\n" * MANY)),
    "vectors-zip": (vectors, "a.zip", lambda: zipped("a.txt", b"\n" * MANY)),
    "vectors-pt": (vectors, "a.pt", lambda: deflated(cached(["a"] * MANY, torch.zeros(2, 2)))),
    "labels": (labels, "a.txt.gz", lambda: gzip.compress(b"1\n" * MANY)),
}


def test_few_columns_are_read(tmp_path: Path) -> None:
    arrow, parquet = pyarrow, pytest.importorskip("pyarrow.parquet")
    wide = arrow.array([{f"a{number}": "b" for number in range(1001)}])
    parquet.write_table(arrow.table({f"c{number}": wide.slice(0, 1) for number in range(2)}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="at most 1,000 values in a row"):
        read_split(None, str(tmp_path / "a.parquet"), {"x": "c0.a7"})
    with pytest.raises(DataError, match=r"no column 'none'\. Its columns are x0, .*, x99\.$"):
        parquet.write_table(arrow.table({f"x{number}": ["b"] for number in range(150)}), tmp_path / "a.parquet")
        read_split(None, str(tmp_path / "a.parquet"), {"x": "none"})


@pytest.mark.cases(quick=6, gate=99)
@pytest.mark.parametrize("case", LONG)
def test_a_small_file_of_many_lines_or_rows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    monkeypatch.setattr(sizes, "ROWS", 2**16)
    use, name, content = LONG[case]
    (tmp_path / name).write_bytes(content())
    with pytest.raises(DataError, match=r"Expected at most [\d,]+ lines, rows or values in .* but got more"):
        use(tmp_path / name)


def test_plain_files_have_as_many_lines_as_they_like(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "ROWS", 2)
    (tmp_path / "a.txt").write_bytes(b"\n" * 1000)
    assert len(read_lines(tmp_path / "a.txt")) == 1000
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(bytes(np.random.default_rng(0).integers(97, 99, 1000)) + b"\n" * 500))
    assert len(read_lines(tmp_path / "a.txt.gz")) == 500


@pytest.mark.timeout(20)
@pytest.mark.parametrize("start", [b"N0" * 2**26, b"B\xff\xff\xff\x7f" + bytes(2**26), b"S'" + b"a" * 2**26])
def test_a_long_description_of_an_array_is_refused(tmp_path: Path, start: bytes) -> None:
    (tmp_path / "cal_housing_py3.pkz").write_bytes(zlib.compress(start, 1))
    with pytest.raises(DataError, match="scikit-learn's copy"):
        houses(tmp_path / "cal_housing_py3.pkz")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("tag", ["<seg>", "</seg>", "<seg ", "</seg><seg>"])
def test_many_tags_are_counted_in_one_pass(tmp_path: Path, tag: str) -> None:
    (tmp_path / "a.sgm").write_text(tag * 2**18)
    with pytest.raises(DataError, match="Expected <seg>"):
        read_lines(tmp_path / "a.sgm")


def test_a_sparse_table_of_few_bytes_is_read(tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """400 kB of 1.6 kB; a table of a feature more than the file makes plausible is refused."""
    (tmp_path / "a.libsvm").write_bytes(b"1 500:1\n" * 200)
    data = TableDataModule(str(tmp_path / "a.libsvm"), intercept=False, val_size=1, test_size=1)
    data.setup()
    assert data.fetch("val", 0, torch.arange(1))["features"].shape == (1, 500)
    (tmp_path / "wide.libsvm").write_bytes(b"1 90000000:1\n")
    with pytest.raises(DataError, match=r"a dense table of 1 rows and 90000000 features takes 687 MiB"):
        table(tmp_path / "wide.libsvm")


@pytest.mark.parametrize(
    ("name", "read", "content"),
    [
        ("a.sgm.gz", read_lines, lambda: gzip.compress(b"<seg>a</seg>" * 600)),
        ("a.libsvm.gz", table, lambda: gzip.compress(b"1 " + b" ".join(b"%d:1" % i for i in range(1, 1200)))),
        ("a.npz", table, lambda: npz(X=npy(np.full(1200, b"1")), y=npy(np.ones(1200)))),
    ],
)
def test_the_parts_of_a_file_are_counted(
    name: str, read: Use, content: Callable[[], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each segment, sparse value or word becomes an object."""
    (tmp_path / name).write_bytes(content())
    monkeypatch.setattr(sizes, "ROWS", 1000)
    monkeypatch.setattr(sizes, "ROWS_PER_BYTE", 0)
    with pytest.raises(DataError, match="at most 1,000 lines, rows or values"):
        read(tmp_path / name)


def test_a_table_that_is_compressed_too_well_can_be_saved_otherwise(tmp_path: Path, small: None) -> None:
    x, y = np.eye(1000)[np.arange(2000) % 1000], np.ones(2000)
    np.savez_compressed(tmp_path / "a.npz", X=x, y=y)
    with pytest.raises(DataError, match=r"or save it uncompressed, with numpy\.savez\."):
        table(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", X=x, y=y)
    table(tmp_path / "a.npz")


def test_errors_of_what_uses_arrays_keep_their_kind(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=VECTORS)
    with pytest.raises(ValueError, match="of the caller") as caught, open_arrays(tmp_path / "a.npz"):
        raise ValueError("of the caller")
    assert not isinstance(caught.value, DataError)
    (tmp_path / "b.npz").write_bytes(corrupt(npz(x=npy(np.random.default_rng(0).random(10**5)))))
    with open_arrays(tmp_path / "b.npz") as arrays, pytest.raises(DataError, match="cannot be read as an array"):
        arrays["x"]


def corrupt(archive: bytes) -> bytes:
    """Return an archive with a wrong byte in the middle of its first member."""
    place = len(archive) // 2
    return archive[:place] + bytes([archive[place] ^ 255]) + archive[place + 1 :]


def stored_npy(path: Path, array: np.ndarray) -> None:
    np.save(path, array)


def stored_npz(path: Path, array: np.ndarray) -> None:
    np.savez_compressed(path, x=array)


READ: dict[str, tuple[str, Callable[[Path, np.ndarray], object], Callable[[Path], np.ndarray]]] = {
    "npy": ("a.npy", stored_npy, read_npy),
    "npz": ("a.npz", stored_npz, lambda path: first_of(path)),
}


def first_of(path: Path) -> np.ndarray:
    with open_arrays(path) as arrays:
        return arrays["x"]


@pytest.mark.cases(quick=2)
@pytest.mark.parametrize("case", READ)
@pytest.mark.parametrize("order", ["C", "F"])
def test_reading_an_array_takes_memory_once(tmp_path: Path, case: str, order: Any) -> None:
    name, write, read = READ[case]
    array = np.asarray(np.random.default_rng(0).integers(0, 9, (4000, 1000)) / 8, order=order)  # 31 MiB
    write(tmp_path / name, array)
    tracemalloc.start()
    try:
        found = read(tmp_path / name)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(found, array)
    assert found.flags.writeable
    assert array.nbytes < peak < 1.5 * array.nbytes


@pytest.mark.gate
def test_a_file_that_unpacks_to_much_but_is_large_is_read(tmp_path: Path, small: None) -> None:
    lines = np.random.default_rng(0).integers(0, 10**9, 700_000)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"".join(b'{"a": %d}\n' % number for number in lines), 1))
    assert read_split(None, str(tmp_path / "a.jsonl.gz"), {"x": "a"})["x"] == lines.tolist()


class TestHDF5:
    @pytest.fixture
    def h5py(self) -> Any:
        return pytest.importorskip("h5py", reason="the extra 'h5' is not installed")

    @pytest.mark.parametrize(
        ("width", "filters", "words"),
        [(2**28, 1, "a chunk of the array 'x' of .* takes 2 GiB"), (2, 2, "each filter once")],
    )
    def test_chunks_that_unpack_to_much_are_not_read(
        self, width: int, filters: int, words: str, tmp_path: Path, h5py: Any
    ) -> None:
        with h5py.File(tmp_path / "a.h5", "w") as file:
            options = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            options.set_chunk((width,))
            for _ in range(filters):
                options.set_deflate(9)
            space = h5py.h5s.create_simple((1,), (h5py.h5s.UNLIMITED,))
            h5py.h5d.create(file.id, b"x", h5py.h5t.IEEE_F64LE, space, dcpl=options)
        with open_arrays(tmp_path / "a.h5") as arrays, pytest.raises(DataError, match=words):
            arrays["x"]

    def test_chunks_are_as_large_as_the_header_says(self, tmp_path: Path, h5py: Any) -> None:
        with h5py.File(tmp_path / "a.h5", "w") as file:
            for name, size in (("right", 800), ("wrong", 805)):
                made = file.create_dataset(name, (100,), "<f8", chunks=(100,), compression="gzip")
                made.id.write_direct_chunk((0,), zlib.compress(bytes(size)))
            file.create_dataset("checked", data=np.ones(100), chunks=(100,), compression="gzip", fletcher32=True)
        with open_arrays(tmp_path / "a.h5") as arrays:
            assert arrays["right"].sum() == 0
            assert arrays["checked"].sum() == 100
            with pytest.raises(DataError, match="chunks of 800 bytes in the array 'wrong'"):
                arrays["wrong"]

    def test_broken_links_and_links_to_other_files_are_not_arrays(self, tmp_path: Path, h5py: Any) -> None:
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["features"] = VECTORS
            file["soft"] = h5py.SoftLink("/nowhere")
            file["outside"] = h5py.ExternalLink("other.h5", "/")
            file["through"] = h5py.SoftLink("/outside/x")
        with h5py.File(tmp_path / "other.h5", "w") as file:
            file["x"] = np.arange(60)
        game(tmp_path / "a.h5")
        for name in ("soft", "through"):
            with pytest.raises(DataError, match=rf"an array '{name}' in .* but got features"):
                game(tmp_path / "a.h5", labels=name)

    def test_words_are_as_wide_as_the_longest(self, tmp_path: Path, small: None, h5py: Any) -> None:
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["short"] = ["a"] * 999
            file["long"] = [*["a"] * 999, "b" * 2**14]
        with open_arrays(tmp_path / "a.h5") as arrays:
            assert arrays["short"].tolist() == ["a"] * 999
            with pytest.raises(DataError, match=r"the array 'long' takes 62\.5 MiB"):
                arrays["long"]

    def test_endless_rows_without_numbers_are_refused(self, tmp_path: Path, h5py: Any) -> None:
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file.create_dataset("features", (10**12, 0), "f4")
        with pytest.raises(DataError, match="an array with entries"):
            game(tmp_path / "a.h5")

    def test_what_was_never_written_takes_no_memory(self, tmp_path: Path, h5py: Any) -> None:
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file.create_dataset("features", (10**9, 100), "f4", chunks=(1000, 100))
        with pytest.raises(DataError, match="the array 'features' takes 373 GiB"):
            game(tmp_path / "a.h5")

    def test_many_chunks_are_not_listed(self, tmp_path: Path, h5py: Any) -> None:
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file.create_dataset("features", (2**27, 1), "u1", chunks=(1, 1))
        with pytest.raises(DataError, match="at most 4,194,304 lines, rows or values"):
            game(tmp_path / "a.h5")

    def test_values_in_other_files_are_not_read(self, tmp_path: Path, h5py: Any) -> None:
        (tmp_path / "secret").write_bytes(VECTORS.tobytes())
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file.create_dataset("features", (60, 3), "f8", external=str(tmp_path / "secret"))
        with pytest.raises(DataError, match="references to other files"):
            game(tmp_path / "a.h5")

    def test_complex_numbers_and_named_fields(self, tmp_path: Path, h5py: Any) -> None:
        for values, words in ((COMPLEX, "complex"), (np.zeros(60, [("x", "f4")]), "numbers or words")):
            with h5py.File(tmp_path / "a.h5", "w") as file:
                file["features"] = values
            with pytest.raises(DataError, match=words):
                game(tmp_path / "a.h5")


def test_a_table_in_a_billion_parts(tmp_path: Path) -> None:
    for number in (0, 1):
        (tmp_path / f"train-{number:09d}-of-1000000000.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(DataError, match=r"all 1000000000 parts of .*train-000000002-of"):
        read_split(str(tmp_path), "train", {"x": "a"})


MANY = 100_000


@pytest.mark.timeout(20)
def test_long_numbers_take_little_time(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text(f"a 1\nb {'1' * MANY}x\n")
    with pytest.raises(DataError, match="is not a vector"):
        read_vectors(str(path), ["b"])
    path.write_text(f"a\n{'1' * MANY}x\n")
    with pytest.raises(ConfigurationError, match="Expected numbers"):
        result_files.read_lines(path, tmp_path)
