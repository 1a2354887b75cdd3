"""Sparse connectivity of other models, from a YAML file alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lit_sparse.cli import main
from lit_sparse.metrics import hoyer_sparseness
from tests.conftest import CONFIGS, ROOT
from tests.data.pairs import write_pairs

TRANSLATION = ("-c", str(ROOT / "tests" / "support" / "translation.yaml"))
TRANSFORMER = (
    "--model.init_args.body=TransformerBody",
    "--model.init_args.body.init_args.width=16",
    "--model.init_args.body.init_args.layers=1",
    "--model.init_args.body.init_args.heads=2",
    "--model.init_args.body.init_args.feedforward=32",
)


@pytest.mark.cases(gate=1)
@pytest.mark.parametrize(
    ("config", "options", "module"),
    [
        (TRANSLATION, (), "body.encoder.weight_hh_l0"),
        (TRANSLATION, TRANSFORMER, "body.decoder.0.cross_attention.in_proj_weight"),
        (("-c", str(CONFIGS / "ssvae" / "digits.yaml")), (), "generator.0"),
    ],
    ids=["recurrent", "attention", "SemiSupervisedVAE"],
)
def test_weights_of_any_model(
    config: tuple[str, ...], options: tuple[str, ...], module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for split, number in (("train", 30), ("val", 6), ("test", 5)):
        write_pairs(tmp_path / "pairs", split, number)
    (tmp_path / "sparse.yaml").write_text(
        "trainer:\n  max_epochs: 2\n  enable_progress_bar: false\n  callbacks:\n    - class_path: SparseConnectivity\n"
        f"      init_args: {{module: {module}, sparseness: 0.6}}\n"
    )
    assert main(["fit", *config, "-c", "sparse.yaml", *options, "--name=run"]) == 0
    for checkpoint in ("best", "last"):
        path = tmp_path / "runs" / "run" / "0" / "checkpoints" / f"{checkpoint}.ckpt"
        state = torch.load(path, weights_only=True)["state_dict"]
        weight = state[module] if module in state else state[f"{module}.weight"]
        torch.testing.assert_close(hoyer_sparseness(weight), torch.full((len(weight),), 0.6), atol=1e-5, rtol=0)
        torch.testing.assert_close(weight.norm(dim=1), torch.ones(len(weight)), atol=1e-5, rtol=0)


def test_a_path_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    options = (
        "--trainer.callbacks=SparseConnectivity",
        "--trainer.callbacks.module=encodr",
        "--trainer.callbacks.sparseness=0.5",
    )
    assert main(["fit", "-c", str(CONFIGS / "soae" / "digits.yaml"), *options]) == 2
    assert "SupervisedOnlineAutoencoder has no weight at 'encodr'. Did you mean 'encoder'?" in capsys.readouterr().err
    infeasible = (
        "--trainer.callbacks=SparseConnectivity",
        "--trainer.callbacks.module=encoder",
        "--trainer.callbacks.sparseness=1.5",
    )
    assert main(["fit", "-c", str(CONFIGS / "soae" / "digits.yaml"), *infeasible]) == 2
    assert "`sparseness` to be a number with 0.0 <= sparseness <= 1.0 but got 1.5" in capsys.readouterr().err


def test_two_on_the_same_weight_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    more = [
        "--trainer.callbacks+=SparseConnectivity",
        "--trainer.callbacks.module=encoder",
        "--trainer.callbacks.sparseness=0.9",
    ]
    assert main(["fit", "-c", str(CONFIGS / "soae" / "digits.yaml"), *more]) == 2
    assert "Expected different callbacks in `trainer.callbacks` but got two equal SparseConnectivity" in capsys.readouterr().err
