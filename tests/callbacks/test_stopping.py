"""Training stops when its loss rests, whether it rises or falls before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lit_sparse.callbacks import RelativeChangeStopping
from lit_sparse.cli import main
from lit_sparse.errors import ConfigurationError
from tests.conftest import CONFIGS, metrics_of


class Logs(pl.LightningModule):
    """Logs the given values, one per epoch."""

    def __init__(self, values: list[float]) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.values = values

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.layer(batch).sum()

    def on_train_epoch_end(self) -> None:
        self.log("train/loss", self.values[self.current_epoch])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def epochs(values: list[float], parts: tuple[int, ...], folder: Path, **options: Any) -> int:
    """Return after how many epochs training stops, where it is cut after some epochs and goes on."""
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    checkpoint, run = None, None
    for part in parts:
        run = pl.Trainer(accelerator="cpu", max_epochs=part, callbacks=[RelativeChangeStopping(**options)], **quiet)
        weights: dict[str, Any] = {"weights_only": True} if checkpoint else {}
        run.fit(Logs(values), DataLoader(torch.ones(2, 2)), ckpt_path=checkpoint, **weights)
        checkpoint = folder / "a.ckpt"
        run.save_checkpoint(checkpoint)
    assert run is not None
    return run.current_epoch


RISING = [0.1, 0.3, 0.5, 0.501, 0.5005, 0.5, 0.5, 0.5]


@pytest.mark.parametrize("parts", [(8,), (4, 8)], ids=["at once", "resumed"])
@pytest.mark.parametrize(
    ("values", "options", "expected"),
    [
        (RISING, {"threshold": 0.01, "patience": 2}, 5),
        (RISING, {"threshold": 0.01}, 6),
        (RISING, {"threshold": 1e-9}, 8),
        (RISING, {"threshold": 0.0015, "patience": 1}, 5),
        ([1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0], {"patience": 2}, 5),
        ([-1.0, -2.0, -2.001, -2.0, -5.0, -5.0, -5.0, -5.0], {"threshold": 1e-3, "patience": 2}, 4),
        ([1.0, 0.5, 0.2, 0.1, 0.05, float("nan"), 0.02, 0.01], {}, 6),
    ],
)
def test_it_stops_when_nothing_changes(
    values: list[float], options: dict[str, Any], expected: int, parts: tuple[int, ...], tmp_path: Path
) -> None:
    if len(parts) > 1 and expected <= parts[0]:
        pytest.skip("stops before it is cut")
    assert epochs(values, parts, tmp_path, **options) == expected


@pytest.mark.parametrize("options", [{"threshold": 0.0}, {"threshold": float("nan")}, {"patience": 0}])
def test_arguments_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"`{next(iter(options))}`"):
        RelativeChangeStopping(**options)


@pytest.mark.gate
def test_on_the_command_line_it_watches_the_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stop = (
        "--trainer.callbacks+",
        "RelativeChangeStopping",
        "--trainer.callbacks.threshold",
        "10",
        "--trainer.callbacks.patience",
        "2",
    )
    quick = ("--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", "--trainer.limit_train_batches=10")
    assert main(["fit", "-c", str(CONFIGS / "soae" / "digits.yaml"), *stop, *quick]) == 0
    assert len(metrics_of(tmp_path / "runs" / "soae" / "digits" / "0")["train/loss"]) == 3
