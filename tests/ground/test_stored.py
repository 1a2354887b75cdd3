"""A file that is not plain, small and of the expected shape is refused in one message with its name."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lit_sparse.ground import stored
from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.stored import check_members, read_json, read_table, read_yaml

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
    "yaml, in itself": (read_yaml, b"a: &a [*a]", "contains itself through an alias"),
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
    "json, twice": (read_json, b'{"a": {"b": 1, "b": 2}}', "JSON in .* but got a key occurs twice in an object with \\['b'\\]"),
    "json, list": (read_json, b"[]", "keys and values in .* but got list"),
    "json, utf-16": (read_json, "{}".encode("utf-16"), "text in UTF-8"),
    "rows, no column": (rows, b"cell,x\na,1\n", "columns cell, seed in .* but got none named 'seed'"),
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


def check_refused(read: Callable[..., Any], content: bytes, message: str, folder: Path) -> None:
    (folder / "file").write_bytes(content)
    with pytest.raises(ConfigurationError, match=f"(?s){message}") as caught:
        read(folder / "file", folder)
    assert repr(str(folder / "file")) in str(caught.value)
    assert len(str(caught.value)) < 800 + len(str(folder))


@pytest.mark.parametrize(("read", "content", "message"), BAD.values(), ids=[*BAD])
def test_bad_content_is_refused(read: Callable[..., Any], content: bytes, message: str, tmp_path: Path) -> None:
    check_refused(read, content, message, tmp_path)


ODD_KINDS = ("symbolic link", "link above", "pipe", "folder", "device", "long", "nul")


def check_odd_refused(read: Callable[..., Any], kind: str, folder: Path) -> None:
    run, path = folder / "run", folder / "run" / "file"
    run.mkdir()
    (folder / "outside").write_bytes(b"a: 1\n")
    if kind == "symbolic link":
        path.symlink_to(folder / "outside")
    elif kind == "link above":
        (run / "below").symlink_to(folder)
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


@pytest.mark.parametrize("read", [read_yaml, read_json, read_table])
@pytest.mark.parametrize("kind", ODD_KINDS)
def test_only_plain_files_are_read(read: Callable[..., Any], kind: str, tmp_path: Path) -> None:
    check_odd_refused(read, kind, tmp_path)


def test_good_content_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    assert read_yaml(file) is read_json(file) is None
    assert read_table(file) == []
    file.write_text("a: &a [1, x]\nb: *a\nd: 2001-01-02\n")
    assert (read_yaml(file, tmp_path) or {})["b"] == [1, "x"]
    file.write_text("a: &a {x: 1}\nb: {<<: *a}\n")
    assert (read_yaml(file) or {})["b"] == {"x": 1}, "a file of the user's"
    file.write_text("a: [1e-3, -.5E2, 1.5e3, 1_0.e1, 1e, e3, '1e3']\n")
    assert (read_yaml(file) or {})["a"] == [0.001, -50.0, 1500.0, 100.0, "1e", "e3", "1e3"]
    assert (read_yaml(file, tmp_path) or {})["a"][0] == "1e-3", "PyYAML writes a text like this without quotes"
    file.write_text(f"a: {{{', '.join(f'k{n}: 1:30' for n in range(200))}}}\n#{' ' * 2**20}\n")
    monkeypatch.setattr(stored, "MAX_VALUES", 100)
    assert len((read_yaml(file) or {})["a"]) == 200, "of any size"
    file.write_text("a: 1\na: 2\n")
    with pytest.raises(ConfigurationError, match="a second key 'a'"):
        read_yaml(file)
    monkeypatch.undo()
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


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_archives_are_packed_by_deflate_or_not_at_all(method: int, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w", method) as archive:
        archive.writestr("a", bytes(1000))
    with zipfile.ZipFile(tmp_path / "x.zip") as archive:
        if method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            check_members(archive)
        else:
            with pytest.raises(zipfile.BadZipFile, match="a method other than deflate"):
                check_members(archive)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_archives_have_each_name_once(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("a", b"1")
        check_members(archive)
        archive.writestr("a", b"2")
        with pytest.raises(zipfile.BadZipFile, match="the same name"):
            check_members(archive)


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
    with pytest.raises(ConfigurationError, match="a value that contains itself through an alias"):
        read_yaml(tmp_path / "own.yaml")
