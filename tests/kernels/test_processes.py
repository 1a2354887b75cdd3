"""Kernels in forked workers, in several threads, on read-only installations, and without bounds checks."""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import lit_sparse
from lit_sparse.kernels.cpu import cache
from lit_sparse.kernels.cpu.cache import MachineCode
from lit_sparse.mappings import functional as F
from lit_sparse.nn import SharedCategorical
from lit_sparse.structures import Budget, Tree
from tests.support.processes import run_python

FIRST_CALL = """
import torch
from lit_sparse.mappings import functional as F
assert F.sparsemax(torch.zeros(4)).tolist() == [0.25] * 4
"""


def run(code: str, **environment: str) -> str:
    return run_python("-W", "error", "-c", code, **environment)


@pytest.mark.slow
@pytest.mark.gate
@pytest.mark.timeout(900)
def test_hostile_rows_under_bounds_checks(tmp_path: Path) -> None:
    """20,000 rows through each kernel, in an empty cache: one compiled without bounds checks would be used again."""
    script = str(Path(__file__).with_name("hostile.py"))
    printed = run_python("-W", "error", script, timeout=880, NUMBA_BOUNDSCHECK="1", NUMBA_CACHE_DIR=str(tmp_path))
    seen = dict(line.split() for line in printed.splitlines())
    mappings = {"simplex", "entmax", "pnorm", "capped", "fused", "oscar", "hoyer", "hard", "active_set"}
    assert set(seen) == mappings | {"bits", "trees", "assignments", "categorical"}
    assert all(int(rows) >= 20_000 for rows in seen.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    "calls",
    [
        "from tests.kernels.test_cholesky import gather, walk\nfor seed in range(150): walk(seed, 40); gather(seed)",
        "from tests.transport.test_kernel_sgd import hostile\nfor seed in range(60): hostile(seed)",
        "from tests.nn.attend.test_random import check\nfor number in range(200): check(number)",
        "from tests.kernels.every import main\nmain()",
    ],
    ids=["cholesky", "kernel_sgd", "sparse_attention", "every_kernel"],
)
@pytest.mark.timeout(1800)
def test_nothing_is_read_outside_of_arrays(calls: str, tmp_path: Path) -> None:
    run_python("-c", calls, timeout=1780, NUMBA_BOUNDSCHECK="1", NUMBA_CACHE_DIR=str(tmp_path))


