"""Regression that minimizes a risk of squared errors, such as a worst case over weights of the data."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torchmetrics import Metric
from typing_extensions import override

from lit_sparse.checks import INPUTS, POSITIVE, ranges
from lit_sparse.errors import ConfigurationError
from lit_sparse.metrics import LogMeanExp
from lit_sparse.models.base import Batch, LitSparseModule, Stage, StepOutput, mean_metrics
from lit_sparse.models.data_protocols import ask, check_columns, check_entries, require_rows

__all__ = ["RobustRegressor"]


@ranges(in_features=INPUTS, lam=POSITIVE)
class RobustRegressor(LitSparseModule):
    """Regression model, linear or any network, that minimizes a risk of squared errors.

    The loss of an example is the squared error. Logged are ``loss``, its mean, and ``log_mean_exp``, the value
    ``lam log mean exp(loss / lam)`` over all validation or test examples. The latter is the objective of robust training
    in Kullback-Leibler divergence.

    Batches are dicts of ``features`` (B, D), ``target`` (B,) and ``index`` (B,).

    Args:
        in_features: D, including the intercept's constant feature.
        network: module from features (B, D) to predictions (B,) or (B, 1); None for a linear model without a further
            intercept.
        initialization: initial weights of a linear model: ``"zeros"``, or ``"least_squares"`` for the solution of the
            training data.
        lam: lam in ``log_mean_exp``, > 0.
        options: risk, optimizer, learning rate scheduler and initial weights; see :class:`LitSparseModule`.

    Raises:
        ConfigurationError: for an argument outside its range.

    Source: Gladin, Kroshnin, Zhu & Dvurechensky (2025), Improved Stochastic Optimization of LogSumExp, arXiv:2509.24894,
    section 3.2.

    Example:
        >>> from lit_sparse.risks import SafeKLDRO
        >>> model = RobustRegressor(in_features=3, risk=SafeKLDRO(1.0, 0.01))
        >>> model(torch.randn(5, 3)).shape
        torch.Size([5])
    """

    monitor: ClassVar[tuple[str, Literal["min", "max"]]] = ("val/log_mean_exp", "min")
    adversarial: ClassVar[bool] = True

    def __init__(
        self,
        *,
        in_features: int,
        network: nn.Module | None = None,
        initialization: Literal["least_squares", "zeros"] = "least_squares",
        lam: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.in_features, self.initialization, self.lam = in_features, initialization, lam
        self.linear = network is None
        if network is None:
            network = nn.Linear(in_features, 1, bias=False)
            nn.init.zeros_(network.weight)
        self.network: nn.Module = network

    def initialize(self, data: Any) -> None:
        """Set the weights to the least-squares solution of the training data, if requested.

        Raises:
            ConfigurationError: if the solution needs a data module but there is none.
        """
        if self.linear and self.initialization == "least_squares":
            purpose = "with `initialization: least_squares`, which reads all training data,"
            data = require_rows(data, purpose, "Train with one, or use `initialization: zeros`.")
            self.start_from(data.fetch("train", 0, torch.arange(data.size("train"))))

    @torch.no_grad()
    def start_from(self, batch: Batch) -> None:
        """Set the weights to the (weighted) least-squares solution of the rows of a batch.

        Raises:
            ConfigurationError: for a model that is not linear, or rows of another width.
        """
        if not self.linear:
            raise ConfigurationError("Expected a linear model for a least-squares solution but got `network`. Leave it out.")
        check_entries(batch, self.in_features)
        features, target = batch["features"].double(), batch["target"].double()
        if "weight" in batch:
            root = batch["weight"].double().sqrt()
            features, target = features * root.unsqueeze(1), target * root
        solution = torch.linalg.lstsq(features, target.unsqueeze(1), driver="gelsd").solution
        self.network.load_state_dict({"weight": solution.mT.float()})

    def forward(self, features: Tensor) -> Tensor:
        """Return predictions (B,) for features (B, D)."""
        if self.linear:
            check_columns(features, self.in_features)
        takes, shapes = f"features {tuple(features.shape)}", [(len(features), 1), (len(features),)]
        return ask(self.network, "network", takes, "predictions", shapes, features).reshape(len(features))

    @override
    def configure_predictor(self) -> nn.Module:
        return self.network

    @override
    def configure_metrics(self, stage: Stage) -> dict[str, Metric]:
        return mean_metrics("loss") | ({} if stage == "train" else {"log_mean_exp": LogMeanExp(self.lam)})

    @override
    def step(self, batch: Batch, batch_idx: int, stage: Stage) -> StepOutput:
        check_entries(batch, self.in_features)
        target = batch["target"]

        def losses_at(features: Tensor) -> Tensor:
            errors: Tensor = self(features) - target
            return errors.square()

        features, cost = self.perturbed(losses_at, batch["features"], stage)
        losses = losses_at(features)
        if stage != "train":
            self.stage_metrics(stage)["log_mean_exp"].update(losses)
        return StepOutput(losses, transport_cost=cost)

    def predict_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        """Return the predictions for a batch as a dict: ``index`` (B,) and the ``prediction`` (B,)."""
        return {"index": batch["index"], "prediction": self(batch["features"])}
