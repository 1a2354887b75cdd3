"""Mappings that are compiled ahead."""

from __future__ import annotations

from pathlib import Path

import pytest

from lit_sparse.cli import main
from tests.support.processes import run_python

CALL = "import torch, lit_sparse.mappings as m; m.HardThreshold(2)(torch.randn(3, 4, requires_grad=True)).sum().backward()"


@pytest.mark.gate
def test_a_later_process_compiles_nothing(tmp_path: Path) -> None:
    compiled = run_python("-m", "lit_sparse", "compile", "HardThreshold", NUMBA_CACHE_DIR=str(tmp_path))
    assert compiled.split("\n", 1)[0] == "HardThreshold"
    kept = set((tmp_path / "kernels").iterdir())
    run_python("-c", CALL, NUMBA_CACHE_DIR=str(tmp_path))
    assert kept
    assert set((tmp_path / "kernels").iterdir()) == kept


def test_an_unknown_mapping(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "Sparsmax"]) == 2
    assert "Did you mean 'Sparsemax'?" in capsys.readouterr().err


def test_a_folder_that_others_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from numba.core import config

    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels").chmod(0o777)
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    assert main(["compile", "Softmax"]) == 2
    assert "Set NUMBA_CACHE_DIR to your own folder" in capsys.readouterr().err
