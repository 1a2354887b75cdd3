"""One process at a time has a run folder; its status says which, or how the run ended."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.files import STATUS
from lit_sparse.runs import status as status_file
from lit_sparse.runs.status import LARGEST, check_plain, logged, read_status, take

TAKES = """
import sys, time
from pathlib import Path
from lit_sparse.runs.status import take
take(Path(sys.argv[1]))
print("taken", flush=True)
time.sleep(60)
"""


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has taken the folder of the test."""
    with subprocess.Popen([sys.executable, "-c", TAKES, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "taken\n"
        yield process
        process.kill()


def written(folder: Path, **changes: Any) -> None:
    """Change the status of a folder as another program would."""
    status = json.loads((folder / STATUS).read_text())
    (folder / STATUS).write_text(json.dumps(status | changes))


@pytest.mark.gate
def test_a_folder_of_another_process_is_refused_until_that_process_is_killed(
    other: subprocess.Popen[str], tmp_path: Path
) -> None:
    status = read_status(tmp_path)
    assert status is not None
    assert (status["state"], status["process"], status["host"]) == ("running", other.pid, socket.gethostname())
    with pytest.raises(ConfigurationError, match=rf"another process is running it: process {other.pid} on host .*, since '2"):
        take(tmp_path)
    other.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and its parent has not noticed
    status = read_status(tmp_path)
    assert status is not None
    assert (status["state"], status["why"]) == ("interrupted", f"process {other.pid} was killed")
    take(tmp_path).finish("a test")
    status = read_status(tmp_path)
    assert status is not None
    assert (status["state"], status["why"], status["process"]) == ("finished", "a test", os.getpid())


def test_this_process_cannot_take_a_folder_twice_but_again_after_its_end(tmp_path: Path) -> None:
    opened = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 0
    for _ in range(200):
        status = take(tmp_path)
        with pytest.raises(ConfigurationError, match="this process is running it"):
            take(tmp_path)
        status.finish("the test")
    assert [path.name for path in tmp_path.iterdir()] == [STATUS]
    if opened:
        assert len(list(Path("/proc/self/fd").iterdir())) == opened


def test_a_number_of_a_process_that_another_one_has_got_does_not_count(tmp_path: Path) -> None:
    take(tmp_path)
    written(tmp_path, started="17")
    status = read_status(tmp_path)
    assert status is not None
    assert status["state"] == "interrupted"
    take(tmp_path)


def test_a_process_on_another_host_is_named_with_the_file_to_remove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take(tmp_path)
    written(tmp_path, host="node\x1b[2J7", job="41")
    status = read_status(tmp_path)
    assert status is not None
    assert status["state"] == "running"
    for job in ("", "42"):
        monkeypatch.setenv("SLURM_JOB_ID", job)
        with pytest.raises(ConfigurationError) as refused:
            take(tmp_path)
        assert all(part in str(refused.value) for part in (r"'node\x1b[2J7'", f"process {os.getpid()}", str(tmp_path / STATUS)))
    monkeypatch.setenv("SLURM_JOB_ID", "41")  # the job was queued again
    take(tmp_path)
    assert json.loads((tmp_path / STATUS).read_text())["job"] == "41"


def test_a_job_that_is_queued_again_does_not_take_the_folder_of_a_process_that_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "41")
    take(tmp_path)
    with pytest.raises(ConfigurationError, match="this process"):
        take(tmp_path)


GOOD = {"state": "running", "why": "", "host": "h", "process": 1, "started": "1", "since": "now"}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        "[" * 5000,
        "{}",
        json.dumps(GOOD | {"state": "gone"}),
        json.dumps(GOOD | {"process": True}),
        json.dumps(GOOD | {"process": -1}),
        json.dumps(GOOD | {"process": "1"}),
        json.dumps(GOOD | {"host": None}),
        json.dumps(GOOD).replace("1,", "1" * 5000 + ","),
        json.dumps(GOOD | {"why": "x" * LARGEST}),
        "\udcff",
    ],
    ids=repr,
)
def test_a_damaged_status_is_refused_and_stays(content: str, tmp_path: Path) -> None:
    path = tmp_path / STATUS
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    before = path.read_bytes()
    for use in (take, read_status):
        with pytest.raises(ConfigurationError, match=r"is damaged: .* remove the file and give the command again"):
            use(tmp_path)
    assert path.read_bytes() == before


def test_a_status_whose_file_was_removed_and_taken_by_another_process_is_not_written(tmp_path: Path) -> None:
    status = take(tmp_path)
    written(tmp_path, host="elsewhere")
    status.finish("a test")
    assert json.loads((tmp_path / STATUS).read_text())["state"] == "running"
    (tmp_path / STATUS).unlink()
    status.finish("a test")
    assert json.loads((tmp_path / STATUS).read_text())["state"] == "finished"


def test_a_run_that_a_full_disk_ends_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, write = take(tmp_path), status_file._write

    def full(path: Path, fields: dict[str, Any]) -> None:
        if path.exists():  # there is room for one such file
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, fields)

    monkeypatch.setattr(status_file, "_write", full)
    state.interrupt("the disk is full", began=True)
    found = read_status(tmp_path)
    assert found is not None
    assert (found["state"], found["why"]) == ("interrupted", "the disk is full")


