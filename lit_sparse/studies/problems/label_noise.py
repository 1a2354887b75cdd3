"""Curves of classifiers that are trained with wrong labels: test accuracy by true labels while they are trained."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lit_sparse.lightning.choice import pl
from lit_sparse.risks import UnbalancedOTDRO

__all__ = ["LabelNoiseCurves"]


class LabelNoiseCurves(pl.Callback):
    """Log curves of a classifier trained with noisy labels: robust loss, accuracy on noisy labels, and clean test accuracy.

    Args:
        every: number of steps between measurements.
        train_examples: number of training images on which the robust loss is measured, with kappa = beta = 1.
        val_examples: number of validation images.

    Source: Gladin, Kroshnin, Zhu & Dvurechensky (2025), Improved Stochastic Optimization of LogSumExp, arXiv:2509.24894,
    equation 20 and figure 4.
    """

    def __init__(self, every: int = 5000, train_examples: int = 5000, val_examples: int = 2000) -> None:
        self.every = self._every_n_train_steps = every
        self.train_examples = train_examples
        self.val_examples = val_examples

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.global_step == 0:
            self._measure(trainer, pl_module)

    @override
    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        if trainer.global_step % self.every == 0:
            self._measure(trainer, pl_module)

    def _measure(self, trainer: pl.Trainer, model: Any) -> None:
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        data.setup("test")
        model.eval()
        found = {
            "curves/loss": robust_loss(
                model, data.fetch("train", 0, torch.arange(min(self.train_examples, data.size("train"))))
            ),
            "curves/val_accuracy": accuracy(
                model, data.fetch("val", 0, torch.arange(min(self.val_examples, data.size("val"))))
            ),
            "curves/test_accuracy": accuracy(model, data.fetch("test", 0, torch.arange(data.size("test")))),
            "curves/overflows": float(model.risk.measurements().get("overflows", 0)),
        }
        model.train()
        for logger in trainer.loggers:
            logger.log_metrics({**found, "epoch": float(trainer.current_epoch)}, trainer.global_step)


@torch.no_grad()
def accuracy(model: Any, batch: dict[str, Tensor]) -> float:
    """Return the fraction of images whose label is predicted."""
    found = torch.cat([model(pixels).argmax(1) for pixels in batch["pixels"].to(model.device).split(1000)])  # type: ignore[no-untyped-call]
    return float((found == batch["label"].to(model.device)).double().mean())


def robust_loss(model: Any, batch: dict[str, Tensor]) -> float:
    """Return ``log mean exp`` of the losses of perturbed images minus their transport cost, with kappa = beta = 1."""
    risk = UnbalancedOTDRO(1.0, 1.0, 0.1)
    losses = []
    for pixels, label in zip(batch["pixels"].split(1000), batch["label"].split(1000), strict=True):  # type: ignore[no-untyped-call]
        pixels, label = pixels.to(model.device), label.to(model.device)
        losses_at = partial(_losses, model, label)
        with torch.enable_grad():
            moved, cost = risk.perturb(losses_at, pixels)
        with torch.no_grad():
            losses.append((losses_at(moved) - cost).double())
    return float(torch.logsumexp(torch.cat(losses), 0) - math.log(len(batch["label"])))


def _losses(model: Any, label: Tensor, pixels: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(model(pixels), label, reduction="none")
