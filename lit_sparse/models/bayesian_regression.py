"""Bayesian regression, fitted on minibatches of all examples or of a weighted coreset."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torchmetrics import Metric
from typing_extensions import override

from lit_sparse.checks import EXAMPLES, INPUTS, MOST, POSITIVE, SEED, Count, Number, check_result, ranges
from lit_sparse.coresets import GaussianPosterior, Likelihood, LogisticLikelihood
from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.distributed import reduce
from lit_sparse.models.base import Batch, LitSparseModule, Stage, StepOutput, mean_metrics
from lit_sparse.models.data_protocols import check_columns, check_entries, has_rows, require_rows
from lit_sparse.nn.inputs import check_input
from lit_sparse.random import seeded_normal
from lit_sparse.risks import Mean

__all__ = ["BayesianRegression"]


@ranges(
    in_features=INPUTS,
    prior_mean=Number(-MOST, MOST),
    prior_variance=POSITIVE,
    num_samples=EXAMPLES,
    examples=Count(),
    sample_seed=SEED,
)
class BayesianRegression(LitSparseModule):
    """Bayesian regression with a linear predictor, fitted on mini-batches of all examples or of a weighted coreset.

    The coefficients theta have a normal prior.

    With the log-likelihoods L_i of N examples and optional weights w_i of a coreset, the loss of a mini-batch is an
    estimate, in nats per example, of

    - ``-(sum_i w_i L_i(theta) + log prior(theta)) / N``, for ``fit="map"`` and ``"laplace"``. The latter then uses the
      Hessian of N times this loss at the coefficients as the precision of a normal posterior. It is computed before each
      validation, for each checkpoint and at the end of training.
    - ``(KL(q || prior) - sum_i w_i E_q L_i) / N`` for ``"variational"``, where q is normal with a full covariance. The
      expectation uses samples of the predictor's normal distribution.

    Logged are ``nll`` of the posterior predictive distribution in validation and test, ``squared_error`` of the predicted
    mean, and ``accuracy`` for two classes.

    Batches are dicts of ``features`` (B, D), ``target`` (B,) and ``index`` (B,).

    Args:
        likelihood: distribution of a target, given the predictor.
        in_features: D, including the intercept's constant feature.
        fit: ``"map"`` for the most probable coefficients, ``"laplace"`` or ``"variational"`` for a normal distribution.
        prior_mean: prior mean of each coefficient.
        prior_variance: prior variance of each coefficient.
        num_samples: number of samples of the predictor per example.
        examples: N; None for the number in the data module.
        sample_seed: seed of samples in validation, test and prediction.
        options: risk, optimizer, learning rate scheduler and initial weights; see :class:`LitSparseModule`.

    Raises:
        ConfigurationError: for an argument outside its range, or Laplace's approximation with a risk.

    Source: Zhang et al. (2021), Bayesian Coresets: Revisiting the Nonconvex Optimization Perspective, section 5, for the
    models; MacKay (1992), A Practical Bayesian Framework for Backpropagation Networks, for Laplace's approximation.

    Example:
        >>> from lit_sparse.coresets import NormalLikelihood
        >>> model = BayesianRegression(NormalLikelihood(), in_features=3)
        >>> model(torch.randn(5, 3)).shape, model.posterior().mean.shape
        (torch.Size([5]), torch.Size([3]))
    """

    def __init__(
        self,
        likelihood: Likelihood,
        *,
        in_features: int,
        fit: Literal["map", "laplace", "variational"] = "laplace",
        prior_mean: float = 0.0,
        prior_variance: float = 1.0,
        num_samples: int = 100,
        examples: int | None = None,
        sample_seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if fit == "laplace" and not isinstance(self.risk, Mean):
            raise ConfigurationError(
                f"Expected no risk with `fit: laplace` but got {type(self.risk).__name__}. Use `fit: map` with a risk."
            )
        self.likelihood = likelihood
        self._classes = isinstance(likelihood, LogisticLikelihood)
        self.in_features, self.fit, self.prior_mean = in_features, fit, prior_mean
        self.prior_variance, self.num_samples, self.examples = prior_variance, num_samples, examples
        self.sample_seed = sample_seed
        self.mean = nn.Parameter(torch.full((in_features,), self.prior_mean))
        if fit == "variational":
            self.factor = nn.Parameter(torch.eye(in_features) * math.sqrt(self.prior_variance))
        elif fit == "laplace":
            self.covariance: Tensor
            self.register_buffer("covariance", torch.eye(in_features) * self.prior_variance)

    @property
    def prior(self) -> GaussianPosterior:
        """Prior distribution of the coefficients."""
        return GaussianPosterior.isotropic(self.in_features, self.prior_variance, self.prior_mean)

    def posterior(self) -> GaussianPosterior:
        """Return the posterior distribution of the coefficients, in float64.

        Raises:
            ConfigurationError: with ``fit="map"``, which does not compute a distribution.
        """
        if self.fit == "map":
            raise ConfigurationError(
                "Expected a fit with a covariance but got `fit: map`. Use `fit: laplace` or `fit: variational`."
            )
        return GaussianPosterior(self.mean.detach().double(), self._covariance().detach().double())

    def forward(self, features: Tensor) -> Tensor:
        """Return the predictor (B,) at the mean of the coefficients, for features (B, D)."""
        check_columns(features, self.in_features)
        check_input("features", features, ("...", self.in_features), self.mean)
        return features @ self.mean

    @override
    def configure_metrics(self, stage: Stage) -> dict[str, Metric]:
        return mean_metrics("loss", "nll", "squared_error", *(["accuracy"] if self._classes else []))

    @override
    def step(self, batch: Batch, batch_idx: int, stage: Stage) -> StepOutput:
        check_entries(batch, self.in_features)
        features, target = batch["features"], batch["target"]
        if batch_idx == 0:
            self.likelihood.check(target)  # only once per epoch, because it synchronizes the GPU
        eta = self(features)
        penalty = None
        if stage == "train":
            drawn = eta.unsqueeze(1)
            if self.fit == "variational":
                noise = torch.randn(len(eta), self.num_samples, device=eta.device, dtype=eta.dtype)
                drawn = drawn + self._deviation(features).unsqueeze(1) * noise
            found = self.likelihood.log_prob(drawn, target.unsqueeze(1))
            nll = -check_result(self.likelihood, "log_prob", found, drawn.shape).mean(1)
            penalty = self._penalty() / self._size(len(target))
        else:
            nll = self._predictive_nll(features, eta, target, batch["index"])
        mean = check_result(self.likelihood, "mean", self.likelihood.mean(eta.detach()), eta.shape)
        wanted = (target > 0).to(mean.dtype) if self._classes else target
        per_example = {"nll": nll, "squared_error": (mean - wanted).square()}
        if self._classes:
            per_example["accuracy"] = (mean > 0.5).eq(wanted > 0).to(mean.dtype)
        return StepOutput(nll, penalty=penalty, per_example=per_example)

    def predict_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        """Return the predictions for a batch as a dict: ``index``, the target's ``mean``, and ``eta`` with its deviation.

        All have shape (B,); ``eta`` is the linear predictor and ``eta_std`` its standard deviation.
        """
        features = batch["features"]
        eta = self(features)
        deviation = torch.zeros_like(eta) if self.fit == "map" else self._deviation(features)
        mean = check_result(self.likelihood, "mean", self.likelihood.mean(eta), eta.shape)
        return {"index": batch["index"], "mean": mean, "eta": eta, "eta_std": deviation}

    def on_validation_epoch_start(self) -> None:
        """Compute the posterior's precision for Laplace's approximation before each validation."""
        super().on_validation_epoch_start()
        if self.fit == "laplace" and self.trainer.state.fn == "fit" and not self.trainer.sanity_checking:
            self.find_covariance()

    def on_train_end(self) -> None:
        """Compute the posterior's precision for Laplace's approximation at the final coefficients."""
        super().on_train_end()
        if self.fit == "laplace":
            self.find_covariance()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Store the posterior's precision at the stored coefficients."""
        super().on_save_checkpoint(checkpoint)
        if self.fit == "laplace" and self._trainer is not None and self._trainer.training:
            self.find_covariance()
            checkpoint["state_dict"]["covariance"] = self.covariance.clone()

    @torch.no_grad()
    def find_covariance(self) -> None:
        """Set the posterior's precision to the negative Hessian of all training examples at the coefficients.

        Raises:
            ConfigurationError: without a data module of this package.
        """
        purpose = "with `fit: laplace`, which reads all training data,"
        data = require_rows(getattr(self.trainer, "datamodule", None), purpose, "Train with one.")
        share = torch.arange(data.size("train"))[self.global_rank :: self.trainer.world_size]
        precision = torch.zeros(self.in_features, self.in_features, dtype=torch.float64, device=self.device)
        for start in range(0, len(share), 4096):
            batch = data.fetch("train", 0, share[start : start + 4096])
            features, target = (batch[name].to(self.device).double() for name in ("features", "target"))
            _, second = self.likelihood.derivatives(features @ self.mean.double(), target)
            weights = batch["weight"].to(self.device).double() if "weight" in batch else torch.ones_like(second)
            precision -= features.mT @ ((weights * second).unsqueeze(1) * features)
        precision = reduce(precision)
        precision *= self._size(0) / data.size("train")  # the weights have the scale of a mean over the coreset
        precision += torch.eye(self.in_features).to(precision) / self.prior_variance
        posterior = GaussianPosterior.from_precision(precision, torch.zeros_like(precision[0]))
        self.covariance.copy_(posterior.covariance)

    def _covariance(self) -> Tensor:
        if self.fit == "laplace":
            return self.covariance
        factor = self.factor.tril()
        return factor @ factor.mT

    def _deviation(self, features: Tensor) -> Tensor:
        """Return the standard deviation (B,) of the predictor."""
        if self.fit == "variational":
            deviation: Tensor = torch.linalg.vector_norm(features @ self.factor.tril(), dim=1)
            return deviation
        return ((features @ self._covariance()) * features).sum(1).clamp_min(0).sqrt()

    def _predictive_nll(self, features: Tensor, eta: Tensor, target: Tensor, index: Tensor) -> Tensor:
        """Return the negative log-likelihood (B,) of targets over samples of the predictor, a function of (seed, index)."""
        drawn = eta.unsqueeze(1)
        if self.fit != "map":
            noise = seeded_normal(self.sample_seed, index, (self.num_samples,)).to(eta)
            drawn = drawn + self._deviation(features).unsqueeze(1) * noise
        return math.log(drawn.shape[1]) - self.likelihood.log_prob(drawn, target.unsqueeze(1)).logsumexp(1)

    def _penalty(self) -> Tensor:
        """Return the prior's term in the loss of all examples."""
        away = (self.mean - self.prior_mean).square().sum() / self.prior_variance
        if self.fit != "variational":
            return 0.5 * away
        factor = self.factor.tril()
        scale = factor.square().sum() / self.prior_variance
        log_det = factor.diagonal().square().clamp_min(1e-30).log().sum() - self.in_features * math.log(self.prior_variance)
        return 0.5 * (away + scale - self.in_features - log_det)

    def _size(self, default: int) -> int:
        """Return N."""
        if self.examples is not None:
            return self.examples
        data = getattr(self._trainer, "datamodule", None)
        if data is not None and (coreset := getattr(data, "coreset", None)) is not None:
            return int(coreset.size)
        return int(data.size("train")) if has_rows(data) else default
