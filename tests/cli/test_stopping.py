"""A run that is stopped, or that finds the disk full, leaves what it had and says how to go on."""

from __future__ import annotations

import errno
import shlex
import threading
import warnings
from pathlib import Path

import pytest
import torch

from lit_sparse.cli.stopping import quiet
from lit_sparse.runs import read_status
from tests.conftest import Command
from tests.test_kills import DIGITS

pytestmark = pytest.mark.gate

#: Name of a run -> the moment at which it gets a signal, the signal, and the exit status.
STOPS = {"interrupted": ("batch_start 27", 2, 130), "terminated": ("validation 30", 15, 143)}
FIT = ["fit", *DIGITS, "--trainer.max_epochs=5"]


#: Variables of a job that SLURM has started with one process; there Lightning's own handler of SIGTERM stays.
SLURM = {"NTASKS": "1", "JOB_NAME": "train", "JOB_ID": "12345", "PROCID": "0", "LOCALID": "0", "NODEID": "0", "NNODES": "1"}


@pytest.mark.cases(gate=1)
@pytest.mark.parametrize("scheduler", [{}, SLURM], ids=["alone", "slurm"])
def test_a_stopped_run_draws_its_pictures_and_can_be_continued(
    scheduler: dict[str, str], lit_sparse: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in scheduler.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    for name, (moment, number, status) in STOPS.items():
        stop = ["--trainer.callbacks=interruptions.KillAtMoment", f"--trainer.callbacks.moment={moment}"]
        done = lit_sparse(*FIT, f"--name={name}", *stop, f"--trainer.callbacks.send={number}")
        assert done.returncode == status, done.stderr
        folder = f"runs/{name}/0"
        lines = done.stdout.splitlines()
        assert sum(line == f"run folder: {folder}" for line in lines) == 2, "at the start, and at the end"
        assert lines[-1] == f"run folder: {folder}"
        assert "Traceback" not in done.stdout + done.stderr
        assert (tmp_path / folder / "pictures" / "decoder_calls.png").is_file()
        said, _, command = lines[-2].partition(": lit-sparse ")
        assert said == "continue with"
        again = lit_sparse(*shlex.split(command), "--trainer.callbacks.moment=none")
        assert again.returncode == 0, again.stderr
        assert [path.name for path in (tmp_path / "runs" / name).iterdir()] == ["0"]
        last = torch.load(tmp_path / "runs" / name / "0" / "checkpoints" / "last.ckpt", weights_only=True)
        assert last["global_step"] == 50


def test_a_run_of_two_processes_is_stopped_at_once(lit_sparse: Command, tmp_path: Path) -> None:
    done = lit_sparse(*FIT, "-c", "trainer/ddp_cpu", "--name=two", "--trainer.callbacks=interruptions.StopFirst")
    assert done.returncode == 143, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert read_status(tmp_path / "runs" / "two" / "0")["why"] == "SIGTERM"


def test_a_full_disk_leaves_the_earlier_checkpoint_whole(lit_sparse: Command, tmp_path: Path) -> None:
    full = ["--trainer.callbacks=interruptions.FullDisk", "--trainer.callbacks.epoch=2"]
    done = lit_sparse(*FIT, "--name=full", *full)
    assert done.returncode == 2
    log = done.stderr
    assert log.count("lit-sparse: error: ") == 1
    assert "Traceback" not in log
    message = log.partition("lit-sparse: error: ")[2]
    assert "checkpoints/best.ckpt' but got: " in message, "which is written first at an epoch's end"
    assert "continue with: lit-sparse fit -c runs/full/0/config.yaml --ckpt_path last" in message
    checkpoints = tmp_path / "runs" / "full" / "0" / "checkpoints"
    assert torch.load(checkpoints / "last.ckpt", weights_only=True)["global_step"] == 20
    assert torch.load(checkpoints / "best.ckpt", weights_only=True)["global_step"] <= 20
    assert sorted(path.name for path in checkpoints.iterdir()) == ["best.ckpt", "last.ckpt"]


@pytest.mark.parametrize(("number", "shown"), [(errno.ENOSPC, []), (errno.EPERM, [errno.EPERM])])
def test_a_thread_of_a_logger_that_finds_the_disk_full_prints_no_traceback(
    number: int, shown: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: found.append(args.exc_value.errno))

    def write() -> None:
        raise OSError(number, "no space")

    with quiet():
        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
    assert found == shown


def test_the_seconds_of_the_first_process_are_not_advised_to_be_summed() -> None:
    with quiet():  # in the tests other warnings are errors
        warnings.warn("It is recommended to use `self.log('train/seconds', ..., sync_dist=True)` when logging", stacklevel=1)
