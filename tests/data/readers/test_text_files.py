"""Text as it is published: files of lines, parallel files, tables, test sets in SGML, and a hub."""

from __future__ import annotations

import bz2
import gzip
import io
import socket
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_sparse.data.readers.splits import read_split
from lit_sparse.data.readers.text_files import open_bounded, read_lines
from lit_sparse.errors import ConfigurationError, DataError

AB = {"source": "a", "target": "b"}


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("what is local never touches the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def write(path: Path, text: str | bytes) -> Path:
    content = text if isinstance(text, bytes) else text.encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


# Lines


def test_segments_have_different_names(tmp_path: Path) -> None:
    once = "<doc docid='{0}'><seg id=1>a</seg><seg id=2>b</seg></doc>"
    assert len(read_lines(write(tmp_path / "a.sgm", once.format("x") + once.format("y") + "<doc><seg id=1>c</seg></doc>"))) == 5
    with pytest.raises(DataError, match=r"different segments .* but got '1' twice"):
        read_lines(write(tmp_path / "b.sgm", 2 * once.format("x")))


@pytest.mark.parametrize("name", ["text", "text.txt", "text.de.gz"])
@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ("", []),
        ("\n", [""]),
        ("a", ["a"]),
        ("a\n", ["a"]),
        ("a\n\n", ["a", ""]),
        ("a\r\nb\r\r\n", ["a", "b\r"]),
        ("a\rb", ["a\rb"]),
        ("a\u2028b\u2029c\x0bd\x0ce\x1cf\x85g\x00h\n i \n", ["a\u2028b\u2029c\x0bd\x0ce\x1cf\x85g\x00h", " i "]),
        ("\ufeffa\n\ufeffb", ["a", "\ufeffb"]),
        ("\ufeff", []),
    ],
)
def test_lines_end_at_newlines_alone(tmp_path: Path, name: str, content: str, lines: list[str]) -> None:
    assert read_lines(write(tmp_path / name, content)) == lines
    assert read_lines(str(tmp_path / name)) == lines


@given(st.lists(st.text(st.characters(exclude_characters="\n\r", exclude_categories=("Cs",)))))
def test_whatever_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    path = tmp_path_factory.mktemp("lines") / "text"
    path.write_bytes(b"\xef\xbb\xbf" + "".join(f"{line}\n" for line in lines).encode())
    assert read_lines(path) == lines


def test_a_bzip2_file_may_have_several_streams(tmp_path: Path) -> None:
    words = [f"{number}" * 99 for number in range(9)]
    (tmp_path / "a.bz2").write_bytes(b"".join(bz2.compress(f"{word}\n".encode()) for word in words))
    assert read_lines(tmp_path / "a.bz2") == words
    with open_bounded(tmp_path / "a.bz2") as file, pytest.raises(io.UnsupportedOperation):
        file.seek(3)


@pytest.mark.parametrize("ending", [".sgm", ".SGML", ".sgm.gz"])
def test_segments_of_test_sets(tmp_path: Path, ending: str) -> None:
    content = """<refset setid="news" srclang="any" trglang="en">
<doc docid="1"><hl><seg id="1"> A  title </seg></hl>
<p><SEG ID="2">AT&amp;T &lt;b&gt; &#8217;s R&D &eacute;
 over&#x21; lines</SEG >
<seg id="3"></seg></p></doc></refset>"""
    path = write(tmp_path / f"news{ending}", content)
    assert read_lines(path) == ["A title", "AT&T <b> \u2019s R&D \u00e9 over! lines", ""]


