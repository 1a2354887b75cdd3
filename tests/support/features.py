"""Models and functions that features of Lightning need; imported by command lines under test."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from lit_sparse.models import RobustClassifier, StepOutput


class NormNet(nn.Sequential):
    """A network with batch normalization."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))


class Classifier(RobustClassifier):
    """A model with a part that can be frozen, and values that it logs by itself."""

    @property
    def backbone(self) -> nn.Module:
        network: Any = self.network
        return nn.Sequential(network[0], network[1])

    def step(self, batch: dict[str, Any], batch_idx: int, stage: Any) -> StepOutput:
        output = super().step(batch, batch_idx, stage)
        if stage == "train":
            size = len(batch["label"])
            losses: Any = output.losses
            self.log("own/mean", losses.mean().detach(), on_step=False, on_epoch=True, batch_size=size, sync_dist=True)
            self.log("own/both", losses.sum().detach(), on_step=True, on_epoch=True, batch_size=size, sync_dist=True)
            self.log("own/largest", losses.max().detach(), on_epoch=True, on_step=False, reduce_fx="max", sync_dist=True)
            if batch_idx == 2:
                self.log("own/third", losses.mean().detach(), on_epoch=True, on_step=False, batch_size=size, sync_dist=True)
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


def size_of(batch: dict[str, Tensor]) -> int:
    """Return the number of examples of a batch."""
    return len(batch["label"])


class Trained(torch.optim.SGD):
    """Train the parameters that are not frozen when training starts."""

    def __init__(self, params: Any, lr: float = 0.1, momentum: float = 0.9) -> None:
        super().__init__([parameter for parameter in params if parameter.requires_grad], lr=lr, momentum=momentum)
