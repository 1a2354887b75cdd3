"""Modules export to ONNX and to programs of plain torch operations, and compute the same there."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from lit_sparse.errors import ConfigurationError, MissingExtraError
from lit_sparse.export import OPSET, decompose, export_onnx
from lit_sparse.mappings import Entmax, Fusedmax, Oscarmax, SparseMAP, SparseMapping, Sparsemax
from lit_sparse.nn import MultiheadAttention
from lit_sparse.structures import Budget
from lit_sparse.testing import concrete_subclasses
from tests.mappings.exact_supports import tied_rows

if not hasattr(Dim, "DYNAMIC"):
    pytest.skip("exports need a newer torch", allow_module_level=True)

ROWS = 1000
NAN, INF = float("nan"), float("inf")
#: Classes whose first example is in the gate; each takes seconds.
IN_GATE = (Sparsemax, Entmax, Oscarmax)
EXACT = [
    pytest.param(example, id=repr(example), marks=[pytest.mark.gate if cls in IN_GATE and i == 0 else pytest.mark.slow])
    for cls in concrete_subclasses(SparseMapping)
    if not cls.iterative
    for i, example in enumerate(cls.examples())
]
ANY = {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}


class Masked(nn.Module):
    """A mapping that always gets a mask."""

    def __init__(self, mapping: SparseMapping) -> None:
        super().__init__()
        self.mapping = mapping

    def forward(self, scores: Tensor, mask: Tensor) -> Tensor:
        mapped: Tensor = self.mapping(scores, mask)
        return mapped


class OtherInTraining(nn.Module):
    """A layer that computes something else in training."""

    def forward(self, scores: Tensor) -> Tensor:
        return -scores if self.training else scores


def hostile_rows(d: int) -> tuple[Tensor, Tensor]:
    """Return scores and masks (ROWS, d): ties, equal, huge, tiny and shifted scores, NaN, infinities and masked rows."""
    generator = torch.Generator().manual_seed(d)
    x = 2 * torch.randn(ROWS, d, generator=generator, dtype=torch.float64)
    x[100:200] = x[100:200].round()
    x[200:300] = x[200:300, :1]
    x[300:400] *= 1e6
    x[400:500] *= 1e30
    x[500:600] *= 1e-6
    x[600:700] += 1e4
    x[700:720] = 0.0
    mask = torch.rand(ROWS, d, generator=generator) > 0.3
    mask[800:] = True
    mask[900:950] = False
    mask[950] = False
    mask[950, -1] = True  # a row with one entry
    x[951:955, 0] = NAN
    x[955:960, -1] = INF
    x[960:965] = -INF
    x[965:970, : d // 2] = -INF
    x[970, 0], mask[970, 0] = NAN, False  # an invalid score that is forbidden
    x[971, 0], mask[971, 0] = INF, False
    return x.float(), mask


def session(path: Path) -> Any:
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def run(path: Path, **inputs: Tensor) -> list[Tensor]:
    found = session(path).run(None, {name: value.detach().numpy() for name, value in inputs.items()})
    return [torch.from_numpy(array) for array in found]


@pytest.mark.parametrize("mapping", EXACT)
def test_a_mapping_is_the_same_in_onnxruntime(mapping: SparseMapping, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    path = tmp_path / "mapping.onnx"
    example = torch.randn(3, 5), torch.ones(3, 5, dtype=torch.bool)
    model = export_onnx(Masked(mapping), example, path, dynamic_shapes=(ANY, ANY))
    assert model.model.opset_imports == {"": OPSET}  # standard operators alone
    for d in (11, 40, 2, 1):
        scores, mask = hostile_rows(d)
        with torch.no_grad():
            expected = mapping(scores.double(), mask).float()
        (mapped,) = run(path, scores=scores, mask=mask)
        assert bool(expected[951:960].isnan().all())
        assert bool((mapped[~mask] == 0).all())
        torch.testing.assert_close(mapped, expected, rtol=0, atol=1e-6, equal_nan=True)
    ties = tied_rows(ROWS, 11, torch.float32, 0)
    allowed = torch.ones_like(ties, dtype=torch.bool)
    assert torch.equal(run(path, scores=ties, mask=allowed)[0] != 0, mapping(ties, allowed) != 0)


@pytest.mark.gate
def test_attention_with_padding_is_the_same_in_onnxruntime(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    layer = MultiheadAttention(8, 2, batch_first=True, dropout=0.5, mapping=Entmax(1.5)).eval()
    x, padding = torch.randn(3, 5, 8), torch.arange(5) >= torch.tensor([[5], [3], [2]])
    path = tmp_path / "attention.onnx"
    export_onnx(layer, (x, x, x, padding), path, input_names=["query", "key", "value", "padding"])
    with torch.no_grad():
        expected = layer(x, x, x, padding)
    found = run(path, query=x, key=x, value=x, padding=padding)
    for actual, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=0, atol=1e-6)


@pytest.mark.gate
def test_a_module_is_exported_in_evaluation(tmp_path: Path) -> None:
    """Each part is then in the mode that it was in."""
    pytest.importorskip("onnxscript")
    network = nn.Sequential(OtherInTraining(), nn.Dropout(0.5).eval(), Sparsemax())
    modes = [part.training for part in network.modules()]
    export_onnx(network, (torch.randn(3, 5),), tmp_path / "model.onnx", input_names=["scores"])
    assert [part.training for part in network.modules()] == modes
    x = torch.randn(3, 5)
    torch.testing.assert_close(run(tmp_path / "model.onnx", scores=x)[0], network.eval()(x), rtol=0, atol=1e-6)


@pytest.mark.gate
@pytest.mark.parametrize("mapping", [Sparsemax(), Entmax(1.3), Oscarmax(0.1), Fusedmax(0.3)], ids=repr)
def test_a_decomposed_program_needs_none_of_our_operators(mapping: SparseMapping) -> None:
    """It computes the same, loops included, and its length stays dynamic."""
    with torch.no_grad():
        program = torch.export.export(mapping, (torch.randn(3, 5),), dynamic_shapes=(ANY,))
    assert "lit_sparse" in str(program.graph)
    plain = decompose(program)
    assert "lit_sparse" not in str(plain.graph_module)
    scores, _ = hostile_rows(9)
    torch.testing.assert_close(plain.module()(scores), mapping(scores), rtol=0, atol=1e-6, equal_nan=True)


def test_without_gradients_a_program_holds_the_operator_alone() -> None:
    with torch.no_grad():
        program = torch.export.export(Entmax(1.3, gamma=0.5), (torch.randn(3, 5),))
    called = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert [name for name in called if name.startswith("lit_sparse")] == ["lit_sparse.map_entmax.default"]
    assert not {"aten.sub.Tensor", "aten.mul.Tensor", "aten.where.self"} & set(called)  # nothing of its derivative
    x = torch.randn(3, 5, requires_grad=True)
    trainable = torch.export.export(Entmax(1.3, gamma=0.5), (x,)).module()
    (grad,) = torch.autograd.grad(trainable(x)[:, 0].sum(), x)
    (expected,) = torch.autograd.grad(Entmax(1.3, gamma=0.5)(x)[:, 0].sum(), x)
    torch.testing.assert_close(grad, expected)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (SparseMAP(Budget(5, 2)), "got SparseMAP, which is solved by iteration to a tolerance. Use another mapping"),
        (MultiheadAttention(8, 2, mapping=SparseMAP(Budget(5, 2))), "got SparseMAP at `mapping`"),
        (torch.relu, "to be a torch module but got builtin_function_or_method"),
    ],
)
def test_what_has_no_exact_form_is_refused_by_name(module: Any, message: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    with pytest.raises(ConfigurationError, match=message):
        export_onnx(module, (torch.randn(3, 5),), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_a_missing_folder_is_told_before_the_export(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    for path in (tmp_path / "none" / "model.onnx", tmp_path):
        with pytest.raises(ConfigurationError, match="path of a file in an existing folder"):
            export_onnx(Sparsemax(), (torch.randn(3, 5),), path)
    (tmp_path / "link.onnx").symlink_to(tmp_path / "other")
    with pytest.raises(ConfigurationError, match="to be a plain file with one name but it is a folder, a link"):
        export_onnx(Sparsemax(), (torch.randn(3, 5),), tmp_path / "link.onnx")


def test_a_full_disk_leaves_the_earlier_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxscript")

    def fsync(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "model.onnx"
    path.write_text("earlier")
    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(ConfigurationError, match=r"to write '.*model.onnx' but got: No space left on device"):
        export_onnx(Sparsemax(), (torch.randn(3, 5),), path)
    assert path.read_text() == "earlier"
    assert [*tmp_path.iterdir()] == [path]


def test_an_argument_outside_a_tuple_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    with pytest.raises(ConfigurationError, match=r"`args` to be a tuple but got torch.Tensor. Write \(x,\)"):
        export_onnx(Sparsemax(), torch.randn(2, 5), tmp_path / "model.onnx")


@pytest.mark.parametrize("opset", [17, 20.0, 99])
def test_an_opset_that_cannot_be_written_is_refused(opset: Any, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    with pytest.raises(ConfigurationError, match="`opset`"):
        export_onnx(Sparsemax(), (torch.randn(3, 5),), tmp_path / "model.onnx", opset=opset)


@pytest.mark.gate
def test_another_opset(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    model = export_onnx(Sparsemax(), (torch.randn(3, 5),), tmp_path / "model.onnx", opset=18)
    assert model.model.opset_imports == {"": 18}
    x = torch.randn(3, 5)
    torch.testing.assert_close(run(tmp_path / "model.onnx", scores=x)[0], Sparsemax()(x), rtol=0, atol=1e-6)


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingExtraError, match="need the extra 'onnx'"):
        export_onnx(Sparsemax(), (torch.randn(3, 5),), tmp_path / "model.onnx")


@pytest.mark.gate
def test_onnx_is_imported_on_use_only() -> None:
    code = (
        "import sys, lit_sparse.export; print([name for name in ('onnx', 'onnxscript', 'onnxruntime') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
