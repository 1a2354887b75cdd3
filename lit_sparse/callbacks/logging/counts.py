"""Logs support sizes, decoder calls and similar counts, exactly, over any number of processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from typing_extensions import override

from lit_sparse.callbacks.base import Stage, StageCallback
from lit_sparse.checks import check_count
from lit_sparse.ground.distributed import is_first
from lit_sparse.lightning.choice import AGREED, pl
from lit_sparse.lightning.internals import number_of_loaders
from lit_sparse.metrics import CountHistogram, DecoderCalls, SupportSize

__all__ = ["CountLogger"]


class CountLogger(StageCallback):
    """Log mean, percentiles and total of support sizes and decoder calls over each epoch.

    It reads ``support_size``, ``decoder_calls`` and ``groups`` (of equal neighbours, in attention) of every step's output,
    if present, and logs ``{stage}/support_size_mean``, ``{stage}/decoder_calls_median`` and so on. A run resumed within an
    epoch includes that epoch's earlier batches.

    To use it in a config (the command line adds it by itself)::

        trainer:
          callbacks:
            - class_path: CountLogger
              init_args: {max_count: 256}

    Args:
        max_count: largest count; larger ones count as this in the percentiles.
    """

    def __init__(self, max_count: int = 1024) -> None:
        super().__init__()
        self.max_count = check_count("max_count", max_count)
        self._metrics: dict[tuple[Stage, int], dict[str, CountHistogram]] = {}

    def _of(self, stage: Stage, loader: int = 0) -> dict[str, CountHistogram]:
        """Return the counts of a loader of a stage."""
        kinds = {"support_size": SupportSize, "decoder_calls": DecoderCalls, "groups": CountHistogram}
        if (stage, loader) not in self._metrics:
            self._metrics[stage, loader] = {name: kind(self.max_count) for name, kind in kinds.items()}
        return self._metrics[stage, loader]

    @override
    def on_stage_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: Stage) -> None:
        for loader in range(number_of_loaders(trainer, stage)):
            self._of(stage, loader)
        for _, metric in self._of_stage(stage):
            metric.reset()
            metric.to(pl_module.device)

    def _of_stage(self, stage: Stage) -> Iterator[tuple[str, CountHistogram]]:
        """Yield the counts of all loaders of a stage by their names; the first loader's have the plain ones."""
        for (own, loader), metrics in self._metrics.items():
            for name, metric in metrics.items() if own == stage else ():
                yield f"{stage}/{name}_{{}}" + (f"/dataloader_idx_{loader}" if loader else ""), metric

    @override
    def on_stage_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, stage: Stage, dataloader_idx: int = 0
    ) -> None:
        for name, metric in self._of(stage, dataloader_idx).items():
            counts = outputs.get(name) if isinstance(outputs, dict) else None
            if counts is not None:
                if metric.device != counts.device:  # restored from a checkpoint, before the module was on its device
                    metric.to(counts.device)
                metric.update(counts)

    @override
    def on_stage_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: Stage) -> None:
        for name, metric in self._of_stage(stage):
            statistics = metric.compute()
            if not bool(statistics["mean"].isnan()):  # the model makes no such decisions
                for statistic, value in statistics.items():
                    pl_module.log(name.format(statistic), value, add_dataloader_idx=False, **AGREED)

    def state_dict(self) -> dict[str, Any]:
        """Return the counts of the training epoch so far, summed over processes; call it on all processes."""
        state = {}
        for name, metric in self._of("train").items():
            with metric.sync_context():
                state[name] = {"counts": metric.counts.clone(), "total": metric.total.clone()}
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the counts; the first process gets the counts of all processes."""
        for name, saved in state_dict.items():
            metric = self._of("train").get(name)
            if metric is not None and is_first():
                metric.reset()
                counts = saved["counts"].to(metric.device)
                bins = torch.arange(len(counts), device=metric.device).clamp(max=metric.max_count)  # of another max_count
                metric.counts.index_add_(0, bins, counts)
                metric.total += saved["total"].to(metric.device)
