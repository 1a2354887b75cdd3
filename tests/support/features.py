"""Models and functions for features of Lightning; imported by command lines under test."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torchmetrics.classification import MulticlassAUROC

from lit_sparse.models import RobustClassifier, StepOutput


class NormNet(nn.Sequential):
    """A network with batch normalization."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))


class Classifier(RobustClassifier):
    """A model with a part that can be frozen, and with values and a metric that it logs by itself."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.ranking = MulticlassAUROC(10, validate_args=False)

    @property
    def backbone(self) -> nn.Module:
        network: Any = self.network
        return nn.Sequential(network[0], network[1])

    def step(self, batch: dict[str, Any], batch_idx: int, stage: Any) -> StepOutput:
        output = super().step(batch, batch_idx, stage)
        if stage == "train":
            losses: Any = output.losses
            every: dict[str, Any] = {"on_epoch": True, "batch_size": len(losses), "sync_dist": True}
            self.log("own/mean", losses.mean().detach(), on_step=False, **every)
            self.log("own/sum", losses.sum().detach(), on_step=True, reduce_fx="sum", **every)
            self.log("own/largest", losses.max().detach(), on_step=False, reduce_fx=max, **every)
            if batch_idx == 2:
                self.log("own/third", losses.mean().detach(), on_step=True, **every)
            with torch.no_grad():
                self.ranking.update(self.network(batch["pixels"]).float().softmax(-1), batch["label"])
            self.log("own/ranking", self.ranking, on_step=False, on_epoch=True)
        return output

    def on_train_epoch_start(self) -> None:
        super().on_train_epoch_start()
        self.log("own/start", float(self.current_epoch))


class Freezing(pl.callbacks.BaseFinetuning):
    """Freeze a part of the model, and train it from the third epoch on."""

    def freeze_before_training(self, pl_module: Any) -> None:
        self.freeze(pl_module.backbone, train_bn=False)

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: torch.optim.Optimizer) -> None:
        if epoch == 2:
            self.unfreeze_and_add_param_group(pl_module.backbone, optimizer, lr=0.05)


class Trained(torch.optim.SGD):
    """Train the parameters that are not frozen when training starts."""

    def __init__(self, params: Any, lr: float = 0.1, momentum: float = 0.9) -> None:
        super().__init__([parameter for parameter in params if parameter.requires_grad], lr=lr, momentum=momentum)


class ThenConstant(lr_scheduler.SequentialLR):
    """Chain two schedulers for two epochs, then keep the rate."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        falling = [lr_scheduler.ExponentialLR(optimizer, 0.5), lr_scheduler.StepLR(optimizer, 1, 0.9)]
        then: Any = [lr_scheduler.ChainedScheduler(falling, optimizer), lr_scheduler.ConstantLR(optimizer, 1.0)]
        super().__init__(optimizer, then, milestones=[2])


def size_of(batch: dict[str, Tensor]) -> int:
    """Return the number of examples of a batch."""
    return len(batch["label"])


def halve_rates(trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
    """Set the learning rate of an epoch."""
    for group in trainer.optimizers[0].param_groups:
        group["lr"] = 0.1 / 2**trainer.current_epoch
