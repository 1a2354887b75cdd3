"""What the bare package does, with torch, numpy and numba alone; run as a script."""

from __future__ import annotations

import contextlib
import io
import tempfile
from importlib import import_module
from pathlib import Path

import torch

from lit_sparse.cli import build_cli, main
from lit_sparse.coresets import GIGA, Coreset, Examples, LastLayerGradients, SelectionState
from lit_sparse.errors import MissingExtraError
from lit_sparse.estimators import Marginalize
from lit_sparse.export import decompose, export_onnx
from lit_sparse.mappings import Entmax, SparseMAP, Sparsemax
from lit_sparse.nn import MultiheadAttention
from lit_sparse.risks import CVaR
from lit_sparse.structures import Assignment
from lit_sparse.testing import check_risk
from lit_sparse.transport import sinkhorn_potentials

#: Modules of the extra `train`.
TRAIN = ("callbacks", "data", "lightning.choice", "runs.loading", "metrics", "models", "studies.jobs.engine", "text")


def compute(folder: Path) -> None:
    """Use a layer, a structure, an estimator, a risk, a selector, attention, transport, an export and a tester."""
    x = torch.randn(8, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    for mapping in (Sparsemax(), Entmax(1.5)):
        torch.testing.assert_close(mapping(x).sum(-1), torch.ones(8))
    check_risk(CVaR(0.5))
    grid = torch.randn(2, 9, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(SparseMAP(Assignment(3, 3))(grid).reshape(2, 3, 3).sum(-1), torch.ones(2, 3))
    out = Marginalize(Sparsemax())(x, lambda latent: latent.values.square().sum(-1))
    CVaR(0.5)(out.loss).backward()
    assert x.grad is not None
    vectors = torch.randn(50, 4, generator=torch.Generator().manual_seed(2))
    coreset = GIGA()(vectors, 5, state=SelectionState(folder / "state.pt"))
    coreset.save(folder / "coreset.npz")
    assert torch.equal(Coreset.load(folder / "coreset.npz").indices, coreset.indices)
    attention = MultiheadAttention(8, 2, mapping=Sparsemax())
    assert attention(*3 * [torch.randn(2, 4, 8)])[0].shape == (2, 4, 8)
    sinkhorn_potentials(torch.randn(6, 2), torch.randn(7, 2), eps=1.0)
    decompose(torch.export.export(Sparsemax(), (torch.randn(3, 4),)))


def refuse(folder: Path) -> None:
    """Ask for what needs an extra: each message names it."""
    (folder / "network.ckpt").write_bytes(b"")
    examples = Examples.of(label=torch.zeros(2, dtype=torch.int64))
    calls = {
        "progress": lambda: GIGA(progress=True)(torch.randn(50, 4), 5),
        "build_cli": lambda: build_cli(["fit", "-c", "ssvae/digits"]),
        "checkpoint": lambda: LastLayerGradients(str(folder / "network.ckpt")).fit(examples),
        **{name: lambda name=name: import_module(f"lit_sparse.{name}") for name in TRAIN},  # type: ignore[misc]
    }
    for name, call in calls.items():
        try:
            call()
        except MissingExtraError as error:
            assert "need the extra 'train'" in str(error), error
        else:
            raise AssertionError(name)
    for words in (["fit", "-c", "ssvae/digits"], ["list"], ["select"], ["study"]):
        with contextlib.redirect_stderr(io.StringIO()) as printed:
            assert main(words) == 2
        assert printed.getvalue().count("\n") == 1
        assert "need the extra 'train'" in printed.getvalue()
    assert main(["compile", "Softmax"]) == main(["--version"]) == main(["--help"]) == 0
    try:
        export_onnx(Sparsemax(), (torch.randn(3, 4),), folder / "model.onnx")
    except MissingExtraError as error:
        assert "need the extra 'onnx'" in str(error), error


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        compute(Path(place))
        refuse(Path(place))
    print("the core works")
