"""Pictures are drawn where they belong, and only of what is there."""

from __future__ import annotations

from pathlib import Path

import pytorch_lightning as pl
import torch
from matplotlib.image import imread

from lit_sparse.callbacks import ClassSamplesPlot, CountLogger, DecoderCallsPlot, PredictionWriter, ReconstructionPlot
from lit_sparse.callbacks.pictures import _image_grid
from lit_sparse.data import DigitsDataModule
from lit_sparse.estimators import Marginalize
from lit_sparse.mappings import Sparsemax
from lit_sparse.models import SemiSupervisedVAE


def test_callbacks_work_under_a_trainer_in_python(tmp_path: Path) -> None:
    folder = str(tmp_path)
    curve = DecoderCallsPlot(folder=folder)
    pictures = [curve, ReconstructionPlot(folder=folder), ClassSamplesPlot(columns=3, folder=folder)]
    torch.manual_seed(0)
    model = SemiSupervisedVAE(Sparsemax(), Marginalize(), in_features=64, classifier_hidden=[8])
    trainer = pl.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_train_batches=2,
        callbacks=[CountLogger(), *pictures, PredictionWriter(folder=folder)],
    )
    trainer.fit(model, DigitsDataModule())
    assert [row["epoch"] for row in curve.history] == [1, 2]
    assert all(row["p10"] <= row["median"] <= row["p90"] for row in curve.history)
    for name in ("decoder_calls", "reconstructions", "samples_by_class"):
        image = imread(tmp_path / "pictures" / f"{name}.png")
        assert float(image[..., :3].std()) > 0.01, "the picture is not blank"
    trainer.predict(model, DigitsDataModule(), return_predictions=False)
    lines = (tmp_path / "predictions.csv").read_text().splitlines()
    assert [int(line.split(",")[0]) for line in lines[1:]] == list(range(360))


def test_the_curve_survives_a_checkpoint() -> None:
    curve, other = DecoderCallsPlot(), DecoderCallsPlot()
    curve.history = [{"epoch": 1.0, "p10": 1.0, "median": 2.0, "p90": 3.0, "mean": 2.0}]
    other.load_state_dict(curve.state_dict())
    assert other.history == curve.history


def test_a_grid_of_images_that_are_not_square() -> None:
    figure = _image_grid(torch.rand(2, 3, 10), ["a", "b"])
    assert figure.axes[0].images[0].get_array().shape == (2 * 5, 3 * 5)
