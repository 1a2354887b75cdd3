"""Callbacks that steer training: the temperature of relaxed samples, and an end once the loss hardly changes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lit_sparse.checks import POSITIVE, Count, Number, ranges
from lit_sparse.errors import ConfigurationError
from lit_sparse.estimators import GumbelSoftmax
from lit_sparse.lightning.choice import EarlyStopping, EarlyStoppingReason, pl, rank_zero_warn

__all__ = ["RelativeChangeStopping", "TemperatureAnnealing"]

#: A final temperature that is hardly less than the first.
LUKEWARM = 0.95


@ranges(rate=Number(0.0, math.inf, open_high=True), every=Count(), minimum=POSITIVE)
class TemperatureAnnealing(pl.Callback):
    r"""Lower the temperature of every Gumbel-softmax estimator as training proceeds.

    .. math:: \tau = \max\{\mathrm{minimum},\; e^{-\mathrm{rate} \cdot \mathrm{step}}\}

    where the optimizer step is rounded down to a multiple of ``every``.

    It is logged as ``train/temperature``. The step is the optimizer's, so a resumed run continues the schedule.

    Args:
        rate: decay rate of the temperature per step, >= 0.
        every: number of steps between changes, >= 1.
        minimum: the lowest temperature, > 0.

    Raises:
        ConfigurationError: if an argument is invalid, or the model has no Gumbel-softmax estimator.

    Source: Jang, Gu & Poole (2017), Categorical reparameterization with Gumbel-softmax, appendix.

    In a config::

        trainer:
          callbacks:
            - class_path: TemperatureAnnealing
              init_args: {rate: 1.0e-5, every: 500}
    """

    def __init__(self, rate: float = 1e-5, every: int = 500, minimum: float = 0.5) -> None:
        self.rate, self.minimum = rate, minimum
        self.every = self._every_n_train_steps = every

    def temperature(self, step: int) -> float:
        """Return the temperature at an optimizer step."""
        return max(self.minimum, math.exp(-self.rate * (step - step % self.every)))

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not self._estimators(pl_module):
            raise ConfigurationError(
                f"TemperatureAnnealing found no GumbelSoftmax in {type(pl_module).__name__}. Leave it out, or set"
                " --model.init_args.estimator GumbelSoftmax."
            )

    @override
    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int) -> None:
        temperature = self.temperature(trainer.global_step)
        for estimator in self._estimators(pl_module):
            estimator.temperature.data.fill_(temperature)
        pl_module.log("train/temperature", temperature, batch_size=1)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Warn if the run was too short for the temperature to decrease."""
        if self.rate > 0 and self.temperature(trainer.global_step) > LUKEWARM > self.minimum:
            half = math.ceil(-math.log(max(self.minimum, 0.5)) / self.rate)
            rank_zero_warn(
                f"TemperatureAnnealing(rate={self.rate}, every={self.every}) left the temperature at"
                f" {self.temperature(trainer.global_step):.3g} after {trainer.global_step} steps. It reaches"
                f" {max(self.minimum, 0.5):g} after {half} steps. Increase `rate`, or decrease `every`."
            )

    @staticmethod
    def _estimators(model: pl.LightningModule) -> list[GumbelSoftmax]:
        return [part for part in model.modules() if isinstance(part, GumbelSoftmax)]


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