@pytest.mark.parametrize("entity", [f"&#{'1' * 5000};", f"&#x{'f' * 5000};"])  # Python refuses to read such an integer
def test_entities_of_many_digits_stay_as_they_are(tmp_path: Path, entity: str) -> None:
    assert read_lines(write(tmp_path / "a.sgm", f"<seg>{entity} &#00065;</seg>")) == [f"{entity} A"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a", b"fine\nna\xefve\n", r"'.*a' is not in UTF-8: line 2 has the byte 0xef at position 3"),
        ("a", b"\xff\xfea\x00", "line 1 has the byte 0xff"),
        ("a.sgm", b"<doc>\n<seg>\xe9</seg>", "line 2 has the byte 0xe9"),
        ("a.sgm", b"<doc></doc>", "0 starts and 0 ends"),
        ("a.sgm", b"<seg>a<seg>b</seg>", "2 starts and 1 ends"),
        ("a.gz", b"plain", r"a.gz' is not a gzip file: it starts with b'pl'"),
        ("a.gz", b"", r"a.gz' is not a gzip file"),
        ("a.bz2", b"BZh is a word", r"a.bz2' is not a bzip2 file: it starts with b'BZ'"),
        ("a.bz2", bz2.compress(b"text\n" * 1000)[:-12], r"a.bz2' is not a complete bzip2 file"),
        ("a.bz2", bz2.compress(b"text\n") + b"BZ" + bz2.compress(b"more\n"), r"a.bz2' is not a complete bzip2 file"),
        ("a.gz", gzip.compress(b"text\n" * 1000, mtime=0)[:-12], r"a.gz' is not a complete gzip file"),
        ("a.gz", b"\x1f\x8bnothing else", r"a.gz' is not a complete gzip file"),
    ],
)
def test_files_that_are_no_text(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=words):
        read_lines(tmp_path / name)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    write(tmp_path / "train.de", "a")
    with pytest.raises(
        DataError, match=r"no file '.*trian\.de'\. The folder '.*' holds train\.de\. Did you mean 'train\.de'\?"
    ):
        read_lines(tmp_path / "trian.de")
    with pytest.raises(DataError, match="There is no folder"):
        read_lines(tmp_path / "nowhere" / "train.de")
    with pytest.raises(DataError, match="cannot be read"):
        read_lines(tmp_path)


# Parallel files


@pytest.mark.parametrize("form", ["", ".txt", ".gz", ".txt.gz"])
def test_parallel_files(tmp_path: Path, form: str) -> None:
    write(tmp_path / f"train.de{form}", "eins\u2028\n\nzwei\n")
    write(tmp_path / f"train.en{form}", "one\n\ntwo")
    expected = {"source": ["eins\u2028", "", "zwei"], "target": ["one", "", "two"]}
    columns = {"source": "de", "target": "en"}
    assert read_split(str(tmp_path), "train", columns) == expected
    assert read_split(None, str(tmp_path / "train"), columns) == expected
    assert read_split(str(tmp_path.parent), f"{tmp_path.name}/train", columns) == expected
    assert read_split(str(tmp_path), "train", {"source": "en"}) == {"source": expected["target"]}


def test_sides_of_test_sets_in_sgml(tmp_path: Path) -> None:
    for side, code in (("src", "fr"), ("ref", "en"), ("src", "en"), ("ref", "fr")):
        write(tmp_path / f"newstest-{side}.{code}.sgm", f"<seg>{side} {code}</seg>\n")
    assert read_split(str(tmp_path), "newstest", {"source": "fr", "target": "en"}) == {
        "source": ["src fr"],
        "target": ["ref en"],
    }
    (tmp_path / "newstest-ref.en.sgm").unlink()
    assert read_split(str(tmp_path), "newstest", {"source": "fr", "target": "en"})["target"] == ["src en"]


@pytest.mark.parametrize(
    ("files", "split", "words"),
    [
        ({"t.a": "x\ny\n", "t.b": "x\n"}, "t", r"of equal length .* got t\.a 2, t\.b 1\."),
        (
            {
                "t-src.a.sgm": "<doc docid='x'><seg id=1>i</seg><seg id=2>j</seg>",
                "t-ref.b.sgm": '<DOC sysid="r" docid="x"><seg id="2">J</seg>\n<seg id="1">I</seg>',
            },
            "t",
            r"got 'seg 1' in t-(src|ref)\.\w\.sgm where .*'seg 2'|got 'seg 2' .* 'seg 1'",
        ),
        ({"t.a": "", "t.b": ""}, "t", "lines in t.a and t.b .* none"),
        ({"t.a": "x"}, "t", r"'.*t' does not exist\. There is no t\.b\. .* holds t\.a\.$"),
        ({"t.a": "x", "t.a.gz": "x", "t.b": "x"}, "t", r"one file but got t\.a and t\.a\.gz"),
        ({"train.a": "x", "train.b": "x"}, "trian", r"nor parallel text trian\.a and trian\.b, .* Did you mean 'train'\?"),
        ({"t.a": "x", "t.b": "x", "t.csv": "a,b\n1,2"}, "t", r"got t\.csv, t\.a, t\.b\. Give the full name"),
        ({"t.json": "[]", "t.json.gz": "[]"}, "t", r"got t\.json, t\.json\.gz"),
        ({"more/t.a": "x"}, "more", "It is a folder: give it as the path"),
        ({"t.txt": "x"}, "t.txt", "nor parallel text t.txt.a and t.txt.b"),
        ({}, "t", "is empty"),
        ({}, "more/t", "There is no folder"),
    ],
)
def test_splits_that_cannot_be_told(tmp_path: Path, files: dict[str, str], split: str, words: str) -> None:
    for name, content in files.items():
        write(tmp_path / name, content)
    with pytest.raises(DataError, match=words):
        read_split(str(tmp_path), split, AB)


