"""Strategies that shard models on CPUs; imported by command lines under test."""

from __future__ import annotations

from typing import Any

import lightning_fabric.strategies.fsdp as fabric_fsdp
import pytorch_lightning.strategies.fsdp as lightning_fsdp
import torch
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel,
    StateDictType,
)


class CPUShards(lightning_fsdp.FSDPStrategy):
    """Lightning's FSDP on a CPU.

    Lightning refuses it by the name of the class, and torch needs the device by name. torch frees gathered weights that it
    copies from CPU to CPU before it reads them.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for module in (fabric_fsdp, lightning_fsdp):
            module._get_full_state_dict_context = _gathered

    def _setup_model(self, model: torch.nn.Module) -> torch.nn.Module:
        wrapped = FullyShardedDataParallel(
            model, sharding_strategy=self.sharding_strategy, device_id=torch.device("cpu"), **self.kwargs
        )
        return super()._setup_model(wrapped)


def _gathered(module: torch.nn.Module, world_size: int, rank0_only: bool = True) -> Any:
    config, of_optimizer = FullStateDictConfig(offload_to_cpu=False), FullOptimStateDictConfig(offload_to_cpu=False)
    return FullyShardedDataParallel.state_dict_type(module, StateDictType.FULL_STATE_DICT, config, of_optimizer)
