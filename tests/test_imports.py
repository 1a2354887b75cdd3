"""The cost of imports."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import lit_sparse
from tests.support.processes import run_python


def modules_after(statement: str, whole: bool = False) -> set[str]:
    """Return the modules that a new process has imported, by default their first names."""
    code = f"import sys\n{statement}\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return {name if whole else name.split(".")[0] for name in done.stdout.split()}


#: What is imported when it is used: compilers of torch, of kernels and of GPU programs, and what they import.
LATER = {"numba", "llvmlite", "triton", "sympy", "torch._dynamo", "torch._inductor", "torch.fx.experimental.symbolic_shapes"}


#: Imports each subpackage in a copy of a process that has imported torch, and prints what this adds.
EACH = """
import importlib, multiprocessing, sys, torch
before = set(sys.modules)
def load(name):
    importlib.import_module(f"lit_sparse.{name}")
    print(name, *sorted(set(sys.modules) - before), flush=True)
for name in sys.argv[1:]:
    copy = multiprocessing.get_context("fork").Process(target=load, args=(name,))
    copy.start()
    copy.join()
"""
CORE = ("mappings", "nn", "estimators", "risks", "structures", "coresets", "transport", "export")


@pytest.mark.gate
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are copied by fork")
def test_importing_a_layer_adds_the_package_alone() -> None:
    lines = run_python("-c", EACH, *CORE).splitlines()
    assert [line.split()[0] for line in lines] == [*CORE]
    for line in lines:
        added = set(line.split()[1:])
        assert f"lit_sparse.{line.split()[0]}" in added
        assert not added & LATER
        own = [name for name in added if name.partition(".")[0] == "lit_sparse"]
        assert len(added) - len(own) <= 30
        assert len(own) <= 155  # nn has 148, and a new part may add a file


@pytest.mark.gate
def test_the_package_itself_costs_nothing() -> None:
    assert "torch" not in modules_after("import lit_sparse; lit_sparse.__version__")


@pytest.mark.gate
def test_models_of_hugging_face_cost_nothing_before_their_use() -> None:
    loaded = modules_after("import lit_sparse.hf")
    assert "torch" in loaded
    loaded -= modules_after("import torch._dynamo")  # torch 2.3 imports transformers itself
    assert not {"transformers", "accelerate", "peft", "pytorch_lightning", "lightning", "matplotlib", "sklearn"} & loaded


@pytest.mark.gate
def test_a_selector_costs_what_a_layer_does() -> None:
    loaded = modules_after("import lit_sparse.coresets")
    assert "torch" in loaded
    assert not {"pytorch_lightning", "lightning", "datasets", "matplotlib", "torchmetrics", "sklearn", "rich"} & loaded


@pytest.mark.slow
def test_the_garbage_collector_leaves_out_what_the_command_line_imports() -> None:
    code = (
        "import gc, sys; from lit_sparse.cli import main; sys.argv[1:] = ['fit', '-c', 'none']; main(sys.argv[1:]);"
        " called = gc.get_freeze_count(); main(); print(gc.isenabled(), called == 0, gc.get_freeze_count() > 100_000)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split()[-3:] == ["True", "True", "True"]


def test_no_exported_name_hides_a_module() -> None:
    """Else ``import lit_sparse.nn.beams as beams`` might give a function of that name."""
    for file in Path(lit_sparse.__file__).parent.rglob("__init__.py"):
        names = [node.value for node in ast.parse(file.read_text()).body if "__all__" in ast.unparse(node).partition("=")[0]]
        exported = {name for value in names for name in ast.literal_eval(value)}
        assert not exported & {path.stem for path in file.parent.iterdir()}, file
