"""Runs on two hosts, by the commands of the page about several machines: one is killed, the run goes on, only one writes."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from .conftest import ROOT, metrics_of
from .docs.pages import DOCS, blocks
from .support.hosts import Host, two_hosts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SHORT = " --trainer.max_epochs 3 --trainer.check_val_every_n_epoch 1 --trainer.log_every_n_steps 2 --checkpoint_every_n_steps 3"
QUIET = " --trainer.enable_progress_bar false"
KILL = " --trainer.callbacks+=interruptions.KillMachine --trainer.callbacks.step={} --trainer.callbacks.node={}"
WRITES = " --trainer.callbacks+=writes.RecordWrites"
#: Options of a run whose numbers of training examples and of processes divide: else some examples of an epoch are left out.
ROBUST = " --model.init_args.risk=Mean --data.val_size 181"


def command(start: str) -> str:
    """Return the block of the page whose first line begins with a text."""
    found = [block.text for block in blocks(DOCS / "how_to" / "several_machines.md") if start in block.text.splitlines()[0]]
    assert len(found) == 1
    return found[0].replace("\\\n", " ").strip()


TORCHRUN, NODE_RANK, SCRIPT = command("torchrun"), command("MASTER_ADDR"), command("#!/bin/bash")
FEWER_MACHINES, FEWER_PROCESSES = command("--trainer.devices 4"), command("-c robust")
#: One process per host.
PAIR = TORCHRUN.replace("--nproc_per_node 2", "--nproc_per_node 1") + " --trainer.devices 1"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Host, Host]]:
    with two_hosts(tmp_path_factory.mktemp("hosts")) as both:
        yield both


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The search path of a shell that finds the programs of the page."""
    programs = tmp_path_factory.mktemp("bin")
    for name, line in {
        "torchrun": "-m torch.distributed.run",
        "lit-sparse": "-m lit_sparse",
        "srun": str(ROOT / "tests" / "support" / "srun.py"),
    }.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {line} "$@"\n')
        (programs / name).chmod(0o755)
    return f"{programs}{os.pathsep}{os.environ['PATH']}"


def run(hosts: tuple[Host, ...], line: str, folder: Path, path: str) -> tuple[list[int], list[str]]:
    """Run a command of the page on hosts; return the exit statuses and the outputs."""
    folder.mkdir(exist_ok=True)
    lines = [
        line.replace("RANK ", f"{number} ").replace("NODE_RANK=RANK", f"NODE_RANK={number}") for number in range(len(hosts))
    ]
    outputs = [folder / f"output_{host.name}" for host in hosts]
    for output in outputs:
        output.unlink(missing_ok=True)
    started = [
        host.start(
            f"exec env {each}" if "=" in each.split()[0] else f"exec {each}", folder, output, PATH=path, OMP_NUM_THREADS="1"
        )
        for host, each, output in zip(hosts, (line.replace("ADDRESS", "host0") for line in lines), outputs, strict=True)
    ]
    statuses = [process.wait(timeout=250) for process in started]
    return statuses, [output.read_text(errors="replace") for output in outputs]


def rows(run_folder: Path) -> list[dict[str, float]]:
    """Return the rows of a run's metrics, without seconds and without the losses of the first process's own batches."""
    with (run_folder / "metrics.csv").open(newline="") as file:
        return [
            {name: float(value) for name, value in row.items() if value and name not in ("train/seconds", "train/loss_step")}
            for row in csv.DictReader(file)
        ]


def state_of(run_folder: Path) -> dict[str, torch.Tensor]:
    checkpoint = torch.load(run_folder / "checkpoints" / "last.ckpt", weights_only=True)
    moments = checkpoint["optimizer_states"][0]["state"]
    return checkpoint["state_dict"] | {f"{key}/{name}": value for key, of in moments.items() for name, value in of.items()}


