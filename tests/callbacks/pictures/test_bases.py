"""Pictures of bases and of their activity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from matplotlib.image import imread

from lit_sparse.callbacks import ActivityHistogram, BasesPlot
from lit_sparse.callbacks.pictures.drawings import draw
from lit_sparse.data import DigitsDataModule
from lit_sparse.errors import ConfigurationError
from lit_sparse.estimators import Marginalize
from lit_sparse.mappings import HoyerProjection, Sparsemax
from lit_sparse.models import SemiSupervisedVAE, SupervisedOnlineAutoencoder


def run(model: pl.LightningModule, folder: Path, *callbacks: pl.Callback) -> pl.Trainer:
    quiet: dict[str, Any] = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = pl.Trainer(accelerator="cpu", max_epochs=1, limit_train_batches=2, callbacks=list(callbacks), **quiet)
    trainer.fit(model, DigitsDataModule(labelled=1.0, binarize=False))
    return trainer


@pytest.mark.gate
def test_bases_and_activity_are_drawn(tmp_path: Path) -> None:
    model = SupervisedOnlineAutoencoder(HoyerProjection(0.7), in_features=64, width=30)
    histogram = ActivityHistogram(folder=str(tmp_path))
    trainer = run(model, tmp_path, BasesPlot(folder=str(tmp_path)), histogram)
    for name in ("bases", "activity"):
        assert float(imread(tmp_path / "pictures" / f"{name}.png")[..., :3].std()) > 0.01, "the picture is not blank"
    assert histogram._kept is not None
    assert int(histogram._kept.sum()) == 180, "each validation image once"
    with torch.no_grad():
        data = DigitsDataModule(labelled=1.0, binarize=False)
        data.setup()
        active = model.encode(data.fetch("val", 0, torch.arange(180))["pixels"]).ne(0).sum(1)
    assert histogram._kept[:31].tolist() == torch.bincount(active, minlength=31).tolist()
    (tmp_path / "pictures" / "activity.png").unlink()
    trainer.test(model, DigitsDataModule(labelled=1.0, binarize=False), verbose=False)
    assert int(histogram._kept.sum()) == 360
    assert (tmp_path / "pictures" / "activity.png").is_file()


def test_models_without_bases_are_left_alone(tmp_path: Path) -> None:
    model = SemiSupervisedVAE(Sparsemax(), Marginalize(), in_features=64, classifier_hidden=[8])
    run(model, tmp_path, BasesPlot(folder=str(tmp_path)), ActivityHistogram(folder=str(tmp_path)))
    assert not (tmp_path / "pictures").exists()


@pytest.mark.parametrize(("count", "shape"), [(1, (8, 8)), (7, (8, 8)), (10, (4, 16)), (3, (16, 4))])
def test_a_sheet_shows_each_basis_where_it_stands(count: int, shape: tuple[int, int]) -> None:
    bases = torch.randn(count, 64)
    drawn = draw("bases", {"bases": bases, "shape": shape}).axes[0].images[0].get_array()
    high, wide = shape[0] + 2, shape[1] + 2
    columns = drawn.shape[1] // wide
    for number in range(count):
        row, column = divmod(number, columns)
        tile = drawn[row * high + 1 : (row + 1) * high - 1, column * wide + 1 : (column + 1) * wide - 1]
        torch.testing.assert_close(torch.from_numpy(tile.filled()), (bases[number] / bases[number].abs().max()).view(shape))
    assert drawn.mask.sum() == drawn.size - count * 64, "all else is empty"


def test_shapes_that_do_not_fit(tmp_path: Path) -> None:
    model = SupervisedOnlineAutoencoder(HoyerProjection(0.7), in_features=64, width=30)
    with pytest.raises(ConfigurationError, match="`shape` to have 64 pixels"):
        run(model, tmp_path, BasesPlot(shape=(7, 8), folder=str(tmp_path)))
    run(
        SupervisedOnlineAutoencoder(HoyerProjection(0.7), in_features=64, width=9),
        tmp_path,
        BasesPlot(2, (4, 16), str(tmp_path)),
    )


def test_two_pictures_of_a_class_may_differ_in_their_arguments() -> None:
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    pl.Trainer(callbacks=[BasesPlot(3), BasesPlot(5), ActivityHistogram()], **quiet)  # Lightning refuses equal states
    assert BasesPlot(3, folder="a").state_key == BasesPlot(3, folder="b").state_key, "a run may have moved"
