"""Files that are broken, forged, or hold something else: each gives one message, and none runs code or fills the memory."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import pickle
import struct
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import torch

from lit_sparse.data import (
    CaliforniaHousingDataModule,
    LabelsFromFile,
    MNISTDataModule,
    Points,
    ReferentialGameDataModule,
    SummarizationDataModule,
    TableDataModule,
    TransportDataModule,
)
from lit_sparse.data.readers import sizes
from lit_sparse.data.readers.arrays import open_arrays, read_npy
from lit_sparse.data.readers.gettext import read_catalogues
from lit_sparse.data.readers.joblib_arrays import read_joblib_array
from lit_sparse.data.readers.splits import read_split
from lit_sparse.data.readers.word_vectors import read_vectors
from lit_sparse.errors import DataError, LitSparseError
from tests.data.images.test_mnist import idx

Use = Callable[[Path], object]


def npy(array: np.ndarray, *, shape: tuple[int, ...] | None = None, pickled: bool = False) -> bytes:
    """Return a ``.npy`` file, with a header that claims another shape."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=pickled)
    content = buffer.getvalue()
    if shape is None:
        return content
    old, new = str(array.shape), str(shape)
    size = struct.unpack_from("<H", content, 8)[0]
    header = content[10 : 10 + size].replace(old.encode(), new.encode()).rstrip(b" \n")
    return content[:8] + struct.pack("<H", size) + header.ljust(size - 1) + b"\n" + content[10 + size :]


