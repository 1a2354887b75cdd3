"""Text from tables: JSON lines, CSV and Parquet."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from lit_sparse.data.readers import text_tables
from lit_sparse.data.readers.splits import read_split
from lit_sparse.data.readers.text_files import numbered_lines
from lit_sparse.errors import DataError

from .test_text_files import AB, write

ROWS = [{"a": "Ein \u2028Satz", "b": ["x", "y"], "c": 3, "d": {"de": "ja", "x": {"y": None}}}, {"a": "", "b": [], "c": 4}]


@pytest.mark.parametrize("name", ["t.jsonl", "t.json", "t.jsonl.gz", "t.json.gz"])
@pytest.mark.parametrize("array", [False, True])
def test_json_keeps_values_as_they_are(tmp_path: Path, name: str, array: bool) -> None:
    lines = "\n\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS)
    write(tmp_path / name, "\ufeff" + (json.dumps(ROWS, indent=1) if array else f"{lines}\r\n"))
    columns = {"text": "a", "references": "b", "label": "c", "again": "a"}
    for path, split in ((str(tmp_path), "t"), (str(tmp_path), name), (None, str(tmp_path / name)), (None, str(tmp_path / "t"))):
        read = read_split(path, split, columns)
        assert read == {role: [row[column] for row in ROWS] for role, column in columns.items()}


@pytest.mark.parametrize("array", [False, True])
def test_empty_lines_of_json_cost_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, array: bool) -> None:
    counted: list[int] = []
    monkeypatch.setattr(text_tables, "check_rows", lambda path, values: counted.append(values))
    write(
        tmp_path / "t.json", " \n\n\t\r\n" * 500 + ('[{"a": 1}, {"a": 2}]' if array else '{"a": 1}\n\n{"a": 2}') + "\n\n" * 500
    )
    assert read_split(str(tmp_path), "t", {"x": "a"}) == {"x": [1, 2]}
    assert counted == ([3] if array else [1, 2])


def test_json_of_all_kinds_of_values(tmp_path: Path) -> None:
    """Dates stay text, kinds may be mixed, numbers are not rounded, rows may have other keys."""
    rows: list[dict[str, Any]] = [{"a": "2017-01-01"}, {"z": 1, "a": True}, {"a": 2**70}, {"a": 0.5}, {"a": {"x": [1]}}]
    write(tmp_path / "t.jsonl", "\n".join(map(json.dumps, rows)))
    values = read_split(str(tmp_path), "t", {"x": "a"})["x"]
    assert [(type(value), value) for value in values] == [(type(row["a"]), row["a"]) for row in rows]


def test_dotted_columns(tmp_path: Path) -> None:
    write(tmp_path / "t.jsonl", '{"translation": {"de": "ja", "en": {"gb": "yes"}}, "x.y": 1}')
    columns = {"source": "translation.de", "target": "translation.en.gb", "other": "x.y"}
    assert read_split(str(tmp_path), "t", columns) == {"source": ["ja"], "target": ["yes"], "other": [1]}
    with pytest.raises(
        DataError, match=r"no column 'translation.dde'\. .* translation\.de, translation\.en\.gb, x\.y\. Did .*'transl"
    ):
        read_split(str(tmp_path), "t", {"source": "translation.dde"})


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_csv(tmp_path: Path, name: str) -> None:
    """Text that looks like a missing value stays text, and numbers stay numbers. Long cells and line ends are kept."""
    long = "word " * 50_000
    rows = [["n/a", 0, 1.5, "007"], ['say "NaN", \nnull\u2028', -1, 2, long], ["None", 20, -0.25, "5"]]
    with (tmp_path / "raw").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["a", "n", "x", "text"], *rows])
    write(tmp_path / name, b"\xef\xbb\xbf" + (tmp_path / "raw").read_bytes() + b"\n")
    limit = csv.field_size_limit()
    read = read_split(str(tmp_path), "t", {"a": "a", "n": "n", "x": "x", "text": "text"})
    assert read == dict(zip("anx", map(list, zip(*rows, strict=True)), strict=False)) | {"text": ["007", long, "5"]}
    assert {type(value) for value in read["n"]} == {int}
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize(
    ("name", "text", "read"),
    [("t.csv", '"a","b, c"\n1,x\n', {"x": [1], "y": ["x"]}), ("t.tsv", 'a\tb, c\n1\t5" x\n', {"x": [1], "y": ['5" x']})],
)
def test_a_header_in_quotation_marks_is_read_fast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, read: dict[str, list[Any]]
) -> None:
    monkeypatch.setattr(text_tables, "cell_rows", None)
    write(tmp_path / name, text)
    assert read_split(str(tmp_path), "t", {"x": "a", "y": "b, c"}) == read


@pytest.mark.parametrize("header", ['"a\n", b', '"a', '"a"b,c', "a,,b", "a,a", ""])
def test_an_odd_header_is_read_line_by_line(tmp_path: Path, header: str) -> None:
    write(tmp_path / "t.csv", f"{header}\n1,2\n")
    with pytest.raises(DataError, match=r"t.csv"):
        read_split(str(tmp_path), "t", {"x": "z"})


def test_tsv_has_no_quotation_marks(tmp_path: Path) -> None:
    write(tmp_path / "t.tsv", 'a\tb\n"unclosed\t1\n\n5" disk, twice\t2\n')
    assert read_split(str(tmp_path), "t", AB) == {"source": ['"unclosed', '5" disk, twice'], "target": [1, 2]}
    write(tmp_path / "t.tsv", b"a\tb\r\nx\ty\r\r\n")  # only one belongs to the end of the line
    assert read_split(str(tmp_path), "t", AB) == {"source": ["x"], "target": ["y\r"]}


def parquet(path: Path, columns: dict[str, list[Any]]) -> Path:
    import pyarrow
    from pyarrow import parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.table(columns), path, row_group_size=2)
    return path


def test_parquet(tmp_path: Path) -> None:
    columns = {"a": ["x", "", "\u2028"], "b": [["r"], [], ["s", "t"]], "n": [1, 2, 3], "t": [{"de": "ja"}] * 3}
    parquet(tmp_path / "t.parquet", columns)
    read = read_split(str(tmp_path), "t", {"a": "a", "b": "b", "n": "n", "de": "t.de"})
    assert read == {"a": columns["a"], "b": columns["b"], "n": columns["n"], "de": ["ja"] * 3}
    with pytest.raises(DataError, match=r"no column 't\.d'\. Its columns are a, b, n, t\.de\. Did you mean 't\.de'\?"):
        read_split(str(tmp_path), "t", {"a": "t.d"})


@pytest.mark.parametrize("folder", ["", "data"])
def test_parts_of_a_table(tmp_path: Path, folder: str) -> None:
    """As the hub's own files are named, so that a copy of them serves."""
    for number in range(3):
        parquet(tmp_path / "fr-en" / folder / f"train-0000{number}-of-00003.parquet", {"a": [number, 10 + number]})
        parquet(tmp_path / "fr-en" / folder / f"train-extra-0000{number}-of-00003.parquet", {"a": [7]})
    expected = {"source": [0, 10, 1, 11, 2, 12]}
    assert read_split(str(tmp_path / "fr-en"), "train", {"source": "a"}) == expected
    assert read_split(str(tmp_path), "train", {"source": "a"}, config="fr-en") == expected
    (tmp_path / "fr-en" / folder / "train-00001-of-00003.parquet").unlink()
    with pytest.raises(DataError, match=r"all 00003 parts of .*train-00001-of-00003\.parquet'"):
        read_split(str(tmp_path / "fr-en"), "train", {"source": "a"})


