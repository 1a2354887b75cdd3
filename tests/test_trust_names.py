"""Names that a checkpoint may and may not have."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_sparse.errors import CheckpointError
from lit_sparse.mappings import Softmax
from lit_sparse.trust import check_hyperparameters, check_names, trusting

from .test_trust import OwnModule


class OwnMapping(Softmax):
    """A user's mapping."""


@pytest.mark.parametrize(
    "name",
    [
        "os.system",
        "posix.system",
        "subprocess.Popen",
        "torch.hub.load",
        "torch.fx.GraphModule",
        "torch.jit.ScriptModule",
        "torch.nn.Module.load_state_dict",
        "torch.nn.modules.module.torch.hub.load",
        "torch.nn.init.torch.overrides",
        "torch.nn.functional.relu",
        "torch.optim.swa_utils.AveragedModel",
        "pytorch_lightning.Trainer",
        "pytorch_lightning.cli.LightningCLI",
        "torchmetrics.MetricCollection",
        "lit_sparse.cli.app.LitSparseCLI",
        "lit_sparse.cli.main",
        "lit_sparse.trust.import_module",
        "lit_sparse.data.readers.tables.Path",
        "lit_sparse.models.SemiSupervisedVAE.load_from_checkpoint",
        "builtins.eval",
        "this.s",
        "GraphModule",
        "lit_sparse",
        "a b.c",
        "",
    ],
)
def test_names_that_are_refused(name: str) -> None:
    for found in ({"class_path": name}, {"a": [{"class_path": name}]}, {"a": json.dumps({"class_path": name})}):
        with pytest.raises(CheckpointError) as refused:
            check_names("x.ckpt", found)
        assert name in str(refused.value)
    assert "this" not in sys.modules
    if ("." in name and " " not in name) or name == "GraphModule":
        for plain in (name, f" {name}\n", [name], {"a": name}, f"[{name}]"):
            with pytest.raises(CheckpointError):
                check_names("x.ckpt", {"omega": plain})
    with trusting([name]):
        check_names("x.ckpt", {"class_path": name})


def test_names_that_are_allowed() -> None:
    for name in (
        "lit_sparse.mappings.Sparsemax",
        "lit_sparse.structures.Budget",
        "lit_sparse.coresets.GIGA",
        "lit_sparse.nn.MLP",
        "torch.nn.Linear",
        "torch.nn.modules.linear.Linear",
        "torch.optim.Adam",
        "torch.optim.lr_scheduler.StepLR",
        "pytorch_lightning.cli.ReduceLROnPlateau",
        f"{__name__}.OwnMapping",
        f"{OwnModule.__module__}.OwnModule",
    ):
        check_names("x.ckpt", {"class_path": name, "init_args": {"optimizer": name}})


def test_text_that_names_nothing_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_names("x.ckpt", {"a": "word", "b": "two-words", "c": "weights.ckpt", "d": "1e-3", "e": "", "f": "3.5"})
    for text in ("e.g. this: that", "[1, 2", "two words", "a/b", "~x", "part.yaml", "s3:x", "null\n"):
        with pytest.raises(CheckpointError, match="config or a file"):
            check_names("x.ckpt", {"a": text})
    labels = {"_class_path": "lit_sparse.models.EntailmentClassifier", "labels": ["yes, of course", "no: not at all"]}
    check_hyperparameters("x.ckpt", labels)
    with pytest.raises(CheckpointError, match="config or a file"):
        check_hyperparameters("x.ckpt", labels | {"labels": "yes, of course"})
    (tmp_path / "weights.txt").touch()
    model = {"_class_path": "lit_sparse.models.SemiSupervisedVAE", "initial_weights": "weights.txt"}
    check_hyperparameters("x.ckpt", model)  # an argument that is text, of which the parser makes nothing
    with pytest.raises(CheckpointError, match=r"weights\.txt"):
        check_hyperparameters("x.ckpt", model | {"mapping": "weights.txt"})


def test_malformed_descriptions_are_refused() -> None:
    itself: list[Any] = []
    itself.append(itself)
    grown: Any = ["x"]
    for _ in range(40):
        grown = [grown] * 3
    deep: Any = 1.0
    for _ in range(200):
        deep = [deep]
    for found in (itself, grown, deep, {"a": itself}, "&a [*a]", {1: 2}, {"a": {None: 1}}, torch.ones(2), {"a": torch.float32}):
        with pytest.raises(CheckpointError):
            check_hyperparameters("x.ckpt", {"mapping": found})
    for found in (3, [1], "text", {"_instantiator": ["a"]}, {"_class_path": 4}, {"_class_path": ["os.system"]}, {3: 4}):
        with pytest.raises(CheckpointError):
            check_hyperparameters("x.ckpt", found)
