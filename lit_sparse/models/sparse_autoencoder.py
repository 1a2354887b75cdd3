"""Sparse auto-encoder: a dictionary of directions, learned on the activations of another network."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf
from torchmetrics import Metric
from typing_extensions import override

from lit_sparse.checks import FEATURES, INPUTS, Count, Number, check_result, ranges
from lit_sparse.errors import ConfigurationError, DataError
from lit_sparse.ground.distributed import reduce, world_size
from lit_sparse.lightning.choice import OptimizerCallable
from lit_sparse.mappings import SparseMapping
from lit_sparse.mappings.base import check_mapping
from lit_sparse.mappings.functional import hard_threshold
from lit_sparse.metrics import DeadFraction, ExplainedVariance
from lit_sparse.models.base import Batch, LitSparseModule, Stage, StepOutput, mean_metrics
from lit_sparse.models.data_protocols import check_columns, check_keys, require_rows
from lit_sparse.nn.inputs import check_input

__all__ = ["SparseAutoencoder"]

#: Number of examples for the geometric median, and of iterations of Weiszfeld's algorithm.
SAMPLE, ITERATIONS = 4096, 100


@ranges(in_features=INPUTS, width=FEATURES, dead_after=Count(), auxiliary_weight=Number(0.0, 1e3))
class SparseAutoencoder(LitSparseModule):
    r"""Sparse auto-encoder that reconstructs a network's activations as sparse combinations of learned directions.

    Activations x are centered and scaled to a mean square of one, :math:`z = (x - b) / s`. The encoder's scores and the
    activity are

    .. math:: u = W z + c, \qquad p = f(u), \qquad y = p \, \langle u, p \rangle_+ / \langle p, p \rangle

    where f is the mapping, so y is the point nearest to the scores on the ray through f(u). It is f(u) itself for mappings
    that keep scores, such as ``HardThreshold``; for mappings onto the simplex or a sphere, this restores the magnitude. The
    reconstruction is ``x' = s D^T y + b``. The rows of D, the dictionary, have unit norm.

    The loss of an example is the mean of ``(x - x')^2 / s^2``, close to the fraction of variance that is not explained.
    Units that were inactive for ``dead_after`` examples get an auxiliary loss, with which their largest scores reconstruct
    the residual of the others. A mapping with a ``penalty``, as ``JumpReLU`` has, adds it to the objective.

    The decoder's bias b is initialized to the geometric median of training examples, and the encoder to the dictionary.

    Logged are ``l0``, the mean number of active units, and in validation and test ``explained_variance`` and
    ``dead_fraction``, the fraction of units that are active for none of the examples.

    Batches are dicts of ``features`` (B, D) and ``index`` (B,).

    Args:
        mapping: f, over the last dimension.
        in_features: D, dimension of an activation.
        width: number of units.
        dead_after: number of training examples without activity after which a unit is dead.
        auxiliary_weight: weight of the auxiliary loss.
        optimizer: constructor of the optimizer from the parameters.
        options: risk, learning rate scheduler and initial weights; see :class:`LitSparseModule`.

    Raises:
        ConfigurationError: for an argument outside its range, or a mapping over another dimension.

    Source: Bricken et al. (2023), Towards Monosemanticity. Gao et al. (2024), Scaling and Evaluating Sparse Autoencoders,
    for the auxiliary loss.

    Example:
        >>> import torch
        >>> from lit_sparse.mappings import HardThreshold
        >>> model = SparseAutoencoder(
        ...     HardThreshold(4, nonneg=True), in_features=16, width=64
        ... )
        >>> model.start_from(torch.randn(200, 16))
        >>> int((model.encode(torch.randn(3, 16)) != 0).sum())
        12
    """

    scale: Tensor
    idle: Tensor
    started: Tensor

    def __init__(
        self,
        mapping: SparseMapping,
        *,
        in_features: int,
        width: int,
        dead_after: int = 100_000,
        auxiliary_weight: float = 1 / 32,
        optimizer: OptimizerCallable = torch.optim.Adam,
        **options: Any,
    ) -> None:
        super().__init__(optimizer=optimizer, **options)
        check_mapping(mapping)
        if getattr(mapping, "dim", -1) != -1:
            raise ConfigurationError(f"Expected `mapping` over the last dimension but got {mapping!r}. Set its dim to -1.")
        self.mapping, self.in_features, self.width = mapping, in_features, width
        self.dead_after, self.auxiliary_weight = dead_after, auxiliary_weight
        self.encoder = nn.Linear(in_features, width)
        self.decoder = nn.Parameter(nnf.normalize(torch.randn(width, in_features), dim=-1))
        self.bias = nn.Parameter(torch.zeros(in_features))
        with torch.no_grad():
            self.encoder.weight.copy_(self.decoder)
            self.encoder.bias.zero_()
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("idle", torch.zeros(width, dtype=torch.int64))
        self.register_buffer("started", torch.zeros((), dtype=torch.bool))

    @property
    def dictionary(self) -> Tensor:
        """Dictionary (width, D): the learned directions of the units, with unit norm."""
        return nnf.normalize(self.decoder, dim=-1)

    @torch.no_grad()
    def start_from(self, examples: Tensor) -> None:
        """Set the decoder's bias and the scale of activations, given training examples.

        Args:
            examples: (N, D) training examples.

        Raises:
            ConfigurationError: for examples of another shape, or not floating.
            DataError: if they are not finite, or all equal.
        """
        check_input("examples", examples, ("N", self.in_features), None)
        examples = examples.double()
        median = geometric_median(examples)
        scale = (examples - median).square().mean().sqrt()
        if not 0 < float(scale) < torch.inf:
            raise DataError(
                f"Expected finite activations that differ but got a mean deviation of {float(scale)}. Check the data."
            )
        self.bias.copy_(median)
        self.scale.copy_(scale)
        self.started.fill_(True)

    def initialize(self, data: Any) -> None:
        """Set the decoder's bias and the scale of activations from the training data, unless they were set or loaded before.

        Raises:
            ConfigurationError: without a data module.
        """
        if self.started:
            return
        data = require_rows(data, "for the initial weights", "Use one, or call `model.start_from(rows)`.")
        order = torch.randperm(data.size("train"))[:SAMPLE].sort().values
        self.start_from(self._features(data.fetch("train", 0, order)))

    def scores(self, features: Tensor) -> Tensor:
        """Return the scores u (B, width) of activations (B, D)."""
        check_input("features", features, ("...", self.in_features), None)  # other dtypes are promoted
        scores: Tensor = self.encoder((features - self.bias) / self.scale)
        return scores

    def encode(self, features: Tensor) -> Tensor:
        """Return the activity y (B, width) for activations (B, D)."""
        return self._activity(self.scores(features))

    def decode(self, activity: Tensor) -> Tensor:
        """Return the reconstructions (B, D) of activity (B, width)."""
        check_input("activity", activity, ("...", self.width), self.decoder)
        return self.scale * (activity @ self.dictionary) + self.bias

    def forward(self, features: Tensor) -> Tensor:
        """Return the reconstructions (B, D) of activations (B, D)."""
        return self.decode(self.encode(features))

    def _activity(self, scores: Tensor) -> Tensor:
        p = check_result(self.mapping, "forward", self.mapping(scores), scores.shape)
        if self.mapping.keeps_scores:
            return p
        product, square = (scores * p).sum(-1, keepdim=True), p.square().sum(-1, keepdim=True)
        return p * (product.clamp_min(0) / square.clamp_min(torch.finfo(p.dtype).tiny))

    @override
    def configure_metrics(self, stage: Stage) -> dict[str, Metric]:
        means = mean_metrics("loss", "l0")
        if stage == "train":
            return means
        return means | {"explained_variance": ExplainedVariance(self.in_features), "dead_fraction": DeadFraction(self.width)}

    @override
    def step(self, batch: Batch, batch_idx: int, stage: Stage) -> StepOutput:
        features = self._features(batch)
        scores = self.scores(features)
        activity = self._activity(scores)
        reconstruction = self.decode(activity)
        residual = ((features - reconstruction) / self.scale).float()
        losses, penalty, artifacts = residual.square().mean(-1), None, {}
        active = activity.detach() != 0
        if stage == "train":
            losses = losses + self._auxiliary_losses(scores, residual.detach())
            self._count_idle(active)
            if callable(own := getattr(self.mapping, "penalty", None)):
                penalty = own(scores)
        else:
            metrics = self.stage_metrics(stage)
            metrics["explained_variance"].update(features, reconstruction)
            metrics["dead_fraction"].update(activity)
            artifacts = {"activity": activity.detach(), "index": batch["index"]}
        size = active.sum(-1)
        counts: dict[str, Any] = {"support_size": size, "num_allowed": torch.full_like(size, self.width)}
        return StepOutput(losses, penalty=penalty, per_example={"l0": size.float()}, artifacts=artifacts, **counts)

    def _features(self, batch: Batch) -> Tensor:
        check_keys(batch, ["features"], "Use an ActivationDataModule.")
        features: Tensor = batch["features"]
        check_columns(features, self.in_features)
        return features.to(self.bias.dtype)

    def _auxiliary_losses(self, scores: Tensor, residual: Tensor) -> Tensor | float:
        """Return the auxiliary losses (B,): errors of the dead units' reconstruction of the residual (B, D)."""
        dead = (self.idle >= self.dead_after).nonzero().flatten()
        if not len(dead) or not self.auxiliary_weight:
            return 0.0
        activity = hard_threshold(scores[:, dead], max(1, self.in_features // 2), nonneg=True)
        return self.auxiliary_weight * (residual - activity @ self.dictionary[dead]).float().square().mean(-1)

    @torch.no_grad()
    def _count_idle(self, active: Tensor) -> None:
        """Count, for each unit, the examples of all processes since it was last active."""
        self.idle += len(active) * world_size()
        self.idle.masked_fill_(reduce(active.any(0).long()) > 0, 0)

    def predict_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        """Return the predictions for a batch as a dict: ``index`` (B,) and the ``activity`` (B, width)."""
        return {"index": batch["index"], "activity": self.encode(self._features(batch))}


def geometric_median(points: Tensor) -> Tensor:
    """Return the point (D,) with the least sum of distances to points (N, D), by Weiszfeld's algorithm."""
    median = points.mean(0)
    for _ in range(ITERATIONS):
        weights: Tensor = 1 / torch.linalg.vector_norm(points - median, dim=1).clamp_min(1e-12)
        moved: Tensor = weights @ points / weights.sum()
        if float((moved - median).norm()) <= 1e-9 * float(median.norm()):
            return moved
        median = moved
    return median