def npz(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return buffer.getvalue()


VECTORS = np.random.default_rng(0).random((60, 3))
ONES = np.ones(60)


# What reads a file of each kind.
def table(path: Path) -> object:
    return TableDataModule(str(path)).setup()


def named_table(path: Path) -> object:
    return TableDataModule(str(path), features="a", target="b").setup()


def labels(path: Path) -> object:
    return LabelsFromFile(str(path))(torch.zeros(60, 2), torch.zeros(60, dtype=torch.int64), 4)


def points(path: Path) -> object:
    return TransportDataModule(Points(str(path)), Points.of(VECTORS)).setup()


def game(path: Path, **options: Any) -> object:
    return ReferentialGameDataModule(path=str(path), candidates=2, **options).setup()


def game_with_labels(path: Path) -> object:
    return game(path, labels="label")


def game_with_attributes(path: Path) -> object:
    return game(path, attributes="kind")


def images(path: Path) -> object:
    for prefix, size in (("train", 60), ("t10k", 20)):
        for kind, shape in (("images-idx3", (size, 28, 28)), ("labels-idx1", (size,))):
            file = path.parent / f"{prefix}-{kind}-ubyte"
            if not file.with_name(f"{file.name}.gz").exists():
                file.write_bytes(idx(np.zeros(shape)))
    return MNISTDataModule(folder=str(path.parent), val_size=10, labelled=20).setup()


def vectors(path: Path) -> object:
    return read_vectors(str(path), ["a", "b"])


def articles(path: Path) -> object:
    for split in ("val", "test"):
        (path.parent / f"{split}.jsonl").write_text('{"article": "a b", "title": "a"}\n')
    data = SummarizationDataModule(str(path.parent), source="article", target="title")
    data.setup("fit")
    return data.size("train")


def catalogues(path: Path) -> object:
    return read_catalogues(folders=[str(path.parent)], language="fr")


def houses(path: Path) -> object:
    return CaliforniaHousingDataModule("sklearn", path=str(path.parent)).setup()


def torch_saved(thing: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    return buffer.getvalue()


def cached(words: object, tensor: torch.Tensor) -> bytes:
    """Return a file of torchtext's ``.vector_cache``."""
    return torch_saved((words, {}, tensor, 2))


def wide(digits: int) -> bytes:
    number = "9" * digits
    return f"a,b\n1,2\n{number},3\n".encode()


def overlapping(entries: int, size: int) -> bytes:
    """Return a compiled catalogue each of whose texts is the whole file."""
    end = 28 + 16 * entries
    text = size.to_bytes(4, "little") + end.to_bytes(4, "little")
    return struct.pack("<7I", 0x950412DE, 0, entries, 28, 28 + 8 * entries, 0, 0) + 2 * entries * text + b"x" * size


HUGE = (10**12, 3)
COMPLEX = VECTORS + 1j
CASES: dict[str, tuple[Use, str, bytes, str]] = {
    # integers of 400 digits
    "digits-csv": (
        named_table,
        "a.csv",
        wide(400),
        r"integers of at most 308 digits in column 'a' .*got a longer integer in row 2",
    ),
    "digits-csv-5000": (named_table, "a.csv", wide(5000), "integers of at most 308 digits"),
    "digits-jsonl": (
        lambda path: read_split(None, str(path), {"x": "a"}),
        "a.jsonl",
        b'{"a": %s}' % (b"9" * 400),
        "integers of at most 308 digits in column 'a'",
    ),
    # headers that claim more than the file holds
    "claim-table": (table, "a.npz", npz(X=npy(VECTORS, shape=HUGE), y=npy(ONES)), "as in its header, but got 1440 bytes"),
    "claim-labels": (labels, "a.npy", npy(ONES, shape=(10**13,)), "as in its header, but got 480 bytes"),
    "claim-labels-npz": (labels, "a.npz", npz(labels=npy(ONES, shape=(10**13,))), "as in its header"),
    "claim-points": (points, "a.npy", npy(VECTORS, shape=HUGE), "as in its header"),
    "claim-game": (game, "a.npy", npy(VECTORS, shape=HUGE), "as in its header"),
    "claim-game-npz": (game, "a.npz", npz(features=npy(VECTORS, shape=HUGE)), "as in its header"),
    "claim-overflow": (game, "a.npy", npy(VECTORS, shape=(2**62, 9)), "as in its header"),
    "claim-negative": (game, "a.npy", npy(VECTORS, shape=(-1, 3)), "as in its header"),
    # sparse rows that are too wide
    "libsvm-index": (table, "a.libsvm", b"1 999999999999999:1\n", "cannot be read as LIBSVM data"),
    "libsvm-digits": (table, "a.libsvm", b"1 " + b"9" * 400 + b":1\n", "cannot be read as LIBSVM data"),
    "libsvm-dense": (
        table,
        "a.libsvm",
        b"1 2000000000:1\n",
        r"at most 4 GiB in .* got 1 rows and 2000000000 features, which take 14\.9 GiB",
    ),
    # nothing in it
    "empty-points": (points, "a.npy", b"", "cannot be read as an array"),
    "empty-game": (game, "a.npy", b"", "cannot be read as an array"),
    "no-vectors": (game, "a.npy", npy(np.zeros((0, 3))), r"vectors \(M, F\) .* but got \(0, 3\)"),
    "no-points": (points, "a.npy", npy(np.zeros((0, 3))), r"points \(N, d\)"),
    "no-images": (images, "train-images-idx3-ubyte.gz", gzip.compress(idx(np.zeros((0, 28, 28)))), "examples in .*header"),
    "no-labels": (images, "t10k-labels-idx1-ubyte.gz", gzip.compress(idx(np.zeros(0))), "examples in .*header"),
    # the wrong kind of values
    "complex-table": (table, "a.npz", npz(X=npy(COMPLEX), y=npy(ONES)), "real numbers but got complex ones in the array 'X'"),
    "complex-points": (points, "a.npy", npy(COMPLEX), "real numbers but got complex"),
    "complex-game": (game, "a.npy", npy(COMPLEX), "real numbers but got complex"),
    "complex-labels": (labels, "a.npy", npy(ONES + 1j), "real numbers but got complex"),
    "dates": (points, "a.npy", npy(np.zeros(60, "datetime64[D]")), r"numbers or words but got the type datetime64"),
    "named-fields": (points, "a.npy", npy(np.zeros(60, [("x", "f4")])), "numbers or words"),
    "word-attributes": (
        game_with_attributes,
        "a.npz",
        npz(features=npy(VECTORS), kind=npy(np.full((60, 2), "red"))),
        r"integers \(60, A\) in .*, with 'kind' of type <U3\. Words can be numbered",
    ),
    "endless-attributes": (
        game_with_attributes,
        "a.npz",
        npz(features=npy(VECTORS), kind=npy(np.full((60, 2), np.inf))),
        r"integers \(60, A\)",
    ),
    "endless-classes": (
        game_with_labels,
        "a.npz",
        npz(features=npy(VECTORS), label=npy(np.full(60, np.inf))),
        "a whole number or a word for each",
    ),
    "latin-classes": (
        game_with_labels,
        "a.npz",
        npz(features=npy(VECTORS), label=npy(np.full(60, b"\xe9t\xe9"))),
        "words in UTF-8",
    ),
    "surrogates": (
        articles,
        "train.jsonl",
        json.dumps({"article": "a \ud83d b", "title": "c"}).encode(),
        r"whole characters as source but got .* '\\ud83d' in row 1 of the train data .* position 3",
    ),
    # word vectors
    "words-numbers": (vectors, "a.pt", cached([3, 4], torch.ones(2, 2)), "words in .* got 3 at position 1"),
    "words-sparse": (vectors, "a.pt", cached(["a", "b"], torch.ones(2, 2).to_sparse()), "a dense tensor .*sparse_coo"),
    "words-meta": (vectors, "a.pt", cached(["a", "b"], torch.ones(2, 2, device="meta")), "dense tensor .*'meta'"),
    "words-complex": (vectors, "a.pt", cached(["a", "b"], torch.ones(2, 2) * 1j), "floating numbers .*complex64"),
    "words-nan": (vectors, "a.pt", cached(["a", "b"], torch.full((2, 2), torch.nan)), "finite vectors .* for 'a'"),
    "words-wide": (vectors, "a.txt", b"a" + b" 1" * 30_000, "at most 20,000 numbers but .* 30,000"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_bad_file_gives_one_message(tmp_path: Path, case: str) -> None:
    use, name, content, words = CASES[case]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(LitSparseError, match=words) as caught:
        use(tmp_path / name)
    assert isinstance(caught.value, DataError)
    assert len(str(caught.value)) < 700


# A bound that tests can reach without much memory: files unpack to 4 MiB, or to 250 times their size.
@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "ALWAYS", 2**22)


ZEROS = 2**23
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


def dumped(thing: object) -> bytes:
    buffer = io.BytesIO()
    joblib.dump(thing, buffer, compress=("zlib", 9))
    return buffer.getvalue()


@pytest.mark.parametrize("case", BOMBS)
def test_a_small_file_that_unpacks_to_much_is_refused(tmp_path: Path, small: None, case: str) -> None:
    use, name, content = BOMBS[case]
    packed = content()
    assert 250 * len(packed) < ZEROS
    (tmp_path / name).write_bytes(packed)
    with pytest.raises(DataError, match=r"to unpack to at most 4 MiB but got more: .* takes .* or more"):
        use(tmp_path / name)


def test_a_sparse_table_of_few_bytes_is_read(tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """8 MiB of 14 KiB; a bound of its own holds for dense tables, and not for those that the file fills."""
    (tmp_path / "a.libsvm").write_bytes(b"1 500:1\n" * 2000)
    data = TableDataModule(str(tmp_path / "a.libsvm"), intercept=False, val_size=1, test_size=1)
    data.setup()
    assert data.fetch("val", 0, torch.arange(1))["features"].shape == (1, 500)
    monkeypatch.setattr(sizes, "DENSE", 1000)
    with pytest.raises(DataError, match=r"got 2000 rows and 500 features, which take 7\.63 MiB"):
        table(tmp_path / "a.libsvm")
    (tmp_path / "full.libsvm").write_bytes(b"1 1:1 2:3\n2 1:2 2:2\n" * 100)
    table(tmp_path / "full.libsvm")


def test_a_table_that_is_compressed_too_well_can_be_saved_otherwise(tmp_path: Path, small: None) -> None:
    x, y = np.eye(1000)[np.arange(2000) % 1000], np.ones(2000)
    np.savez_compressed(tmp_path / "a.npz", X=x, y=y)
    with pytest.raises(DataError, match=r"or save it uncompressed, by numpy\.savez\."):
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
    "joblib": ("a.pkl", lambda path, array: joblib.dump(array, path), read_joblib_array),
    "joblib-zlib": ("a.pkz", lambda path, array: joblib.dump(array, path, compress=1), read_joblib_array),
    "joblib-gzip": ("a.gz", lambda path, array: joblib.dump(array, path, compress=("gzip", 1)), read_joblib_array),
}


def first_of(path: Path) -> np.ndarray:
    with open_arrays(path) as arrays:
        return arrays["x"]


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


def test_texts_of_a_catalogue_that_overlap_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "fr" / "LC_MESSAGES"
    folder.mkdir(parents=True)
    (folder / "a.mo").write_bytes(overlapping(200, 20_000))
    with pytest.raises(DataError, match=r"is not a whole catalogue \(its texts overlap\)"):
        read_catalogues(folders=[str(tmp_path)], language="fr")


def test_a_file_that_unpacks_to_much_but_is_large_is_read(tmp_path: Path, small: None) -> None:
    lines = np.random.default_rng(0).integers(0, 10**9, 700_000)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"".join(b'{"a": %d}\n' % number for number in lines), 1))
    assert read_split(None, str(tmp_path / "a.jsonl.gz"), {"x": "a"})["x"] == lines.tolist()


class TestHDF5:
    @pytest.fixture
    def h5py(self) -> Any:
        return pytest.importorskip("h5py", reason="the extra 'h5' is not installed")

    def test_broken_links_and_links_to_other_files_are_not_arrays(self, tmp_path: Path, h5py: Any) -> None:
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["features"] = VECTORS
            file["soft"] = h5py.SoftLink("/nowhere")
            file["outside"] = h5py.ExternalLink("other.h5", "/x")
        game(tmp_path / "a.h5")
        with pytest.raises(DataError, match=r"an array 'soft' in .* but got features"):
            game(tmp_path / "a.h5", labels="soft")

    def test_what_was_never_written_takes_no_memory(self, tmp_path: Path, h5py: Any) -> None:
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file.create_dataset("features", (10**9, 100), "f4", chunks=(1000, 100))
        with pytest.raises(DataError, match="the array 'features' takes 373 GiB"):
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


class Payload:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, (f"open({str(self.path)!r}, 'w').close()",))


