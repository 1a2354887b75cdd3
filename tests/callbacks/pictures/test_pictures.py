"""Pictures are drawn in the run folder, and only of available data."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from matplotlib.image import imread
from matplotlib.text import Text

from lit_sparse.callbacks import (
    ClassSamplesPlot,
    CountLogger,
    DecoderCallsPlot,
    NegativeELBOPlot,
    PredictionWriter,
    ReconstructionPlot,
    SupportSizePlot,
)
from lit_sparse.callbacks.pictures.drawings import draw
from lit_sparse.data import DigitsDataModule
from lit_sparse.estimators import Marginalize, TopKMarginalize
from lit_sparse.mappings import Sparsemax
from lit_sparse.models import BitVectorVAE, SemiSupervisedVAE


def short(**options: Any) -> pl.Trainer:
    """A trainer of two batches an epoch that writes nothing by itself."""
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    return pl.Trainer(accelerator="cpu", limit_train_batches=2, **quiet, **options)


def test_callbacks_work_under_a_trainer_in_python(tmp_path: Path) -> None:
    folder = str(tmp_path)
    curve = DecoderCallsPlot(folder=folder)
    pictures = [curve, ReconstructionPlot(folder=folder), ClassSamplesPlot(columns=3, folder=folder)]
    torch.manual_seed(0)
    model = SemiSupervisedVAE(Sparsemax(), Marginalize(), in_features=64, classifier_hidden=[8])
    trainer = short(max_epochs=2, callbacks=[CountLogger(), *pictures, PredictionWriter(folder=folder)])
    trainer.fit(model, DigitsDataModule())
    assert [row["epoch"] for row in curve.history] == [1, 2]
    low, median, high = (f"train/decoder_calls_{key}" for key in ("p10", "median", "p90"))
    assert all(row[low] <= row[median] <= row[high] for row in curve.history)
    for name in ("decoder_calls", "reconstructions", "samples_by_class"):
        image = imread(tmp_path / "pictures" / f"{name}.png")
        assert float(image[..., :3].std()) > 0.01, "the picture is not blank"
    trainer.predict(model, DigitsDataModule(), return_predictions=False)
    lines = (tmp_path / "predictions.csv").read_text().splitlines()
    assert [int(line.split(",")[0]) for line in lines[1:]] == list(range(360))


def test_the_curve_survives_a_checkpoint() -> None:
    curve, other = DecoderCallsPlot(), DecoderCallsPlot()
    curve.history = [{"epoch": 1.0, **dict.fromkeys(curve.metrics, 2.0)}]
    other.load_state_dict(curve.state_dict())
    assert other.history == curve.history


def fit_bits(folder: Path, epochs: int, checkpoint: Path | None = None) -> tuple[NegativeELBOPlot, dict[str, list[float]]]:
    """Train a bit-vector VAE and return the curve, and each epoch's metrics as they were logged."""
    curve, logged = NegativeELBOPlot(folder=str(folder)), _Logged()
    torch.manual_seed(0)
    model = BitVectorVAE(TopKMarginalize(5), in_features=64, bits=6, levels=17, encoder_hidden=[8], decoder_hidden=[8])
    callbacks = [CountLogger(), curve, ReconstructionPlot(folder=str(folder)), logged]
    trainer = short(max_epochs=epochs, check_val_every_n_epoch=2, callbacks=callbacks)
    trainer.fit(model, DigitsDataModule(labelled=0, binarize=False), ckpt_path=None if checkpoint is None else str(checkpoint))
    trainer.save_checkpoint(folder / "last.ckpt")
    return curve, logged.found


class _Logged(pl.Callback):
    def __init__(self) -> None:
        self.found: dict[str, list[float]] = {"train/decoder_calls_median": [], "val/nelbo": []}

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.found["train/decoder_calls_median"].append(float(trainer.callback_metrics["train/decoder_calls_median"]))

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.sanity_checking:
            self.found["val/nelbo"].append(float(trainer.callback_metrics["val/nelbo"]))


@pytest.mark.slow
def test_negative_elbo_against_epochs_and_calls(tmp_path: Path) -> None:
    """Validation every second epoch: its calls count, and it has no point; a resumed run goes on with the curve."""
    curve, logged = fit_bits(tmp_path, 5)
    medians = logged["train/decoder_calls_median"]
    assert [row["epoch"] for row in curve.rows] == [2, 4]
    assert [row["calls"] for row in curve.rows] == [sum(medians[:2]), sum(medians[:4])]
    assert [row["val/nelbo"] for row in curve.rows] == logged["val/nelbo"]
    for name in ("negative_elbo", "reconstructions"):
        assert float(imread(tmp_path / "pictures" / f"{name}.png")[..., :3].std()) > 0.01
    whole, logged = fit_bits(tmp_path, 6, tmp_path / "last.ckpt")
    assert [row["epoch"] for row in whole.rows] == [2, 4, 6]
    assert whole.history[:5] == curve.history
    assert whole.rows[2]["calls"] == sum(medians) + sum(logged["train/decoder_calls_median"])