def assert_same(cut: Path, whole: Path, *, exact: bool = True) -> None:
    """Compare the weights, moments and logged values of two runs.

    The sum of two gradients does not depend on their order, nor does a repeated run. DDP groups gradients anew after the first
    step of a process. So a run that is continued with more than two processes adds them up in another order, in float32. The
    logged sums are float64, and a continued run adds them up in another order.
    """
    ours, theirs = state_of(cut), state_of(whole)
    assert ours.keys() == theirs.keys()
    weights = {"atol": 0.0, "rtol": 0.0} if exact else {"atol": 1e-6, "rtol": 1e-5}
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, **weights, msg=name)
    assert [row["step"] for row in rows(cut)] == [row["step"] for row in rows(whole)]
    for row, other in zip(rows(cut), rows(whole), strict=True):
        assert row == pytest.approx(other, rel=1e-12 if exact else 1e-5)


@pytest.fixture(scope="module")
def whole(hosts: tuple[Host, Host], path: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes per host that is not interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    statuses, outputs = run(hosts, TORCHRUN + SHORT + QUIET + WRITES, folder, path)
    assert statuses == [0, 0], outputs
    return folder


def test_only_the_first_process_writes(whole: Path) -> None:
    """Each process reports its own rank; all files and tables are the first's."""
    written = {path: path.read_text().splitlines() for path in sorted(whole.glob("writes_*"))}
    assert sorted(path.name.split("_")[1] for path in written) == ["host0", "host0", "host1", "host1"]
    first = [path for path, lines in written.items() if lines]
    assert len(first) == 1 and "host0" in first[0].name, written
    changed = written[first[0]]
    assert "open metrics.csv" in changed and "open config.yaml" in changed and "os.mkdir 0" in changed
    folder = whole / "runs" / "ssvae" / "digits"
    assert [path.name for path in folder.iterdir()] == ["0"]
    names = sorted(
        re.sub(r"(events\.out\.tfevents).*", r"\1", path.name) for path in (folder / "0").rglob("*") if path.is_file()
    )
    assert len(names) == len(set(names)), "one file of each kind"
    steps = [(row["step"], sorted(row)) for row in rows(folder / "0")]
    assert len(steps) == len({(step, *keys) for step, keys in steps}), "no row twice"
    assert metrics_of(folder / "0")["val/examples"] == [180.0] * 3
    zero, one = ((whole / f"output_host{number}").read_text() for number in (0, 1))
    for number in range(4):
        assert (zero + one).count(f"GLOBAL_RANK: {number}, MEMBER: {number + 1}/4") == 1
        assert (zero, one)[number // 2].count(f"GLOBAL_RANK: {number}, ") == 1
    assert zero.count("run folder: runs/ssvae/digits/0\n") == 2, "at the start and at the end"
    assert zero.count("best validation: ") == 1
    assert not re.search("run folder|best validation|test with|parameters, |epoch 1|Trainer.fit", one)


@pytest.fixture(scope="module")
def pair(hosts: tuple[Host, Host], path: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one process per host that is not interrupted."""
    folder = tmp_path_factory.mktemp("pair")
    statuses, outputs = run(hosts, PAIR + SHORT + QUIET, folder, path)
    assert statuses == [0, 0], outputs
    return folder


@pytest.mark.parametrize("node", [0, 1])
def test_a_run_goes_on_after_a_machine_is_killed(
    node: int, pair: Path, hosts: tuple[Host, Host], path: str, tmp_path: Path
) -> None:
    """The other host ends with an error; the run continues with as many processes on one host, to the same weights."""
    statuses, outputs = run(hosts, PAIR + SHORT + QUIET + KILL.format(8, node), tmp_path, path)
    assert statuses[node] == -9 and statuses[1 - node] == 1, outputs
    said = outputs[1 - node]
    assert "lit-sparse: error: Expected an answer of all processes of this run but got: " in said
    assert re.search(r"continue with: lit-sparse fit -c \S*runs/ssvae/digits/0/config.yaml --ckpt_path last", said)
    resumed = FEWER_MACHINES.replace("--trainer.devices 4", "--trainer.devices 2")
    statuses, outputs = run((hosts[1 - node],), resumed + SHORT + QUIET, tmp_path, path)
    assert statuses == [0], outputs
    folder = tmp_path / "runs" / "ssvae" / "digits"
    assert [path.name for path in folder.iterdir()] == ["0"]
    assert_same(folder / "0", pair / "runs" / "ssvae" / "digits" / "0")


def test_a_run_goes_on_with_one_process(hosts: tuple[Host, Host], path: str, tmp_path: Path) -> None:
    """A step has the same examples; the mean over processes equals the mean of all, up to the order of sums in float32."""
    robust = PAIR.replace("ssvae/digits", "robust/digits") + " --data.batch_size 32" + SHORT + QUIET + ROBUST
    assert run(hosts, robust, tmp_path / "whole", path)[0] == [0, 0]
    assert run(hosts, robust + KILL.format(10, 1), tmp_path / "cut", path)[0] == [1, -9]
    statuses, outputs = run(hosts[:1], FEWER_PROCESSES + SHORT + QUIET + ROBUST, tmp_path / "cut", path)
    assert statuses == [0], outputs
    cut, whole = (tmp_path / name / "runs" / "robust" / "digits" / "0" for name in ("cut", "whole"))
    assert_same(cut, whole, exact=False)


def test_machines_without_a_launcher_make_one_run_folder(
    whole: Path, hosts: tuple[Host, Host], path: str, tmp_path: Path
) -> None:
    statuses, outputs = run(hosts, NODE_RANK + SHORT + QUIET + WRITES, tmp_path, path)
    assert statuses == [0, 0], outputs
    assert [path.name for path in (tmp_path / "runs" / "ssvae" / "digits").iterdir()] == ["0"]
    assert [path.name.split("_")[1] for path in tmp_path.glob("writes_*") if path.read_text()] == ["host0"]
    assert_same(tmp_path / "runs" / "ssvae" / "digits" / "0", whole / "runs" / "ssvae" / "digits" / "0")


def test_a_job_of_slurm_is_started_again(whole: Path, hosts: tuple[Host, Host], path: str, tmp_path: Path) -> None:
    """The script runs with the variables that sbatch and srun set, is killed with one of its hosts, and runs once more."""
    asked = dict(re.findall(r"#SBATCH --([\w-]+)=(\S+)", SCRIPT))
    names = "host[0-1]"
    job = {"JOB_ID": "4711", "JOB_NAME": asked["job-name"], "NNODES": asked["nodes"], "JOB_NUM_NODES": asked["nodes"]}
    job |= {"NODELIST": names, "JOB_NODELIST": names, "NTASKS_PER_NODE": asked["ntasks-per-node"]}
    environment = {f"SLURM_{name}": value for name, value in job.items()}
    support = f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'support'}"
    environment |= {"PATH": path, "PYTHONPATH": support, "HOSTS": str(hosts[0].names)}
    environment["NAMESPACES"] = " ".join(host.namespace for host in hosts)

    def submit(options: str, **more: str) -> int:
        (tmp_path / "digits.sh").write_text(SCRIPT + options + "\n")
        variables = {**os.environ, **environment, **more}
        return subprocess.run(["bash", "digits.sh"], cwd=tmp_path, env=variables, timeout=250).returncode

    assert submit(SHORT + QUIET + KILL.format(8, 1)) != 0
    status = submit(SHORT + QUIET, SLURM_RESTART_COUNT="1")
    outputs = [(tmp_path / f"task{task}").read_text(errors="replace") for task in range(4)]
    assert status == 0, outputs
    assert "lit-sparse: error: Expected an answer of all processes" in outputs[0]
    for task, output in enumerate(outputs):
        assert f"GLOBAL_RANK: {task}, MEMBER: {task + 1}/4" in output
        assert output.count("run folder: ") == (3 if task == 0 else 0)
    assert [path.name for path in (tmp_path / "runs" / "ssvae" / "digits").iterdir()] == ["0"]
    assert_same(tmp_path / "runs" / "ssvae" / "digits" / "0", whole / "runs" / "ssvae" / "digits" / "0", exact=False)
