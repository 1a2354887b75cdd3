"""Files that are broken, forged, or hold something else: each gives one message, and none runs code or fills the memory."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import tarfile
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
from lit_sparse.data.readers.arrays import read_npy
from lit_sparse.data.readers.splits import read_split
from lit_sparse.data.readers.tables import chunks_of, from_chunks
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


# Readers of each kind of file.
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


def memory_mapped(path: Path) -> object:
    return read_npy(path, memory_mapped=True)


def vectors(path: Path) -> object:
    return read_vectors(str(path), ["a", "b"])


def articles(path: Path) -> object:
    for split in ("val", "test"):
        (path.parent / f"{split}.jsonl").write_text('{"article": "a b", "title": "a"}\n')
    data = SummarizationDataModule(str(path.parent), source="article", target="title")
    data.setup("fit")
    return data.size("train")


def houses(path: Path) -> object:
    return CaliforniaHousingDataModule("sklearn", path=str(path.parent)).setup()


def torch_saved(thing: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    return buffer.getvalue()


def cached(words: list[Any], tensor: torch.Tensor) -> bytes:
    """Return a file of torchtext's ``.vector_cache``."""
    return torch_saved((words, {word: place for place, word in enumerate(words)}, tensor, tensor.shape[1]))


def wide(digits: int) -> bytes:
    number = "9" * digits
    return f"a,b\n1,2\n{number},3\n".encode()


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
    "claim-no-bytes": (game, "a.npy", npy(np.zeros((0, 3)), shape=(10**12, 0)), "as in its header"),
    "claim-huge": (memory_mapped, "a.npy", npy(np.zeros((0, 3)), shape=(0, 10**30)), "as in its header"),
    "claim-negative": (game, "a.npy", npy(VECTORS, shape=(-1, 3)), "as in its header"),
    # sparse rows that are too wide
    "libsvm-index": (table, "a.libsvm", b"1 999999999999999:1\n", "cannot be read as LIBSVM data"),
    "libsvm-digits": (table, "a.libsvm", b"1 " + b"9" * 400 + b":1\n", "cannot be read as LIBSVM data"),
    "libsvm-dense": (
        table,
        "a.libsvm",
        b"1 2000000000:1\n",
        r"at most 256 MiB but got more: a dense table of 1 rows and 2000000000 features takes 14\.9 GiB",
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
    "words-index": (
        vectors,
        "a.pt",
        torch_saved((["a", "b"], {"a": 0, "b": -1}, torch.ones(2, 2), 2)),
        "index of each word in .* to be its position",
    ),
    "words-sparse": (vectors, "a.pt", cached(["a", "b"], torch.ones(2, 2).to_sparse()), "a dense tensor .*sparse_coo"),
    "words-expanded": (vectors, "a.pt", cached(["a", "b"], torch.ones(1, 1).expand(2, 2)), "dense tensor .* not contiguous"),
    "words-meta": (vectors, "a.pt", cached(["a", "b"], torch.ones(2, 2, device="meta")), "dense tensor .*'meta'"),
    "words-complex": (vectors, "a.pt", cached(["a", "b"], torch.ones(2, 2) * 1j), "floating values .*complex64"),
    "words-nan": (vectors, "a.pt", cached(["a", "b"], torch.full((2, 2), torch.nan)), "finite vectors .* for 'a'"),
    "words-digits": (vectors, "a.txt", b"1 " + b"9" * 5000 + b"\na 1 2\n", "declares vectors of width 9+, but line 2"),
    "words-infinite": (vectors, "a.txt", b"a 1e300 1\n", "not all finite float32 numbers"),
    "words-wide": (vectors, "a.txt", b"a" + b" 1" * 30_000, "width at most 20,000 but got wider ones"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_bad_file_gives_one_message(tmp_path: Path, case: str) -> None:
    use, name, content, words = CASES[case]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(LitSparseError, match=words) as caught:
        use(tmp_path / name)
    assert isinstance(caught.value, DataError)
    assert len(str(caught.value)) < 700


def dumped(thing: object) -> bytes:
    buffer = io.BytesIO()
    joblib.dump(thing, buffer, compress=("zlib", 9))
    return buffer.getvalue()


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


def test_a_long_integer_is_named_by_its_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "train-0.jsonl").write_text('{"a": 1}\n\n')
    (tmp_path / "train-1.jsonl").write_text('{"a": 2}\n\n{"a": 1' + "0" * 309 + "}\n")
    paths = sorted(tmp_path.iterdir())
    with pytest.raises(DataError, match=r"column 'a' of '.*train-1\.jsonl' but got a longer integer in line 3"):
        from_chunks(chunks_of(paths, {"a": "a"}), {"a": "a"}, paths[0])
