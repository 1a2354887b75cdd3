"""Exchange between processes: with several, with one, and with a build of torch that lacks ``torch.distributed``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import lit_sparse
from lit_sparse.callbacks import OptimalBrainDamage
from lit_sparse.cli import main
from lit_sparse.coresets import ShardedVectors
from lit_sparse.estimators.sampling import RunningMean
from lit_sparse.ground.distributed import (
    broadcast,
    gather,
    gather_objects,
    gather_to_first,
    gather_unequal,
    is_first,
    rank,
    reduce,
    world_size,
)
from tests.support.processes import run_processes

from .conftest import ROOT

BITS = ("-c", str(ROOT / "tests" / "support" / "bits.yaml"), "--name=run", "--trainer.limit_train_batches=4")
GAME = ("-c", str(ROOT / "tests" / "support" / "game.yaml"), "--name=game", "--trainer.limit_train_batches=4")


@pytest.fixture
def no_distributed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make torch look like a build without distributed, where only ``is_available`` is there."""
    monkeypatch.setattr(torch.distributed, "is_available", lambda: False)
    for name in ("is_initialized", "get_rank", "get_world_size", "all_reduce", "all_gather", "all_gather_object"):
        monkeypatch.delattr(torch.distributed, name)
    for name in ("gather_object", "broadcast", "get_global_rank"):
        monkeypatch.delattr(torch.distributed, name)


def _check_one_process() -> None:
    value = torch.arange(3.0)
    assert (rank(), world_size(), is_first()) == (0, 1, True)
    assert torch.equal(reduce(value), value) and torch.equal(broadcast(value), value)
    assert torch.equal(gather(value)[0], value) and torch.equal(gather_unequal(value)[0], value)
    assert gather_objects("a") == gather_to_first("a") == ["a"]


def test_one_process_gets_its_own_values_back() -> None:
    _check_one_process()


@pytest.mark.usefixtures("no_distributed")
def test_a_build_without_distributed_has_one_process() -> None:
    _check_one_process()
    mean = RunningMean()
    mean.update(torch.tensor([1.0, 3.0]))
    assert float(mean.value) == 2.0
    damage = OptimalBrainDamage("layer")
    damage.load_state_dict({"mask": None, "squares": torch.ones(2)})
    state = damage.state_dict()
    assert torch.equal(state["squares"], torch.ones(2))
    vectors = ShardedVectors(torch.eye(3))
    assert torch.equal(vectors.rows(torch.tensor([2])), torch.eye(3)[2:])
    assert torch.equal(vectors.agree(torch.tensor(5)), torch.tensor(5))


@pytest.mark.slow
@pytest.mark.usefixtures("no_distributed")
@pytest.mark.parametrize("config", [BITS, GAME], ids=["bits", "game"])
def test_a_build_without_distributed_runs_all_commands(
    config: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fit = ["fit", *config, "--checkpoint_every_n_steps=3"]
    assert main([*fit, "--trainer.max_epochs=1"]) == 0
    run = tmp_path / "runs" / config[2].removeprefix("--name=") / "0"
    assert main([*fit, "--trainer.max_epochs=2", "--ckpt_path=last"]) == 0
    for command in ("validate", "test", "predict"):
        assert main([command, *config, f"--ckpt_path={run / 'checkpoints' / 'last.ckpt'}"]) == 0


def test_one_module_guards_torch_distributed() -> None:
    package = Path(lit_sparse.__file__).parent
    users = [path for path in package.rglob("*.py") if re.search(r"torch\.distributed\b(?!\.html)", path.read_text())]
    assert [path.relative_to(package).as_posix() for path in users] == ["ground/distributed.py"]


def _process(number: int, store: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=2)
    assert (rank(), world_size(), is_first()) == (number, 2, number == 0)
    own = torch.tensor([[1.0, 2.0]]).T + number  # not contiguous
    assert reduce(own).tolist() == [[3.0], [5.0]]
    assert own.tolist() == [[1.0 + number], [2.0 + number]], "the value itself stays"
    assert broadcast(own).tolist() == [[1.0], [2.0]]
    assert [part.tolist() for part in gather(own)] == [[[1.0], [2.0]], [[2.0], [3.0]]]
    rows = torch.full((2 * number, 3), 7)  # none on the first
    assert [part.tolist() for part in gather_unequal(rows)] == [[], [[7, 7, 7], [7, 7, 7]]]
    assert [part.tolist() for part in gather_unequal(rows > 0)] == [[], [[True] * 3] * 2]
    assert gather_objects({"rank": number}) == [{"rank": 0}, {"rank": 1}]
    assert gather_to_first(number) == ([0, 1] if number == 0 else [])
    halves = torch.distributed.new_group([1])
    if number == 1:
        assert (rank(halves), world_size(halves)) == (0, 1)
        assert torch.equal(reduce(own, halves), own) and len(gather(own, halves)) == 1
    torch.distributed.destroy_process_group()


@pytest.mark.gate
def test_two_processes_exchange_values(tmp_path: Path) -> None:
    run_processes(_process, (str(tmp_path / "store"),), 2)