def first_call(package: Path, cache: Path) -> str:
    """Return what the first call prints, in a process that imports the package from a folder."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": str(package), "PYTHONSAFEPATH": "1"}
    done = subprocess.run([sys.executable, "-c", FIRST_CALL], env=environment, capture_output=True, text=True, check=True)
    return done.stderr


@pytest.mark.slow
def test_machine_code_is_found_by_all_that_it_is_made_of(tmp_path: Path) -> None:
    """A copy of the package finds it, one in which a called function of another module differs does not."""
    copy = tmp_path / "elsewhere"
    shutil.copytree(Path(lit_sparse.__file__).parent, copy / "lit_sparse", ignore=shutil.ignore_patterns("__pycache__"))
    cache, kept = tmp_path / "cache", f"Later runs load them from {tmp_path / 'cache' / 'kernels'}."
    assert first_call(Path(lit_sparse.__file__).parents[1], cache).count(kept) == 1
    assert first_call(copy, cache) == ""
    module = copy / "lit_sparse" / "kernels" / "cpu" / "rows.py"
    module.write_text("\n\n" + module.read_text())
    assert first_call(copy, cache) == ""
    module.write_text(module.read_text().replace("np.int32(keys[0, i] >= key)", "np.int64(keys[0, i] >= key)"))
    assert kept in first_call(copy, cache)


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["empty", "cut", "text"])
def test_damaged_machine_code_is_compiled_again(damage: str, tmp_path: Path) -> None:
    package = Path(lit_sparse.__file__).parents[1]
    first_call(package, tmp_path)
    for file in (tmp_path / "kernels").iterdir():
        content = file.read_bytes()
        file.write_bytes({"empty": b"", "cut": content[: len(content) // 2], "text": b"not a pickle"}[damage])
    assert "Compiling" in first_call(package, tmp_path)
    assert first_call(package, tmp_path) == ""


class Acting:
    """An object that makes a file when its pickle is read."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> Any:
        return self.made.touch, ()


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "kind", ["own", "another owner", "writable by all", "link", "hard link", "pipe", "flipped bit", "another name"]
)
def test_only_own_files_are_machine_code(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where the folder was checked before another one took its place."""
    path, content = tmp_path / "code", pickle.dumps(Acting(tmp_path / "acted"))
    name = b"other" if kind == "another name" else b"code"
    kept = hashlib.sha256(name + b"\0" + content).digest() + content
    other = tmp_path / "other"
    other.write_bytes(kept)
    path.write_bytes(kept)
    if kind == "another owner":
        found = path.stat()
        monkeypatch.setattr(os, "fstat", lambda _: os.stat_result([*found[:4], os.geteuid() + 1, *found[5:]]))
    elif kind == "writable by all":
        path.chmod(0o666)
    elif kind == "flipped bit":
        path.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    elif kind not in ("own", "another name"):
        path.unlink()
        {"link": path.symlink_to, "hard link": path.hardlink_to, "pipe": lambda _: os.mkfifo(path)}[kind](other)
    code: Any = MachineCode.__new__(MachineCode)
    monkeypatch.setattr(code, "_file", lambda *_: path, raising=False)
    monkeypatch.setattr(cache, "refusal", lambda _: None)
    assert code.load_overload(None, SimpleNamespace(refresh=lambda: None)) is None
    assert (tmp_path / "acted").exists() == (kind == "own")


def test_machine_code_is_kept_for_a_user_whose_files_a_group_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that others can write is not read, and a process with umask 002 makes such files."""
    code: Any = MachineCode.__new__(MachineCode)
    code.results = SimpleNamespace(check_cachable=lambda _: True, reduce=lambda data: data, rebuild=lambda _, payload: payload)
    monkeypatch.setattr(code, "_file", lambda *_: tmp_path / "code", raising=False)
    monkeypatch.setattr(cache, "refusal", lambda _: None)
    before, data = os.umask(0o002), SimpleNamespace(target_context=None)
    try:
        code.save_overload(None, data)
    finally:
        os.umask(before)
    assert code.load_overload(None, SimpleNamespace(refresh=lambda: None)) == data


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["writable by all", "link", "file"])
def test_machine_code_of_others_is_not_used(kind: str, tmp_path: Path) -> None:
    """The files are pickles. Everyone who can write them could run code here."""
    package, folder = Path(lit_sparse.__file__).parents[1], tmp_path / "cache" / "kernels"
    first_call(package, tmp_path / "own")
    folder.parent.mkdir()
    if kind == "link":
        folder.symlink_to(tmp_path / "own" / "kernels")
    elif kind == "file":
        folder.write_text("")
    else:
        shutil.copytree(tmp_path / "own" / "kernels", folder)
        folder.chmod(0o777)
    for _ in range(2):
        printed = first_call(package, folder.parent)
        assert printed.count("They are not kept in") == 1
        assert "Set NUMBA_CACHE_DIR to a folder of your own" in printed


def sparsemap(x: Tensor) -> Tensor:
    """A kernel whose gradient is torch's: it is left out."""
    found = F.sparsemap(x.detach()[:1024].reshape(4096, 64), Budget(64, 9)).marginals
    return 0 * x[:1024] + found.reshape(1024, 256)


def categorical(x: Tensor) -> Tensor:
    """The likelihood of a row's first 254 scores as 127 variables of two features."""
    weight, bias = x[:33, 254:], x[33:66, 255]
    values = torch.arange(127).expand(len(x), -1) % 33
    likelihood: Tensor = torch.func.functional_call(
        SharedCategorical(2, 33), {"weight": weight, "bias": bias}, (x[:, :254].reshape(-1, 127, 2), values)
    )
    return 0 * x + likelihood.unsqueeze(-1)


#: One function of each kernel.
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sparsemax": F.sparsemax,
    "topk": lambda x: F.topk_sparsemax(x, 8),
    "entmax15": F.entmax,
    "entmax": lambda x: F.entmax(x, 1.25),
    "pnorm": F.sq_pnorm_max,
    "fused": F.fusedmax,
    "oscar": F.oscarmax,
    "capped": lambda x: F.capped_softmax(x, 0.05),
    "hoyer": lambda x: F.hoyer_projection(x, 0.75),
    "hard": lambda x: F.hard_threshold(x, 8),
    "sparsemap": lambda x: sparsemap(x),
    "categorical": lambda x: categorical(x),
    "trees": lambda x: 0 * x + Tree().maximize(x.detach()),
}


