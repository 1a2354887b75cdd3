"""Trains with one Lightning, three times: the user's callbacks, model and data module, each with parts of this package."""

import sys
from importlib import import_module

import torch
from torch.utils.data import DataLoader

pl = import_module(sys.argv[1])  # before lit_sparse, which then uses it

from lit_sparse.callbacks import CountLogger  # noqa: E402
from lit_sparse.data import DigitsDataModule  # noqa: E402
from lit_sparse.estimators import Marginalize  # noqa: E402
from lit_sparse.mappings import Sparsemax  # noqa: E402
from lit_sparse.models import SemiSupervisedVAE  # noqa: E402


class UsersModel(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, 10)

    def training_step(self, batch: object, batch_idx: int) -> torch.Tensor:
        return self.layer(batch["pixels"]).logsumexp(-1).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class UsersData(pl.LightningDataModule):
    def setup(self, stage: str) -> None:
        self.digits = DigitsDataModule()
        self.digits.setup(stage)

    def train_dataloader(self) -> DataLoader:
        return self.digits.train_dataloader()


class UsersCallback(pl.Callback):
    batches = 0

    def on_train_batch_end(self, *_: object) -> None:
        self.batches += 1


def fit(model: object, data: object, *callbacks: object) -> None:
    counted = UsersCallback()
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    trainer = pl.Trainer(max_steps=2, limit_val_batches=1, callbacks=[counted, *callbacks], **options)
    trainer.fit(model, data)
    assert counted.batches == 2


def model() -> SemiSupervisedVAE:
    return SemiSupervisedVAE(Sparsemax(), Marginalize(), in_features=64)


fit(model(), DigitsDataModule(), CountLogger())  # the user's Trainer and callback
fit(model(), UsersData(), CountLogger())
fit(UsersModel(), DigitsDataModule())
other = {"pytorch_lightning": "lightning.pytorch", "lightning.pytorch": "pytorch_lightning"}[sys.argv[1]]
assert other not in sys.modules
print(type(model()).__mro__[-1], sys.argv[1], "trained three times")
