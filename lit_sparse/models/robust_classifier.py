"""Image classifier that minimizes any risk, for example one that is robust to wrong labels."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from torch import Tensor, nn
from torch.nn import functional as nnf
from torchmetrics import Metric
from typing_extensions import override

from lit_sparse.checks import CLASSES, INPUTS, ranges
from lit_sparse.errors import ConfigurationError
from lit_sparse.models.base import Batch, LitSparseModule, Stage, StepOutput, mean_metrics
from lit_sparse.models.data_protocols import ask, check_features, check_keys, check_labels, rows_of
from lit_sparse.nn import ConvNet

__all__ = ["RobustClassifier"]


@ranges(in_features=INPUTS, classes=CLASSES)
class RobustClassifier(LitSparseModule):
    """Image classifier that minimizes a risk of the cross-entropies, for example one that is robust to wrong labels.

    Logged are ``loss``, the mean cross-entropy in nats, ``accuracy`` for the given labels and, for data with label noise,
    ``clean_accuracy`` for the true labels. In training they are measured on the images that the risk has perturbed.

    Batches are dicts of ``pixels`` (B, D), ``label`` (B,), -100 if unlabelled, ``index`` (B,) and, with noise,
    ``true_label`` (B,). Unlabelled examples are ignored.

    Args:
        network: module from images (B, D) to scores (B, classes); None for the paper's :class:`lit_sparse.nn.ConvNet` for
            28 x 28 pixels.
        in_features: D, number of pixels.
        classes: number of classes.
        options: risk, optimizer, learning rate scheduler and initial weights; see :class:`LitSparseModule`.

    Raises:
        ConfigurationError: for a number below 1, or images that the network does not accept.

    Source: Gladin, Kroshnin, Zhu & Dvurechensky (2025), Improved Stochastic Optimization of LogSumExp, arXiv:2509.24894,
    section 3.3.

    Example:
        >>> import torch
        >>> from lit_sparse.risks import UnbalancedOTDRO
        >>> model = RobustClassifier(risk=UnbalancedOTDRO(1.0, 1.0, 0.1))
        >>> model(torch.rand(3, 784)).shape
        torch.Size([3, 10])
    """

    monitor: ClassVar[tuple[str, Literal["min", "max"]]] = ("val/accuracy", "max")
    adversarial: ClassVar[bool] = True

    def __init__(
        self,
        *,
        network: nn.Module | None = None,
        in_features: int = 784,
        classes: int = 10,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.in_features, self.classes = in_features, classes
        if network is None and in_features != 784:
            raise ConfigurationError(
                f"Expected argument `network` for images of {in_features} pixels but got the default for 28 x 28 pixels. For"
                " 8 x 8 use ConvNet(8, 8, channels=[32])."
            )
        self.network = ConvNet(outputs=classes) if network is None else network

    def forward(self, pixels: Tensor) -> Tensor:
        """Return scores (B, classes) of images (B, D)."""
        check_features(pixels, self.in_features)
        takes = f"images {tuple(pixels.shape)}"
        return ask(self.network, "network", takes, "scores", [(len(pixels), self.classes)], pixels)

    def class_scores(self, batch: Batch) -> Tensor:
        """Return the scores (B, classes) of a batch's examples, for :class:`lit_sparse.callbacks.OptimalBrainDamage`."""
        scores: Tensor = self(batch["pixels"])
        return scores

    @override
    def configure_predictor(self) -> nn.Module:
        return self.network

    @override
    def configure_metrics(self, stage: Stage) -> dict[str, Metric]:
        return mean_metrics("loss", "accuracy", "clean_accuracy")

    @override
    def step(self, batch: Batch, batch_idx: int, stage: Stage) -> StepOutput:
        rows = self._labelled(batch)
        batch = batch if rows is None else rows_of(batch, rows)
        label = check_labels(batch["label"], self.classes)

        def losses_at(pixels: Tensor) -> Tensor:
            return nnf.cross_entropy(self(pixels), label, reduction="none")

        pixels, cost = self.perturbed(losses_at, batch["pixels"], stage)
        scores = self(pixels)
        losses = nnf.cross_entropy(scores, label, reduction="none")
        predicted = scores.detach().argmax(-1)
        per_example = {"accuracy": (predicted == label).float()}
        if "true_label" in batch:
            per_example["clean_accuracy"] = (predicted == batch["true_label"]).float()
        return StepOutput(losses, example_index=rows, transport_cost=cost, per_example=per_example)

    def predict_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        """Return the predictions for a batch as a dict: ``index`` (B,), ``predicted`` (B,), and ``probs`` (B, classes)."""
        probs = self(batch["pixels"]).softmax(-1)
        return {"index": batch["index"], "predicted": probs.argmax(-1), "probs": probs}

    def _labelled(self, batch: Batch) -> Tensor | None:
        """Return the positions of the labelled examples of a batch, or None if all are labelled."""
        check_keys(
            batch, ["pixels", "label"], "Use a data module of images, or BayesianRegression with `fit: map` for a table."
        )
        label = batch["label"]
        if bool((label >= 0).all()):
            return None
        if not bool((label >= 0).any()):
            raise ConfigurationError("Expected labelled images but got none in this batch. Set the data's `labelled: 1.0`.")
        rows: Tensor = (label >= 0).nonzero().flatten()
        return rows
