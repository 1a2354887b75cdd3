"""Runs of any model are tabulated and drawn next to each other."""

from __future__ import annotations

import csv
import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lit_sparse.cli import main
from lit_sparse.studies.compare import BLOCKS, comparison, sources

CALLS = "train/decoder_calls_"


def write_run(folder: Path, lines: str, test: str = "") -> Path:
    folder.mkdir()
    (folder / "metrics.csv").write_text(lines)
    if test:
        (folder / "test" / "0").mkdir(parents=True)
        (folder / "test" / "0" / "metrics.csv").write_text(test)
    return folder


def test_runs_are_tabulated_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    head = f"epoch,step,val/nelbo,train/nelbo,{CALLS}p10,{CALLS}median,{CALLS}p90,{CALLS}mean"
    lines = [head, "0,5,90.0,,,,,", "0,5,,95.0,1.0,4.0,9.0,4.5", "1,9,80.0,80.0,1.0,2.0,3.0,2.25"]
    write_run(tmp_path / "a", "\n".join(lines), "epoch,step,test/nelbo,test/bits_per_dim\n0,0,85.0,3.5")
    write_run(tmp_path / "b", "\n".join(lines[:2]))
    assert main(["compare", "ours=a", "b", "--output", "out/both"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split() == [
        *("|", "|", "val/nelbo", "|", "test/nelbo", "|"),
        *("epochs", "|", "train/decoder_calls_mean", "|", "test/bits_per_dim", "|"),
    ], "the drawn metric comes first"
    assert [line.split() for line in printed[2:4]] == [
        ["|", "ours", "|", "80", "|", "85", "|", "2", "|", "2.25", "|", "3.5", "|"],
        ["|", "b", "|", "90", "|", "-", "|", "1", "|", "-", "|", "-", "|"],
    ]
    assert len({len(line) for line in printed[:4]}) == 1, "columns are aligned"
    assert printed[5:8] == [
        "val/nelbo over epochs",
        f"ours  {BLOCKS[-1]}{BLOCKS[0]}  90 to 80",
        f"b     {BLOCKS[-1]}  90 to 90",
    ]
    table = list(csv.reader((tmp_path / "out" / "both.csv").read_text().splitlines()))
    assert table[1] == ["ours", "2", "2.25", "80", "85", "3.5"]
    assert (tmp_path / "out" / "both.md").read_text().splitlines() == printed[:4]
    assert (tmp_path / "out" / "both.png").stat().st_size > 10_000
    for run, rate in (("a", 0.1), ("b", 0.2)):
        (tmp_path / run / "config.yaml").write_text(f"model: {{lr: {rate}, width: 8}}\nname: {run}\n")
    assert main(["compare", "ours=a", "b"]) == 0
    assert re.search(r"\n\| ours \| +80 \| +85 \| +0.1 \| +2 \|", capsys.readouterr().out), "then settings that differ"
    (tmp_path / "out" / "both.md").unlink()
    (tmp_path / "out" / "both.md").symlink_to(tmp_path / "other")  # which is not followed
    assert main(["compare", "ours=a", "b", "--output", "out/both"]) == 2
    assert "it is a link" in capsys.readouterr().err
    assert main(["compare", "b=a", "b"]) == 2
    assert "a name for each run, as in NAME=FOLDER, but got b, b" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_runs_without_decoder_calls_and_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "a", "epoch,step,val/loss,val/bleu\n0,5,3.0,10.0\n1,9,nan,20.0\n")
    assert main(["compare", "a"]) == 0
    printed = capsys.readouterr().out
    assert "| a   |       20 |      2 |      nan |" in printed
    assert "val/bleu over epochs" in printed
    assert main(["compare", "a", "--metric", "val/loss"]) == 0
    assert f"a  {BLOCKS[0]}{BLOCKS[-1]}  3 to nan" in capsys.readouterr().out
    assert main(["compare", "a", "--metric", "los"]) == 2
    assert "Did you mean 'loss'?" in capsys.readouterr().err
    for path in ("elsewhere", "a/metrics.csv"):
        assert main(["compare", path]) == 2
        assert "is not a run folder" in capsys.readouterr().err


def test_the_table_fits_in_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ("val/nelbo", "val/loss", "val/classification", "val/reconstruction", "val/divergence", "train/loss")
    for run in range(12):
        values = ",".join(map(str, (run, run, 50 - run, run * run, 9, 100 + run)))
        write_run(tmp_path / f"run_{run}", f"epoch,{','.join(names)}\n0,{values}\n")
    runs, told = [f"run_{run}" for run in range(12)], "val/classification, val/reconstruction."
    for some, width, turned, left in ((runs, 80, False, ""), (runs, 40, False, told), (runs[:3], 48, True, "")):
        monkeypatch.setenv("COLUMNS", str(width))
        assert main(["compare", *some]) == 0
        head, *printed = capsys.readouterr().out.splitlines()
        table = [head, *(line for line in printed if line.startswith("|"))]
        assert max(map(len, table)) <= width
        assert len(table) == (3 if turned else len(some)) + 2
        assert ("run_0" if turned else "val/nelbo") in head
        assert "The same in all: epochs 1, val/divergence 9." in printed
        assert "Shown once: val/loss = val/nelbo." in printed
        assert f"Too wide to be shown, but in comparison.md: {left}" in printed or not left
        assert "val/reconstruction" in Path("comparison.md").read_text()
        assert Path("comparison.csv").read_text().startswith(",epochs,val/nelbo,val/loss,"), "all columns"
    assert main(["compare", *runs, "--metric", "train/loss"]) == 0
    assert "train/loss over epochs" in capsys.readouterr().out


def test_support_sizes_are_drawn_unless_they_are_the_decoder_calls(tmp_path: Path) -> None:
    for name, calls in (("equal", 4), ("fewer", 2)):
        write_run(tmp_path / name, f"epoch,val/nelbo,{CALLS}median,train/support_size_median\n0,9,{calls},4\n1,8,{calls},4\n")
    for name, first in (("equal", "train/decoder_calls_median"), ("fewer", "train/support_size_median")):
        _, figure, *_ = comparison(sources([str(tmp_path / name)]), None)
        assert figure.panels[0].value == first


@pytest.mark.parametrize("given", ["=runs/a", "a=", ""])
def test_a_run_without_its_name_or_folder_is_refused(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", given]) == 2
    assert f"Expected NAME=FOLDER but got {given!r}" in capsys.readouterr().err


def test_a_folder_that_may_not_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "a", "epoch,val/loss\n0,1.0\n", "epoch,test/loss\n0,1.0\n")

    def refuse(path: str) -> list[str]:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "listdir", refuse)  # root may read any folder
    monkeypatch.setattr(Path, "iterdir", refuse)
    assert main(["compare", str(run), "--output", str(tmp_path / "out")]) == 2
    assert f"{str(run / 'test')!r} but got: Permission denied" in capsys.readouterr().err