def test_a_new_folder_on_a_full_disk_is_removed_but_no_folder_with_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, fields: dict[str, Any]) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(status_file, "_write", full)
    new, former = tmp_path / "1", tmp_path / "0"
    for folder in (new, former):
        folder.mkdir()
    (former / "metrics.csv").touch()
    for folder in (new, former):
        with pytest.raises(ConfigurationError, match="No space left on device"):
            take(folder)
    assert [*tmp_path.rglob("*")] == [former, former / "metrics.csv"]


def test_a_run_that_fails_before_its_first_step_is_as_it_was(tmp_path: Path) -> None:
    take(tmp_path).finish("max_epochs = 3 was reached")
    take(tmp_path).interrupt("ConfigurationError: Expected", began=False)
    status = read_status(tmp_path)
    assert status is not None
    assert (status["state"], status["why"]) == ("finished", "max_epochs = 3 was reached")
    take(tmp_path).interrupt("SIGTERM", began=True)
    status = read_status(tmp_path)
    assert status is not None
    assert (status["state"], status["why"]) == ("interrupted", "SIGTERM")


@pytest.mark.parametrize("lines", ["0,1\n", "0,1\n1,2\n2,3\n", ""])
def test_a_finished_run_has_the_rows_that_it_logged(lines: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("epoch,val/loss\n0,1\n1,2\n")
    status = take(tmp_path)
    status.finish("a test")
    assert len(logged(tmp_path)) == 2
    path.write_text(f"epoch,val/loss\n{lines}")
    with pytest.raises(ConfigurationError, match=rf"the 2 rows of a finished run in .* but got {lines.count(chr(10))}"):
        logged(tmp_path)
    take(tmp_path)
    assert len(logged(tmp_path)) == lines.count("\n"), "a run that is continued may have any number"


def test_there_is_no_status(tmp_path: Path) -> None:
    assert read_status(tmp_path) is None
    assert read_status(tmp_path / "absent") is None


def test_half_written_files_of_a_killed_process_are_removed_but_no_others(tmp_path: Path) -> None:
    part = f".last.ckpt.{'0a' * 8}.part"
    names = ["checkpoints/last.ckpt", f"checkpoints/{part}", f"test/0/{part}", ".my.part", f"{part}/kept"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    take(tmp_path)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {*names, STATUS} - {f"checkpoints/{part}"}


def test_folders_deeper_than_a_path_may_be_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(25):
        Path("a" * 200).mkdir()
        monkeypatch.chdir("a" * 200)
    with pytest.raises(ConfigurationError, match=r"is what the system refuses to read: .*\. Remove it"):
        check_plain(tmp_path)


def test_what_is_neither_a_file_nor_a_folder_is_refused(tmp_path: Path) -> None:
    run, outside = tmp_path / "run", tmp_path / "precious"
    outside.write_text("precious")
    (run / "wandb" / "run-1").mkdir(parents=True)
    (run / "wandb" / "latest-run").symlink_to("run-1")  # as wandb does
    (run / "last.ckpt").symlink_to(run / "wandb")
    reached = tmp_path / "reached"
    reached.symlink_to(run)  # the user's own affair
    for folder in (run, reached):
        check_plain(folder)
    place = run / "wandb" / "run-1" / "metrics.csv"
    for target in (outside, tmp_path / "absent", Path("..", "..", "..", "precious"), Path("metrics.csv")):
        place.symlink_to(target)
        with pytest.raises(ConfigurationError, match=r"'wandb/run-1/metrics.csv' is a link to .*, outside of it\. Remove it"):
            take(run)
        place.unlink()
    os.mkfifo(place)
    with pytest.raises(ConfigurationError, match=r"'wandb/run-1/metrics.csv' is neither a file nor a folder\. Remove it"):
        take(run)
    place.unlink()
    (run / STATUS).symlink_to(outside)
    with pytest.raises(ConfigurationError, match="is a link to"):
        take(run)
    assert outside.read_text() == "precious"


@pytest.mark.gate
def test_of_processes_that_take_a_folder_at_the_same_time_one_has_it(tmp_path: Path) -> None:
    begun = time.time() + 3
    program = f"import time; time.sleep(max(0, {begun} - time.time()))\n{TAKES.replace('60', '5')}"
    started = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(4)
    ]
    outputs = [process.communicate() for process in started]
    assert sorted(out for out, _ in outputs) == [b""] * 3 + [b"taken\n"]
    assert sum(b"another process is running it" in err for _, err in outputs) == 3


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_status_that_is_no_plain_file_is_refused(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where it is put in place of the file while it is read."""
    path = tmp_path / STATUS
    (tmp_path / "other").write_text(json.dumps(GOOD))
    {"link": lambda: path.symlink_to(tmp_path / "other"), "pipe": lambda: os.mkfifo(path), "folder": path.mkdir}[kind]()
    plain = (tmp_path / "other").lstat()
    monkeypatch.setattr(Path, "lstat", lambda _: plain)  # as before it was put there
    with pytest.raises(ConfigurationError, match=r"is damaged: .* and not a plain file"):
        read_status(tmp_path)
