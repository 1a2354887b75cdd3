"""The metrics of a stage, which a model declares, and the base class updates, logs and stores in checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torchmetrics import Metric

from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.distributed import is_first
from lit_sparse.lightning.choice import AGREED, pl
from lit_sparse.metrics import GroupMeans, MeanOverExamples

__all__ = ["StageMetrics", "group_metrics", "mean_metrics"]

#: Validation and test means in the progress bar.
SHOWN = ("loss", "accuracy")


def mean_metrics(*names: str) -> dict[str, Metric]:
    """Return a metric of the mean over examples for each name, for :meth:`LitSparseModule.configure_metrics`.

    Raises:
        ConfigurationError: for a name that is not a text, or occurs twice.
    """
    if len({*names}) < len(names) or not all(isinstance(name, str) for name in names):
        raise ConfigurationError(f"Expected metrics with different names but got {names}.")
    return {name: MeanOverExamples() for name in names}


def group_metrics(declared: Mapping[str, Metric]) -> dict[str, Metric]:
    """Return metrics of the mean loss and accuracy of each group, if these two are among the declared metrics."""
    found: dict[str, Metric] = {"group_loss": GroupMeans("loss", "max"), "group_accuracy": GroupMeans("accuracy", "min")}
    return {name: metric for name, metric in found.items() if isinstance(declared.get(name[6:]), MeanOverExamples)}


class StageMetrics(nn.ModuleDict):
    """Metrics of one stage by name, with their updates and logging."""

    def __getitem__(self, name: str) -> Any:
        """Return a metric."""
        return super().__getitem__(name)

    def reset(self) -> None:
        """Reset all metrics for a new epoch."""
        for metric in self.values():
            cast(Metric, metric).reset()

    def measure(self, per_example: Mapping[str, Tensor], groups: Tensor | None = None, labels: Any = None) -> None:
        """Update the means over examples, and the means by group, with the values of a batch.

        Args:
            per_example: name -> (M,) values; names without a mean are ignored.
            groups: (B,) group of each example; names with B values, or one per labelled example, are averaged by group.
            labels: (B,) label of each example, negative if it has none.
        """
        for name, metric in self.items():
            values = per_example.get(metric.value if isinstance(metric, GroupMeans) else name)
            if values is None:
                continue
            if isinstance(metric, MeanOverExamples):
                metric.update(values)
            elif isinstance(metric, GroupMeans) and groups is not None:
                if groups.shape != values.shape and getattr(labels, "shape", None) == groups.shape:
                    groups = groups[labels >= 0]
                if groups.shape == values.shape:
                    metric.update(values, groups)

    def log(self, model: pl.LightningModule, stage: str, count_name: str) -> None:
        """Log the metrics of an epoch, except means without values.

        Args:
            model: model whose ``log`` is called.
            stage: ``"train"``, ``"val"`` or ``"test"``.
            count_name: name of the number of values in the mean loss, which is logged in validation and test.
        """
        counts = {name: int(sums["count"]) for name, sums in self.sums().items()}
        for name, metric in self.items():
            if counts.get(name) == 0:
                continue
            computed = cast(Metric, metric).compute()
            for key, value in (computed if isinstance(computed, dict) else {name: computed}).items():
                shown = stage != "train" and (name not in counts or key in SHOWN)
                model.log(f"{stage}/{key}", value, prog_bar=shown, **AGREED)
        if stage != "train":
            model.log(f"{stage}/{count_name}", torch.tensor(counts["loss"], dtype=torch.float64), **AGREED)

    def sums(self) -> dict[str, dict[str, Tensor]]:
        """Return the sums of the means over all processes; all processes must call it."""
        sums = {}
        for name, mean in self._means().items():
            with mean.sync_context():
                sums[name] = {"total": mean.total.clone(), "count": mean.count.clone()}
        return sums

    def restore(self, sums: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Restore the result of :meth:`sums`, on the first process."""
        for name, mean in self._means().items():
            if name in sums:
                mean.reset()
                if is_first():
                    mean.total += sums[name]["total"].to(mean.device)
                    mean.count += sums[name]["count"].to(mean.device)

    def _means(self) -> dict[str, MeanOverExamples]:
        return {name: metric for name, metric in self.items() if isinstance(metric, MeanOverExamples)}
