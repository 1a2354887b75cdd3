"""An option that takes integers and floats reads each as what it is, whatever was imported before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import List, Optional, Union  # noqa: UP035

import pytest

from lit_sparse.cli.parser import _integers_first
from tests.conftest import ROOT

#: What a program may have done before it imports the package.
BEFORE = {
    "nothing": "",
    "scikit-learn": "import sklearn.linear_model",
    "Lightning": "import sklearn.linear_model, pytorch_lightning",
    "the package": "import lit_sparse.models, sklearn.linear_model",
    "unions of a program": "from typing import Optional, Union; Optional[Union[float, int]], Union[float, int, str, None]",
}
CODE = """
import json, sys
from lit_sparse.cli import build_cli
fit, *ways = map(str.split, sys.argv[1:])
for words in ways:
    trainer = build_cli(["fit", *fit, *words]).config.fit.trainer
    print(json.dumps([trainer[f"limit_{name}_batches"] for name in ("train", "val", "test")] + [trainer.overfit_batches]))
"""
OPTIONS = {"limit_train_batches": "1", "limit_val_batches": "1.0", "limit_test_batches": "0.5", "overfit_batches": "2"}


@pytest.mark.cases(gate=1)
@pytest.mark.parametrize("before", ["scikit-learn", *(name for name in BEFORE if name != "scikit-learn")])
def test_an_integer_stays_an_integer(before: str, tmp_path: Path) -> None:
    config = tmp_path / "limits.yaml"
    config.write_text("trainer:\n" + "".join(f"  {name}: {value}\n" for name, value in OPTIONS.items()))
    fit = ["-c", str(ROOT / "tests" / "support" / "soae.yaml"), "--trainer.accelerator=cpu", "--trainer.logger=false"]
    ways = [" ".join(f"--trainer.{name}={value}" for name, value in OPTIONS.items()), f"-c {config.name}"]
    done = subprocess.run(
        [sys.executable, "-c", f"{BEFORE[before]}\n{CODE}", " ".join(fit), *ways],
        **{"capture_output": True, "text": True, "cwd": tmp_path, "timeout": 300},
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["[1, 1.0, 0.5, 2]"] * 2, done.stdout


def test_integers_come_first_in_nested_types() -> None:
    first = [int, float, type(None)]
    for hint in (float | int | None, Optional[Union[float, int]], Union[float, int, None]):  # noqa: UP007, UP045
        assert set(_integers_first(hint).__args__) == set(first)
        assert list(_integers_first(hint).__args__).index(int) == 0
        assert list(_integers_first(list[hint]).__args__[0].__args__).index(int) == 0  # type: ignore[valid-type]
    for hint in (int | float, str | float, dict[str, int] | None, List[int], float):  # noqa: UP006
        assert _integers_first(hint) is hint
