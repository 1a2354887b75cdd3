"""A compilation says so once, and compiles only what a call needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lit_sparse.errors import ConfigurationError
from lit_sparse.kernels import compile_rows
from lit_sparse.kernels.cpu import cache

NOTICE = "Compiling kernels for this processor"


@pytest.mark.parametrize("named", ["", "relative"])
def test_the_cache_is_in_no_folder_of_the_current_one(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", named)  # which the specification ignores
    monkeypatch.setattr(cache.config, "CACHE_DIR", "")
    assert cache.cache_folder() == Path.home() / ".cache" / "lit_sparse" / "kernels"
    monkeypatch.setattr(cache, "user_cache", lambda: None)  # without a home folder
    assert cache.refusal(cache.cache_folder())


def run(program: str, cache: Path) -> subprocess.CompletedProcess[str]:
    """Run a program whose compiled kernels are kept in a folder of its own."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)


@pytest.mark.slow
@pytest.mark.parametrize("before", ["", "import lightning_utilities.core.rank_zero\n"], ids=["alone", "after torchmetrics"])
def test_a_compilation_says_so_once_and_what_is_cached_does_not(before: str, tmp_path: Path) -> None:
    calls = "import torch\nfrom lit_sparse.mappings import Sparsemax\nfor _ in range(2): Sparsemax()(torch.zeros(2, 3))"
    program = before + calls
    assert run(program, tmp_path).stderr.count(NOTICE) == 1
    assert NOTICE not in run(program, tmp_path).stderr


def test_a_copied_source_has_no_flags() -> None:
    with pytest.raises(ConfigurationError, match="choose inline='code'"):
        compile_rows(frozenset({"contract"}), inline="source")


@pytest.mark.parametrize(("name", "value"), [("inline", "cod"), ("flags", "fast"), ("flags", abs)])
def test_other_arguments_than_those_of_the_decorator_are_refused(name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=f"Expected argument `{name}` to be"):
        compile_rows(**{name: value})  # type: ignore[arg-type]


COMPILED = """
import torch
from numba.core import event, types
from lit_sparse.mappings import Entmax, LearnableEntmax, SparseMAP
from lit_sparse.structures import Sequence

class Compiled(event.Listener):
    def on_start(self, event):
        dispatcher = event.data["dispatcher"]
        if dispatcher.py_func.__module__.startswith("lit_sparse."):
            steep = "steep_" if event.data["args"][-1] == types.boolean else ""
            print(steep + dispatcher.py_func.__name__, dispatcher.targetoptions.get("inline"))
    def on_end(self, event): pass

event.register("numba:compile", Compiled())
y = {mapping}(torch.linspace(-1, 1, 15).reshape(1, 15).requires_grad_())
y.square().sum().backward()
"""


@pytest.mark.slow
@pytest.mark.gate
@pytest.mark.parametrize(
    ("mapping", "blocks", "most"),
    [
        ("LearnableEntmax()", {"map_powers_block", "root_product_block"}, 20),
        ("LearnableEntmax(start=1.7)", {"map_block", "product_block"}, 28),
        ("Entmax(2.5)", {"steep_map_block", "steep_product_block"}, 30),
        ("SparseMAP(Sequence(5, 3))", {"solve_block"}, 19),
    ],
)
def test_only_what_is_used_is_compiled(mapping: str, blocks: set[str], most: int, tmp_path: Path) -> None:
    """In an empty cache. A copied source is never compiled by itself, others once for each combination of argument types."""
    lines = run(COMPILED.format(mapping=mapping), tmp_path).stdout.splitlines()
    compiled = [line.split()[0] for line in lines]
    assert {name for name in compiled if name.endswith("_block")} == blocks
    assert not [line for line in lines if line.endswith(" always")]
    assert len(compiled) <= most, sorted(compiled)