def test_numbers_of_a_table_in_parts_are_those_of_all(tmp_path: Path) -> None:
    write(tmp_path / "t-0-of-2.csv", "a\n1\n2\n")
    write(tmp_path / "t-1-of-2.csv", "a\nx\n")
    assert read_split(str(tmp_path), "t", {"x": "a"}) == {"x": ["1", "2", "x"]}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("t.jsonl", '{"a": 1}\n', r"t\.jsonl' has no column 'b'\. Its columns are a\."),
        ("t.jsonl", '{"a": 1, "bb": null}\n', r"no column 'b'\. Its columns are a, bb\. Did you mean 'bb'\?"),
        ("t.jsonl", '{"a": 1, "b": 2}\n\n{"a": null, "b": 1}\n', "no value in column 'a' in line 3. Fill"),
        ("t.jsonl", '{"a": 1, "b": 2}\n{"a": 1}\n{"a": 1}\n', "no value in column 'b' in line 2 and 1 more"),
        ("t.jsonl", '{"a": null, "b": 2}\n', "no value in column 'a' in line 1"),
        ("t.json", '[{"a": 1, "b": 2},\n{"a": 1}]', "no value in column 'b' in row 2"),
        ("t.jsonl", '{"a": 1, "b": 2}\n{"a": 1,\n', r"t\.jsonl' is not JSON in line 2: Expecting .* one object per line"),
        ("t.json", '\n\n[{"a": 1, "b": 2},\n{"a": }]', r"t\.json' is not JSON in line 4: Expecting value at character 7"),
        ("t.json", '{\n "a": 1\n}', "not JSON in line 1"),
        ("t.jsonl", "1\n", "objects, {...}, in .* but got int in line 1"),
        ("t.json", '[{"a": 1, "b": 2}, "x"]', "but got str in row 2"),
        ("t.jsonl", '{"a": ' + "[" * 100_000, "not JSON in line 1"),
        ("t.jsonl", '{"a": ' + "1" * 10_000 + "}", "not JSON in line 1: Exceeds the limit"),
        ("t.jsonl", b'{"a": "\xe9"}', "not in UTF-8: line 1 has the byte 0xe9"),
        ("t.jsonl", "", r"t\.jsonl' holds no rows"),
        ("t.json", "[]", r"t\.json' holds no rows"),
        ("t.csv", "", "holds no rows"),
        ("t.csv", "a,b\n", "holds no rows"),
        ("t.csv", "a,b\n1,2\n1\n", r"2 cells per line in .*t\.csv' but got 1 in line 3"),
        ("t.csv", 'a,b\n"x\ny",2\n1,2,3\n', "got 3 in line 4"),
        ("t.csv", "a,b\n1,\n", "no value in column 'b' in line 2"),
        ("t.csv", "a,c\n1,\n", "no column 'b'. Its columns are a, c"),
        ("t.csv", "a,a\n1,2\n", "unique columns in .* but got a, a"),
        ("t.csv", 'a,b\n1,2\n"x,2\n', r"not a table in line \d: unexpected end of data"),
        ("t.tsv", "a\tb\nx\n", "got 1 in line 2"),
        ("t.parquet", b"PAR1 and no more", r"t\.parquet' cannot be read as a Parquet file"),
        ("t.parquet", b"", r"t\.parquet' cannot be read as a Parquet file"),
    ],
)
def test_tables_that_are_none(tmp_path: Path, name: str, content: str | bytes, words: str) -> None:
    write(tmp_path / name, content)
    with pytest.raises(DataError, match=words):
        read_split(str(tmp_path), "t", AB)


