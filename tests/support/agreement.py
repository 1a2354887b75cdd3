"""Callbacks that compare processes; imported by command lines under test."""

from __future__ import annotations

import pytorch_lightning as pl
import torch


class SameWeights(pl.Callback):
    """End with an error unless all processes have the same weights, to the last bit."""

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        mine = torch.cat([parameter.detach().flatten() for parameter in pl_module.parameters()])
        others = [torch.empty_like(mine) for _ in range(trainer.world_size)]
        torch.distributed.all_gather(others, mine)
        if not all(torch.equal(mine, other) for other in others):
            raise RuntimeError(f"process {trainer.global_rank} has other weights")
        print(f"all {trainer.world_size} processes have the same weights")