def test_what_a_folder_holds_is_listed_in_part(tmp_path: Path) -> None:
    for number in range(20):
        write(tmp_path / f"{number:02d}.csv", "a\n1")
    with pytest.raises(DataError, match=r"holds 00\.csv, .* 11\.csv and 8 more\.$"):
        read_split(str(tmp_path), "validation", AB)


# Tables


# Folders and hubs


@pytest.mark.parametrize("path", ["./nowhere", "../nowhere", "/nowhere/x", "~/nowhere-at-all", r"C:\data", "C:/data", "a/b/c"])
def test_a_local_folder_that_is_missing(path: str) -> None:
    with pytest.raises(DataError, match=r"The folder .* does not exist"):
        read_split(path, "train", AB)


def test_paths_that_are_no_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "snli" / "t.csv", "a,b\n1,2\n")
    monkeypatch.chdir(tmp_path)
    assert read_split("snli", "t", AB) == {"source": [1], "target": [2]}
    with pytest.raises(DataError, match="is a file: give it as the split, without a path"):
        read_split("snli/t.csv", "t", AB)
    with pytest.raises(DataError, match=r"'./snil' does not exist\. .* Did you mean 'snli'\?"):
        read_split("./snil", "t", AB)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read_split("~/snli", "t", AB) == read_split(None, "~/snli/t", AB) == {"source": [1], "target": [2]}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: read_split(".", "train", {}), "`columns`"),
        (lambda: read_split(None, "train", AB, config="x"), "`config`"),
        (lambda: read_split(".", "", AB), "`split`"),
        (lambda: read_split(None, "/", AB), "`split`"),
    ],
)
def test_bad_arguments(call: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        call()


def test_local_files_need_no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Nor do they need its package, a home folder or a place to write; and nothing is printed."""
    monkeypatch.setitem(sys.modules, "datasets", None)
    monkeypatch.setenv("HOME", "/dev/null/none")
    folder = tmp_path / "[with] brackets*"
    write(folder / "t.jsonl", '{"a": 1, "b": 2}')
    before = sorted(tmp_path.rglob("*"))
    assert read_split(str(folder), "t", AB) == {"source": [1], "target": [2]}
    assert sorted(tmp_path.rglob("*")) == before
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[Any, ...]]:
    """A hub with one data set; returns what was asked of it."""
    import datasets

    asked: list[tuple[Any, ...]] = []

    def load_dataset(name: str, config: str | None, *, split: str, cache_dir: str | None) -> datasets.Dataset:
        asked.append((name, config, split, cache_dir))
        if split != "train":
            raise ValueError(f"Unknown split {split!r}. Should be one of ['train'].\nMore about it")
        texts = [{"de": f"Satz {n}", "en": f"sentence {n}"} for n in range(1500)]
        return datasets.Dataset.from_dict({"translation": texts, "label": [n % 3 for n in range(1500)], "b": [None] * 1500})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return asked


def test_data_sets_of_the_hub(hub: list[tuple[Any, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    columns = {"source": "translation.de", "target": "translation.en", "label": "label"}
    read = read_split("wmt/wmt14", "train", columns, config="de-en")
    assert read["source"] == [f"Satz {n}" for n in range(1500)]
    assert read["target"][-1] == "sentence 1499"
    assert read["label"][:4] == [0, 1, 2, 0]
    assert read_split("snli", "train", {"label": "label"})["label"] == read["label"]
    assert hub == [("wmt/wmt14", "de-en", "train", None), ("snli", None, "train", None)]
    assert not list((tmp_path / "cache").iterdir())


def test_a_hub_without_a_home_folder(hub: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", Path("/dev/null/none"))
    assert len(read_split("snli", "train", {"label": "label"})["label"]) == 1500
    [(*_, cache)] = hub
    assert cache is not None and not Path(cache).exists()


@pytest.mark.parametrize(
    ("split", "column", "words"),
    [
        ("tset", "label", r"split 'tset' .* \(ValueError: Unknown split 'tset'\. Should be one of \['train'\]\)\. Download"),
        ("train", "translation.fr", r"'train' of 'x/y' has no column .* translation\.de, translation\.en, label, b\. Did"),
        ("train", "b", "no value in column 'b' in row 1 and 1499 more"),
    ],
)
def test_mistakes_about_the_hub(hub: list[tuple[Any, ...]], split: str, column: str, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        read_split("x/y", split, {"source": column})
    assert "\n" not in str(caught.value)


def test_a_hub_out_of_reach(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import datasets

    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionError("Couldn't reach it " * 100)

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    with pytest.raises(
        DataError, match=r"no folder 'data/snil'.*ConnectionError.*load_dataset\('data/snil', 'x'\).*local"
    ) as c:
        read_split("data/snil", "train", AB, config="x")
    assert len(str(c.value)) < 700


# Real data

LABELS = {"entailment", "neutral", "contradiction"}
PAIRS = {
    "snli": {"train": 20_985, "dev": 9_842, "test": 9_824, "test_hard": 3_261},
    "nli_extra": {
        "mnli_subset_train": 20_000,
        "mnli_subset_val": 5_000,
        "sick_train": 4_500,
        "sick_dev": 500,
        "sick_test": 4_927,
        "cad_snli_train": 8_330,
        "cad_snli_dev": 1_000,
        "cad_snli_test": 2_000,
    },
}


@pytest.mark.parametrize(("folder", "split", "size"), [(f, s, n) for f, of in PAIRS.items() for s, n in of.items()])
def test_published_entailment_pairs(shared: Path, folder: str, split: str, size: int) -> None:
    columns = {name: name for name in ("premise", "hypothesis", "label")}
    read = read_split(str(shared / "data" / folder), split, columns)
    assert {role: len(values) for role, values in read.items()} == dict.fromkeys(columns, size)
    assert set(read["label"]) == LABELS
    assert all(isinstance(text, str) for text in read["premise"] + read["hypothesis"])


@pytest.mark.parametrize(
    ("split", "size"),
    [("train", 29_000), ("val", 1_014), ("test_2016_flickr", 1_000), ("test_2017_mscoco", 461), ("test_2018_flickr", 1_071)],
)
def test_published_translations(shared: Path, split: str, size: int) -> None:
    folder = shared / "data" / "multi30k"
    read = read_split(str(folder), split, {"source": "de", "target": "en", "pivot": "fr"})
    assert [len(values) for values in read.values()] == [size] * 3
    assert read == read_split(None, str(folder / split), {"source": "de", "target": "en", "pivot": "fr"})
    if split == "train":
        words = {role: sum(map(len, map(str.split, values))) / size for role, values in read.items()}
        assert {role: round(mean, 1) for role, mean in words.items()} == {"target": 11.9, "source": 11.1, "pivot": 12.5}


@pytest.mark.parametrize(
    ("folder", "split", "target", "size"),
    [
        ("gigaword", "train", "title", 10_000),
        ("gigaword", "valid", "title", 4_975),
        ("gigaword", "test", "title", 1_951),
        ("gigaword", "duc2003", "references", 624),
        ("gigaword", "duc2004", "references", 500),
        ("gigaword", "google_compression_eval1000", "references", 1_000),
        ("ag_news", "test", "title", 7_600),
    ],
)
def test_published_headlines(shared: Path, folder: str, split: str, target: str, size: int) -> None:
    read = read_split(str(shared / "data" / folder), split, {"source": "article", "target": target})
    assert [len(values) for values in read.values()] == [size] * 2
    if target == "references":
        counts = Counter(len(row) for row in read["target"])
        assert counts == {4 if split.startswith("duc") else 1: size}


def test_files_by_bzip2_are_unpacked_and_words_that_begin_alike_are_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt.bz2").write_bytes(bz2.compress("Gr\u00fc\u00dfe\nan alle\n".encode()))
    (tmp_path / "a.txt").write_text("BZh9 is a start\n")
    assert read_lines(tmp_path / "a.txt.bz2") == ["Gr\u00fc\u00dfe", "an alle"]
    assert read_lines(tmp_path / "a.txt") == ["BZh9 is a start"]