@pytest.mark.parametrize(("value", "kind"), [(2**62, "timestamp[us]"), (2**31 - 1, "date32"), (2**62, "duration[s]")])
def test_dates_out_of_range(tmp_path: Path, value: int, kind: str) -> None:
    import pyarrow

    numbers = pyarrow.array([value], pyarrow.int32() if kind == "date32" else pyarrow.int64())
    parquet(tmp_path / "t.parquet", {"a": numbers.cast(pyarrow.type_for_alias(kind))})
    with pytest.raises(DataError, match=r"t\.parquet' cannot be read as a Parquet file: "):
        read_split(str(tmp_path), "t", {"x": "a"})


def test_repeated_beginnings_in_parquet(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    encoding = {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"}
    parquet.write_table(pyarrow.table({"a": ["x" * 2**16] * 9}), tmp_path / "t.parquet", **encoding)
    with pytest.raises(DataError, match="no DELTA_BYTE_ARRAY in column 'a'"):
        read_split(str(tmp_path), "t", {"x": "a"})


def test_missing_values_of_parquet(tmp_path: Path) -> None:
    parquet(tmp_path / "t.parquet", {"a": ["x", "y", None], "b": [1, 2, 3]})
    with pytest.raises(DataError, match="no value in column 'a' in row 3"):
        read_split(str(tmp_path), "t", AB)
    assert read_split(str(tmp_path), "t", {"n": "b"}) == {"n": [1, 2, 3]}


@pytest.mark.parametrize("name", ["a.csv.gz", "a.txt.gz"])
def test_a_line_without_end_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lit_sparse.data.readers.sizes.LINE", 2**20)
    (tmp_path / name).write_bytes(gzip.compress(b"a\n" + b"1" * 2**23))
    with pytest.raises(DataError, match=r"lines of at most 1 MiB"):
        for _ in text_tables.cell_chunks(tmp_path / name, {"a": "a"}) if "csv" in name else numbered_lines(tmp_path / name):
            pass