@pytest.mark.skipif(os.name != "posix", reason="of pipes of POSIX")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_pipe_ends_a_command_quietly(unbuffered: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    words = [sys.executable, "-m", "lit_sparse", "configs"]
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(words, stdout=writing, stderr=subprocess.PIPE, env=environment)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("option", [[], ["--help"]])
def test_output_to_a_full_disk_is_one_message(unbuffered: str, option: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        words = [sys.executable, "-m", "lit_sparse", "configs", *option]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": unbuffered})
        assert done.returncode == 2
        (message,) = done.stderr.decode().splitlines()
        assert "but got: No space left on device" in message
        assert subprocess.run(words, stdout=full, stderr=full).returncode == 2


def test_a_curve_of_a_long_run_fits_in_80_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs-ssvae-digits-0", "epoch,val/nelbo\n" + "".join(f"{i},{28.66 - i / 40}\n" for i in range(200)))
    assert main(["compare", "runs-ssvae-digits-0"]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if " to " in line)
    assert line.endswith("  28.66 to 23.68")
    assert len(line) <= 80


def test_curves_are_means_over_the_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for seed, values in enumerate([(90.0, 80.0), (70.0, 40.0)]):
        folder = tmp_path / f"s/cell/seed_{seed}"
        folder.mkdir(parents=True)
        write_run(folder / "0", "epoch,step,val/nelbo\n" + "\n".join(f"{i},{i},{value}" for i, value in enumerate(values)))
    assert main(["compare", "s"]) == 0
    assert f"cell  {BLOCKS[-1]}{BLOCKS[0]}  80 to 60" in capsys.readouterr().out
    assert main(["compare", "s", "--output", ""]) == 2
    assert "Expected --output to be the path of files but got" in capsys.readouterr().err