def as_pickle(payload: object) -> bytes:
    return pickle.dumps(payload)


def as_npy(payload: object) -> bytes:
    return npy(np.array([payload] * 60), pickled=True)


def as_tar(payload: object) -> bytes:
    """Return a file in the format of torch before 0.1.10, which torch before 2.6 unpickled in spite of ``weights_only``."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        content = pickle.dumps(payload)
        for name in ("sys_info", "pickle", "storages", "tensors"):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


#: Every reader of files in which a pickle may stand, and a file that has one.
LOADERS: dict[str, tuple[Use, str, Callable[[object], bytes]]] = {
    "table-npz": (table, "a.npz", lambda payload: npz(X=as_npy(payload), y=as_npy(payload))),
    "labels-npy": (labels, "a.npy", as_npy),
    "labels-npz": (labels, "a.npz", lambda payload: npz(labels=as_npy(payload))),
    "labels-pickle": (labels, "a.npy", as_pickle),
    "points-npy": (points, "a.npy", as_npy),
    "points-pickle": (points, "a.npy", as_pickle),
    "game-npy": (game, "a.npy", as_npy),
    "game-npz": (game, "a.npz", lambda payload: npz(features=as_npy(payload))),
    "game-pickle": (game, "a.npy", as_pickle),
    "vectors-pt": (vectors, "a.pt", lambda payload: torch_saved(([payload], {}, torch.ones(1, 2), 2))),
    "vectors-pickle": (vectors, "a.pt", as_pickle),
    "vectors-tar": (vectors, "a.pt", as_tar),
    "sklearn": (houses, "cal_housing_py3.pkz", dumped),
    "sklearn-objects": (houses, "cal_housing_py3.pkz", lambda payload: dumped(np.array([[payload] * 9] * 30))),
    "sklearn-list": (houses, "cal_housing_py3.pkz", lambda payload: dumped([np.zeros((30, 9)), payload])),
    "sklearn-array-first": (houses, "cal_housing_py3.pkz", lambda payload: dumped({"a": np.zeros((30, 9)), "b": payload})),
    "sklearn-pickle": (houses, "cal_housing_py3.pkz", as_pickle),
}


@pytest.mark.parametrize("case", LOADERS)
def test_no_loader_unpickles(tmp_path: Path, case: str) -> None:
    use, name, content = LOADERS[case]
    made = tmp_path / "made"
    (tmp_path / name).write_bytes(content(Payload(made)))
    with pytest.raises(LitSparseError):
        use(tmp_path / name)
    assert not made.exists()


def test_the_payload_would_run(tmp_path: Path) -> None:
    pickle.loads(as_pickle(Payload(tmp_path / "made")))
    assert (tmp_path / "made").exists()
