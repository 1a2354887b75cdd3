"""The examples of the site run, and draw a picture."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

EXAMPLES = sorted((ROOT / "examples" / "gallery").glob("plot_*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path: Path, tmp_path: Path) -> None:
    lines = path.read_text(encoding="utf-8").replace("plt.show()", 'plt.savefig("picture.png")').splitlines()
    assert lines[-1] == 'plt.savefig("picture.png")'
    (tmp_path / path.name).write_text("\n".join(lines), encoding="utf-8")
    command = [sys.executable, "-W", "ignore", path.name]
    subprocess.run(command, cwd=tmp_path, env=os.environ | {"MPLBACKEND": "agg"}, check=True)
    assert (tmp_path / "picture.png").stat().st_size > 5000
