"""Ends training once the loss hardly changes."""

from __future__ import annotations

import torch
from torch import Tensor

from lit_sparse.checks import POSITIVE, Count, ranges
from lit_sparse.lightning.choice import EarlyStopping, EarlyStoppingReason

__all__ = ["RelativeChangeStopping"]


@ranges(threshold=POSITIVE, patience=Count())
class RelativeChangeStopping(EarlyStopping):
    r"""Stop training when the relative change of a logged value stays below a threshold for several epochs.

    .. math:: \lvert v_t - v_{t-1} \rvert \le \mathrm{threshold} \cdot \lvert v_{t-1} \rvert

    where v_t is the value in epoch t.

    Unlike ``EarlyStopping``, it does not compare with the smallest value so far: the loss of
    :class:`lit_sparse.models.SupervisedOnlineAutoencoder` rises while classification gains weight in it. A value that is
    not finite stops training at once.

    To use it in a config::

        trainer:
          max_epochs: 1000
          callbacks:
            - class_path: RelativeChangeStopping
              init_args: {threshold: 1.0e-3, patience: 3}

    Args:
        monitor: name of a value that is logged once per training epoch.
        threshold: largest relative change that counts as no change, > 0.
        patience: number of successive epochs without a change after which training stops, >= 1.

    Raises:
        ConfigurationError: for an argument outside its range.

    Source: Thom & Palm (2013), Sparse Activity and Sparse Connectivity in Supervised Learning.
    """

    def __init__(self, monitor: str = "train/loss", threshold: float = 1e-3, patience: int = 3) -> None:
        super().__init__(monitor, patience=patience, check_on_train_epoch_end=True)
        self.threshold = threshold

    def _evaluate_stopping_criteria(self, current: Tensor) -> tuple[bool, str | None]:
        if not torch.isfinite(current):
            return super()._evaluate_stopping_criteria(current)
        before, self.best_score = self.best_score.to(current.device), current
        rests = bool(torch.isfinite(before)) and bool((current - before).abs() <= self.threshold * before.abs())
        self.wait_count = self.wait_count + 1 if rests else 0
        if self.wait_count < self.patience:
            return False, None
        self.stopping_reason = EarlyStoppingReason.PATIENCE_EXHAUSTED
        return True, f"{self.monitor} has changed by less than {self.threshold:g} of itself in {self.wait_count} epochs."