def scores(seed: int) -> Tensor:
    """Enough rows for the pool of threads to be used."""
    return torch.randn(4096, 256, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Set torch's number of threads, and put it back."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


class _Mapped(Dataset):
    """A data set whose items are made by all kernels, in a worker."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        return torch.stack([function(scores(index)).double().sum(0) for function in FUNCTIONS.values()])


@pytest.mark.gate
@pytest.mark.parametrize("threads", [2], indirect=True)
def test_forked_data_loader_workers(threads: int) -> None:
    data = _Mapped()
    expected = torch.stack([data[i] for i in range(len(data))])  # the pool of this process exists before the fork
    loader = DataLoader(data, batch_size=2, num_workers=2, multiprocessing_context="fork")
    torch.testing.assert_close(torch.cat(list(loader)), expected, rtol=0, atol=0)


@pytest.mark.slow
def test_a_fork_may_use_many_threads() -> None:
    """Though torch's own are gone there."""
    code = (
        "import os, threading, torch\n"
        "from lit_sparse.mappings import functional as F\n"
        "torch.set_num_threads(2)\n"
        "x = torch.randn(4096, 256)\n"
        "y = F.sparsemax(x)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    same = (F.sparsemax(x).numpy() == y.numpy()).all()  # an operation of torch would wait for threads that are gone\n"
        "    helping = any(thread.name.startswith('lit_sparse') for thread in threading.enumerate())\n"
        "    os._exit(0 if same and helping else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
    )
    run(code)


def results(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    leaf = x.clone().requires_grad_()
    y = function(leaf)
    return y.detach(), torch.autograd.grad(y, leaf, x[: len(y)])[0]


@pytest.mark.gate
@pytest.mark.parametrize("name", FUNCTIONS)
def test_two_threads_at_once(name: str, threads: int) -> None:
    function, x = FUNCTIONS[name], scores(0)
    expected = results(function, x)
    wrong: list[object] = []

    def work() -> None:
        try:
            for _ in range(3):
                wrong.extend("different" for a, b in zip(results(function, x), expected, strict=True) if not torch.equal(a, b))
        except Exception as error:
            wrong.append(error)

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


@pytest.mark.gate
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_number_of_threads_changes_nothing(name: str) -> None:
    before, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(results(FUNCTIONS[name], scores(1)))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


def test_an_error_in_a_block_reaches_the_caller() -> None:
    from lit_sparse.kernels.cpu.threads import over_rows

    def block(start: int, stop: int) -> None:
        if start > 0:
            raise ValueError("from a block")

    torch.set_num_threads(max(2, torch.get_num_threads()))
    with pytest.raises(ValueError, match="from a block"):
        over_rows(block, (100, 100), 1.0)


@pytest.mark.slow
def test_without_openmp_a_pool_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    from lit_sparse.kernels.cpu import threads

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    expected = [results(function, scores(0)) for function in FUNCTIONS.values()]
    monkeypatch.setattr(threads, "_threads", threads._Pool())
    try:
        for function, pair in zip(FUNCTIONS.values(), expected, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(results(function, scores(0)), pair, strict=True))
    finally:
        torch.set_num_threads(before)
    assert any(thread.name.startswith("lit_sparse") for thread in threading.enumerate())


@pytest.mark.gate
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere torch's threads cannot be found")
def test_torchs_own_threads_serve() -> None:
    """Other threads would share cores with torch's threads, which spin until torch's next operation."""
    run("from lit_sparse.kernels.cpu import threads\nassert type(threads._threads).__name__ == '_Team'")


@pytest.mark.gate
def test_many_threads_call_kernels_and_torch_at_once() -> None:
    """Teams of several masters, their workers taking the interpreter lock in turn; and none is left behind at the end."""
    code = (
        "import threading, torch\n"
        "from lit_sparse.mappings import functional as F\n"
        "torch.set_num_threads(3)\n"
        "x = torch.randn(4096, 256)\n"
        "y = F.sparsemax(x)\n"
        "def work():\n"
        "    for _ in range(30):\n"
        "        assert torch.equal(F.sparsemax(x + 0.0), y) and torch.softmax(x, -1).shape == x.shape\n"
        "workers = [threading.Thread(target=work) for _ in range(4)]\n"
        "[worker.start() for worker in workers]\n"
        "[worker.join() for worker in workers]\n"
        "print('done')\n"
    )
    assert run(code).strip() == "done"