def test_a_grid_of_images_that_are_not_square() -> None:
    figure = draw("reconstructions", {"images": torch.rand(2, 3, 10), "labels": ["a", "b"]})
    assert figure.axes[0].images[0].get_array().shape == (2 * 5, 3 * 5)


def test_images_in_color_are_drawn_in_color() -> None:
    pixels = torch.zeros(1, 2, 3, 4, 4)
    pixels[0, 1, 2] = 1.0  # the second image is blue
    sheet = draw("reconstructions", {"images": pixels.flatten(2), "labels": ["a"]}).axes[0].images[0].get_array()
    assert sheet.shape == (5, 10, 3)
    assert sheet[:4, 5:9].reshape(16, 3).tolist() == [[0, 0, 1]] * 16
    assert not sheet[:4, :4].any()


ROWS = [{"epoch": float(i), "calls": 2.0 * i, "low": 1.0, "median": 2.0, "high": 3.0, "mean": 2.0} for i in (1, 2, 3)]
POINTS = {name: torch.rand(30, 2) for name in ("source", "target", "mapped", "drawn")}
ENDS = {"source": torch.rand(30), "target": torch.rand(30)}
LINE = {"points": ENDS, "potentials": ENDS, "densities": ENDS, "grid": torch.arange(30), "mapped": torch.rand(30)}
ARTIFACTS: dict[str, dict[str, Any]] = {
    "decoder_calls": {"rows": ROWS, "metrics": ("low", "median", "high", "mean"), "label": "calls"},
    "success": {"rows": ROWS, "metrics": ("calls", "mean"), "label": "success"},
    "reconstructions": {"images": torch.rand(2, 3, 64), "labels": ["image", "reconstruction"], "cells": (3, 2, 0.5)},
    "bases": {"bases": torch.randn(9, 64), "shape": (8, 8)},
    "activity": {"counts": torch.tensor([0, 3, 5, 1])},
    "messages_by_class": {
        "shares": torch.rand(4, 90),
        "classes": list("abcd"),
        "symbols": list(range(90)),
        "vocabulary": 99,
        "cells": (90, 4, 0.18),
    },
    "transport_line": {**LINE, "drawn": torch.rand(2, 30)},
    "transport_plane": POINTS,
}


@pytest.mark.parametrize("name", ARTIFACTS)
def test_text_can_be_read_and_legends_lie_on_nothing(name: str) -> None:
    figure = draw(name, ARTIFACTS[name])
    figure.canvas.draw()
    texts = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
    assert all(text.get_fontsize() >= 9 for text in texts)
    for axis in figure.axes:
        legend = axis.get_legend()
        assert legend is None or legend.get_window_extent().y0 >= axis.get_window_extent().y1
        boxes = [label.get_window_extent() for label in axis.get_xticklabels() if label.get_text()]
        assert all(left.x1 <= right.x0 + 1 for left, right in pairwise(boxes)), "labels lie apart"
    images = [image.get_clim() for axis in figure.axes for image in axis.images]
    assert {*images} <= {(0, 1), (-1, 1)}, "runs share their scale"
    named = [axis for axis in figure.axes if axis.get_ylabel()]
    heat_map = name in ("bases", "messages_by_class")
    assert len(named) == (0 if name == "reconstructions" else len(figure.axes) - (name in ("bases", "success")))
    assert heat_map == any("/" in axis.get_ylabel() or "share of the class" in axis.get_ylabel() for axis in named)


@pytest.mark.parametrize("calls", [2.0, 3.0])
def test_counts_that_are_equal_are_one_picture(tmp_path: Path, calls: float) -> None:
    plots = [DecoderCallsPlot(str(tmp_path)), SupportSizePlot(str(tmp_path))]
    for plot, value in zip(plots, (calls, 2.0), strict=True):
        plot.history = [{"epoch": 1.0, **dict.fromkeys(plot.metrics, value)}]
    trainer = short(callbacks=plots)
    for plot in plots:
        plot.on_train_end(trainer, pl.LightningModule())
    names = {path.stem for path in (tmp_path / "pictures").iterdir()}
    assert names == ({"decoder_calls"} if calls == 2 else {"decoder_calls", "support_size"})
    shown = plots[0].artifact(trainer, None)
    assert shown is not None
    assert ("support size" in shown["label"]) == (calls == 2)
