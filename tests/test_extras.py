"""The bare package requires torch, numpy and numba alone; each extra brings what its parts import."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lit_sparse import errors
from lit_sparse.errors import MissingExtraError, install_command

from .conftest import ROOT
from .support.processes import run_python

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
#: Extras that work on the core alone.
LIGHT = ("hf", "onnx", "gpu", "pyepo", "bench")
#: Hides distributions by the first names of their modules, also those that are imported when Python starts.
HIDE = """
import sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder

class Bare(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if path is None and name in hidden:  # setuptools has copies of some in a folder of its own
            path = [folder for folder in sys.path if not folder.endswith("-packages")]
        return super().find_spec(name, path, target)

sys.meta_path[:] = [BuiltinImporter, FrozenImporter, Bare]
for name in [name for name in sys.modules if name.partition(".")[0] in hidden]:
    del sys.modules[name]
"""
PROGRAMS = {
    "hf": """
import tempfile, torch
from transformers import BertConfig, BertForSequenceClassification
from lit_sparse.hf import SparseAttentionPooling, from_pretrained, sparsify
from lit_sparse.mappings import Sparsemax
sizes = dict(vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4)
model = BertForSequenceClassification(BertConfig(**sizes)).eval()
sparsify(model, Sparsemax())
ids = torch.arange(5).reshape(1, 5)
with tempfile.TemporaryDirectory() as folder, torch.no_grad():
    model.save_pretrained(folder)
    loaded = from_pretrained(BertForSequenceClassification, folder)
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    pooling = SparseAttentionPooling(32)
    pooling.save(folder)
    SparseAttentionPooling.load(folder)
""",
    "onnx": """
import onnxruntime, tempfile, torch
from lit_sparse.export import export_onnx
from lit_sparse.mappings import Entmax
x = torch.randn(3, 5)
with tempfile.TemporaryDirectory() as folder:
    export_onnx(Entmax(1.5), (x,), f"{folder}/model.onnx", input_names=["x"])
    found = onnxruntime.InferenceSession(f"{folder}/model.onnx").run(None, {"x": x.numpy()})[0]
torch.testing.assert_close(torch.from_numpy(found), Entmax(1.5)(x), rtol=0, atol=1e-6)
""",
    "gpu": """
import os
os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
import torch
from lit_sparse.mappings.fusedmax import kernel as fusedmax
from lit_sparse.kernels.gpu import numba_rows, triton_attention, triton_rows
numba_rows.THREADS = 4
x = torch.randn(5, 7, dtype=torch.float64)
torch.testing.assert_close(fusedmax._map_cuda(x, 0.1, 1.0)[0], fusedmax.map_fused(x, 0.1, 1.0)[0])
""",
    "pyepo": """
import torch
from pyepo.model.opt import optModel
from lit_sparse.pyepo import SparseMAPLoss

class Cheapest(optModel):
    def _getModel(self):
        return None, range(3)
    def setObj(self, c):
        self.c = c
    def solve(self):
        return torch.nn.functional.one_hot(torch.tensor(self.c).argmin(), 3).numpy(), min(self.c)

SparseMAPLoss(Cheapest())(torch.tensor([[1.0, 2.0, 0.5]], requires_grad=True), torch.tensor([[0.0, 1.0, 0.0]])).backward()
""",
    "bench": """
import runpy
sys.path.insert(0, "scripts")
sys.argv[1:] = ["--only", "sparsemax", "--rounds", "1", "--shapes", "8x8"]
runpy.run_path("scripts/benchmark_mappings.py", run_name="__main__")
""",
}


def needed_by(requirements: list[str]) -> set[str]:
    """Return the names of all distributions that requirements need, the requirements of requirements included."""
    found: set[tuple[str, frozenset[str]]] = set()
    pending = [Requirement(line) for line in requirements]
    while pending:
        one = pending.pop()
        key = canonicalize_name(one.name), frozenset(one.extras)
        if key in found:
            continue
        try:
            lines = metadata.requires(one.name) or []
        except metadata.PackageNotFoundError:  # of another platform, or not needed here
            continue
        found.add(key)
        for inner in map(Requirement, lines):
            extras = [*one.extras, ""]
            if inner.marker is None or any(inner.marker.evaluate({"extra": extra}) for extra in extras):
                pending.append(inner)
    return {name for name, _ in found}


def hiding_all_but(requirements: list[str]) -> str:
    """Return the beginning of a program that finds only the standard library, this package, and what requirements need."""
    kept = needed_by(requirements)
    owners = metadata.packages_distributions()
    hidden = {name for name, names in owners.items() if not kept & {canonicalize_name(one) for one in names}}
    return f"hidden = {hidden - sys.stdlib_module_names - {'lit_sparse'}!r}\n{HIDE}"


def test_the_package_requires_torch_numpy_and_numba() -> None:
    assert {Requirement(line).name for line in PROJECT["dependencies"]} == {"torch", "numpy", "numba"}
    assert {name for name, lines in EXTRAS.items() if not any("lit-sparse[" in line for line in lines)} == {
        "train",
        "dev",
        *LIGHT,
    }


@pytest.mark.gate
def test_the_core_works_while_every_other_distribution_is_hidden() -> None:
    hide = hiding_all_but(PROJECT["dependencies"])
    for name in ("yaml", "scipy", "pytorch_lightning", "torchmetrics", "rich", "matplotlib", "packaging"):
        assert f"'{name}'" in hide
    program = "import runpy; runpy.run_path('tests/support/core.py', run_name='__main__')"
    assert "the core works" in run_python("-c", hide + program)


@pytest.mark.parametrize(
    "extra", [pytest.param(name, marks=pytest.mark.gate if name == "hf" else pytest.mark.slow) for name in LIGHT]
)
def test_light_extras_work_on_the_core(extra: str) -> None:
    missing = [line for line in EXTRAS[extra] if canonicalize_name(Requirement(line).name) not in needed_by([line])]
    if missing:
        pytest.skip(f"{missing[0]} is not installed")
    run_python("-c", hiding_all_but([*PROJECT["dependencies"], *EXTRAS[extra]]) + PROGRAMS[extra])


def lines_of_metadata() -> Iterator[str]:
    """Yield requirements as the metadata of a wheel have them."""
    yield from PROJECT["dependencies"]
    for extra, lines in EXTRAS.items():
        for line in lines:
            name, _, condition = line.partition("; ")
            yield f'{name}; {condition} and extra == "{extra}"' if condition else f'{name}; extra == "{extra}"'


@pytest.mark.parametrize("extra", EXTRAS)
def test_commands_of_a_wheel_name_each_requirement(extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "lit_sparse" / "errors.py"))
    monkeypatch.setattr(errors.metadata, "requires", lambda name: [line.replace("'", '"') for line in lines_of_metadata()])
    command = install_command(extra)
    assert re.fullmatch(r'pip install( "[^"]+")+', command)
    expected, pending = set(), [extra]
    while pending:
        for line in EXTRAS[pending.pop()]:
            if Requirement(line).name == "lit-sparse":
                pending += Requirement(line).extras
            else:
                expected.add(str(Requirement(line)))
    assert {str(Requirement(one)) for one in re.findall('"([^"]+)"', command)} == expected


def test_a_copy_without_metadata_asks_for_a_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(errors, "__file__", str(tmp_path / "lit_sparse" / "errors.py"))
    monkeypatch.setattr(errors.metadata, "requires", missing)
    assert str(MissingExtraError("Sweeps", "sweep")).endswith(
        '"CLONE[sweep]", where CLONE is the path of a clone of lit_sparse'
    )


def test_commands_of_a_clone_name_it() -> None:
    assert install_command("hf", "text") == f'pip install -e "{ROOT}[hf,text]"'


def test_no_text_installs_this_package_by_its_name() -> None:
    files = [
        path
        for folder in ("lit_sparse", "docs", "scripts", "tests")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".md", ".yaml", ".html"} and "_build" not in path.parts and path != Path(__file__)
    ]
    assert len(files) > 300
    for path in [*files, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"pip install (?:-[a-z] constraints.txt |-\S+ )*[\"']?lit[-_]sparse\b", text), path
        for named in re.findall(r"""pip install[^\n`]*["']?\.\[([\w,]+)\]""", text):
            assert set(named.split(",")) <= EXTRAS.keys(), path
