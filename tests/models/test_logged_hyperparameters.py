"""Hyper-parameters as loggers get them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytorch_lightning as pl
import yaml
from pytorch_lightning.loggers import CSVLogger

from lit_sparse.data import DigitsDataModule
from lit_sparse.estimators import Marginalize
from lit_sparse.mappings import Sparsemax
from lit_sparse.models import SemiSupervisedVAE


def test_loggers_get_the_hyperparameters_of_model_and_data(tmp_path: Path) -> None:
    class Recorder(CSVLogger):
        calls: ClassVar[list[Any]] = []

        def log_hyperparams(self, params: Any = None) -> None:
            self.calls.append(params)
            super().log_hyperparams(params)

    logger = Recorder(str(tmp_path), name="", version="")
    quiet = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False, "log_every_n_steps": 1}
    trainer = pl.Trainer(accelerator="cpu", max_steps=1, limit_val_batches=0, logger=logger, **quiet)
    model = SemiSupervisedVAE(Sparsemax(), Marginalize(), in_features=64, classifier_hidden=[8])
    trainer.fit(model, DigitsDataModule(batch_size=50))
    found = yaml.safe_load((tmp_path / "hparams.yaml").read_text())
    assert found["model"]["class_path"] == "lit_sparse.models.SemiSupervisedVAE"
    assert found["model"]["init_args"]["mapping"]["class_path"] == "lit_sparse.mappings.Sparsemax"
    assert found["data"]["init_args"]["batch_size"] == 50
    assert logger.calls == [found]
