"""The script with which a shell completes the command line."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lit_sparse.cli import main

TRY = r"""
source script.sh
line=(%s "%s")
COMP_WORDS=("${line[@]}"); COMP_CWORD=$((${#line[@]} - 1))
_shtab_lit_sparse lit-sparse "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%%s\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("shtab")
    folder = tmp_path_factory.mktemp("completion")
    with pytest.MonkeyPatch.context() as patch, (folder / "script.sh").open("w") as file:
        patch.setattr("sys.stdout", file)
        assert main(["completion", "bash"]) == 0
    return folder


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("line", "word", "expected"),
    [
        ("lit-sparse", "f", {"fit"}),
        ("lit-sparse fit -c", "ssvae/d", {"ssvae/digits"}),
        ("lit-sparse test --config", "own", {"own.yaml"}),
        ("lit-sparse sweep -c", "ssvae/d", {"ssvae/digits"}),
        ("lit-sparse configs", "ssvae/d", {"ssvae/digits"}),
        ("lit-sparse study", "coresets_s", {"coresets_small"}),
        ("lit-sparse list", "ma", {"mappings"}),
        ("lit-sparse fit", "--trainer.max_e", {"--trainer.max_epochs"}),
        ("lit-sparse fit", "--model.mapp", {"--model.mapping"}),
        ("lit-sparse fit --model.mapping", "Spa", {"SparseMAP", "Sparsemax"}),
        ("lit-sparse fit --model", "Si", {"SignalingGame"}),
        ("lit-sparse fit --trainer.enable_progress_bar", "", {"true", "false", "null"}),
        ("lit-sparse report", "--ti", {"--title"}),
    ],
)
def test_bash_completes(line: str, word: str, expected: set[str], script: Path) -> None:
    (script / "own.yaml").touch()
    done = subprocess.run(
        ["bash", "-c", TRY % (line, word)], cwd=script, capture_output=True, text=True, check=True, timeout=60
    )
    assert set(done.stdout.split()) == expected


def test_zsh_gets_a_script(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab")
    assert main(["completion", "zsh"]) == 0
    script = capsys.readouterr().out
    assert script.startswith("#compdef lit-sparse")
    assert ":_lit_sparse_configs" in script


def test_without_shtab_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    assert "need the extra 'completion'" in capsys.readouterr().err
