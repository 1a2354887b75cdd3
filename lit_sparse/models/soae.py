"""Supervised online auto-encoder (Thom & Palm 2013): a classifier with sparse activity and optional sparse connectivity."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf
from torchmetrics import Metric
from typing_extensions import override

from lit_sparse.checks import CLASSES, FEATURES, INPUTS, Number, check_result, ranges
from lit_sparse.errors import ConfigurationError, full_name
from lit_sparse.lightning.choice import OptimizerCallable, rank_zero_info
from lit_sparse.mappings import SparseMapping
from lit_sparse.models.base import Batch, LitSparseModule, Stage, StepOutput, mean_metrics
from lit_sparse.models.data_protocols import check_features, check_keys, check_labels, require_rows
from lit_sparse.nn import InitialBases, SampleBases, sparse_decode, sparse_encode
from lit_sparse.nn.inputs import check_input

__all__ = ["SupervisedOnlineAutoencoder"]

#: How many images of a batch are drawn.
DRAWN = 16


@dataclass(frozen=True)
class _Evaluation:
    """Outputs of the model for a batch.

    Attributes:
        activity: (B, width) hidden units.
        scores: (B, classes) scores of the classes.
        nll: (B,) cross-entropy.
        losses: (B,) losses.
        made: (B, D) reconstructions, if they are trained.
        correlation: (B,) correlation of reconstruction and input.
    """

    activity: Tensor
    scores: Tensor
    nll: Tensor
    losses: Tensor
    made: Tensor | None
    correlation: Tensor | None


@ranges(in_features=INPUTS, width=FEATURES, classes=CLASSES, supervision_epochs=Number(0.0, 1e6), output_std=Number(0.0, 1e3))
class SupervisedOnlineAutoencoder(LitSparseModule):
    """Classifier with one hidden layer whose units also reconstruct the input, with sparse activity.

    The model has hidden units ``h = f(W^T x)`` with a transfer function f, a reconstruction ``W h`` by the same weights,
    and probabilities ``softmax(W_out^T h + theta)`` of the classes. The loss of an example is

        (1 - alpha) (1 - correlation(W h, x)) + alpha cross_entropy,    alpha = 1 - exp(-epoch / supervision_epochs)

    so that training begins with an auto-encoder and ends with a classifier. A Hoyer projection as f fixes the sparseness of
    the activity (SOAE-sigma), and a hard threshold fixes the number of active units (SOAE-L0). With tanh and
    ``supervision_epochs=0`` the model is a multi-layer perceptron. :class:`lit_sparse.callbacks.SparseConnectivity` on
    ``encoder`` makes the bases, the columns of W or rows of ``encoder.weight``, sparse.

    Logged are ``accuracy``, ``nll``, the cross-entropy in nats, ``correlation`` of reconstruction and input if it is
    trained, and the number of active units as support sizes.

    Batches are dicts of ``pixels`` (B, D), ``label`` (B,), -100 if unlabelled, and ``index`` (B,).

    Args:
        mapping: transfer function f over the last dimension: a mapping, another module such as ``torch.nn.Tanh``, or None
            for the identity.
        in_features: D, number of input features.
        width: number of hidden units.
        classes: number of classes.
        initial_bases: initialization of the bases; None for random training examples of unit norm.
        supervision_epochs: number of epochs after which the classifier has 63 % of the loss; 0 for all of it from the
            start.
        output_std: standard deviation of the Gaussian initialization of W_out and theta.
        sparse_gradient: whether the bases get a sparse gradient, only for active units. It is faster if few units are
            active in a batch, e.g. with one example per update. It needs ``torch.optim.SGD`` without momentum and weight
            decay, and allows neither gradient clipping nor several processes.
        optimizer: constructor of the optimizer from the parameters.
        options: risk, learning rate scheduler and initial weights; see :class:`LitSparseModule`.

    Raises:
        ConfigurationError: for an argument outside its range, a mapping over another dimension, or a sparse gradient
            without a sparse mapping, with several processes, with clipping, or with an optimizer that has a state.

    Source: Thom & Palm (2013), Sparse Activity and Sparse Connectivity in Supervised Learning, section 4. In the paper,
    alpha begins at zero, rises slowly and tends to one, without a formula.

    Example:
        >>> import torch
        >>> from lit_sparse.mappings import HoyerProjection
        >>> model = SupervisedOnlineAutoencoder(
        ...     HoyerProjection(0.8), in_features=64, width=100
        ... )
        >>> model.start_from(torch.rand(200, 64))
        >>> model(torch.rand(3, 64)).shape
        torch.Size([3, 10])
    """

    monitor: ClassVar[tuple[str, Literal["min", "max"]]] = ("val/accuracy", "max")
    adversarial: ClassVar[bool] = True

    def __init__(
        self,
        mapping: nn.Module | None,
        *,
        in_features: int = 784,
        width: int = 1000,
        classes: int = 10,
        initial_bases: InitialBases | None = None,
        supervision_epochs: float = 10.0,
        output_std: float = 0.01,
        sparse_gradient: bool = False,
        optimizer: OptimizerCallable = torch.optim.SGD,
        **options: Any,
    ) -> None:
        super().__init__(optimizer=optimizer, **options)
        self.supervision_epochs = supervision_epochs
        if getattr(mapping, "dim", -1) not in (-1, 1):
            raise ConfigurationError(f"Expected `mapping` over the last dimension but got {mapping!r}. Set its dim to -1.")
        self.mapping, self.in_features, self.width, self.classes = mapping, in_features, width, classes
        self.initial_bases = SampleBases() if initial_bases is None else initial_bases
        self.output_std = output_std
        if sparse_gradient and not isinstance(mapping, SparseMapping):
            raise ConfigurationError(
                f"Expected a sparse mapping with `sparse_gradient` but got {mapping!r}. Leave out `sparse_gradient`."
            )
        self.sparse_gradient = sparse_gradient
        self.encoder = nn.Linear(in_features, width, bias=False)
        self.output = nn.Linear(width, classes)
        with torch.no_grad():
            for parameter in self.output.parameters():
                parameter.normal_(0.0, self.output_std)
        self._started = False
        #: Training epoch of the weights, which also determines alpha in evaluation.
        self._epoch = 0
        self.register_load_state_dict_post_hook(_keep_loaded)  # type: ignore[no-untyped-call]
        if self.initial_bases.examples(width) == 0:
            self.start_from(torch.zeros(0, in_features))

    @property
    def bases(self) -> Tensor:
        """The bases (width, D), the columns of W, which are also the input weights of the hidden units."""
        return self.encoder.weight

    @property
    def alpha(self) -> float:
        """Weight of the classification loss, in this epoch of training or in the epoch of the checkpoint."""
        return 1.0 if self.supervision_epochs == 0 else -math.expm1(-self._epoch / self.supervision_epochs)

    @torch.no_grad()
    def start_from(self, examples: Tensor) -> None:
        """Set the initial bases, given training examples.

        Args:
            examples: (N, D) distinct training examples in random order; see :meth:`InitialBases.examples`.

        Raises:
            DataError: if there are too few examples.
            ConfigurationError: for examples of another shape, or if ``initial_bases`` does not return bases.
        """
        check_features(examples, self.in_features)
        check_input("examples", examples, ("N", self.in_features), None)
        generator = torch.Generator().manual_seed(int(torch.randint(2**62, ())))
        drawn = self.initial_bases(examples.detach().float().cpu(), self.width, generator)
        check_result(self.initial_bases, "forward", drawn, self.encoder.weight.shape)
        if not bool(drawn.isfinite().all()):
            raise ConfigurationError(f"Expected finite bases from {full_name(self.initial_bases)} but got NaN or infinities.")
        self.encoder.weight.copy_(drawn)
        self._started = True

    def initialize(self, data: Any) -> None:
        """Set the initial bases from the training data, unless they were set or loaded before.

        Raises:
            ConfigurationError: if the bases need a data module but there is none, or one without images.
        """
        if self._started:
            return
        remedy = "Use one, call `model.start_from(examples)` first, or use `initial_bases: NoiseBases`."
        data = require_rows(data, f"for {type(self.initial_bases).__name__}", remedy)
        size = data.size("train")
        number = min(size, self.initial_bases.examples(self.width))
        order = torch.randperm(size)[:number].sort().values
        batch = data.fetch("train", 0, order)
        check_keys(batch, ["pixels"], "Use a data module of images.")
        self.start_from(batch["pixels"][torch.randperm(number)])

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Store the epoch of the weights, because the epoch in Lightning's checkpoint is the next one after training."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["trained_epoch"] = self._epoch

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the epoch of the weights."""
        self._started, self._epoch = True, int(checkpoint.get("trained_epoch", 0))
        super().on_load_checkpoint(checkpoint)

    def on_train_epoch_start(self) -> None:
        """Update the weights of the two loss terms for this epoch."""
        super().on_train_epoch_start()
        self._epoch = self.current_epoch

    def on_train_start(self) -> None:
        """Check that a sparse gradient can be used.

        Raises:
            ConfigurationError: if ``sparse_gradient`` cannot be used with the optimizer, the trainer or the
                mapping.
        """
        super().on_train_start()
        if self.sparse_gradient:
            optimizer = self.trainer.optimizers[0]
            hindrance = {
                "several processes": self.trainer.world_size > 1,
                "trainer.gradient_clip_val": bool(self.trainer.gradient_clip_val),
                "an optimizer other than torch.optim.SGD": not isinstance(optimizer, torch.optim.SGD),
                "momentum or weight decay": any(it.get("momentum") or it["weight_decay"] for it in optimizer.param_groups),
            }
            hindrances = [name for name, there in hindrance.items() if there]
            if hindrances:
                raise ConfigurationError(
                    f"Expected `sparse_gradient` alone but got {' and '.join(hindrances)} as well. Leave out one of them."
                )

    def encode(self, pixels: Tensor) -> Tensor:
        """Return the activity h (B, width) for examples (B, D)."""
        check_input("images", pixels, ("...", self.in_features), self.encoder.weight)
        sums = sparse_encode(pixels, self.bases) if self._goes_sparse else self.encoder(pixels)
        return sums if self.mapping is None else check_result(self.mapping, "forward", self.mapping(sums), sums.shape)

    def _activity(self, pixels: Tensor) -> Tensor:
        return check_result(self, "encode", self.encode(pixels), (*pixels.shape[:-1], self.width))

    @property
    def _goes_sparse(self) -> bool:
        return self.sparse_gradient and self.training and torch.is_grad_enabled()

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the logits (B, classes) for examples (B, D)."""
        scores: Tensor = self.output(self._activity(pixels))
        return scores

    def class_scores(self, batch: Batch) -> Tensor:
        """Return the scores (B, classes) of a batch's examples, for :class:`lit_sparse.callbacks.OptimalBrainDamage`."""
        scores: Tensor = self(batch["pixels"])
        return scores

    @override
    def configure_metrics(self, stage: Stage) -> dict[str, Metric]:
        return mean_metrics("loss", "accuracy", "nll", *(["correlation"] if self.supervision_epochs else []))

    @override
    def step(self, batch: Batch, batch_idx: int, stage: Stage) -> StepOutput:
        pixels, label = batch["pixels"], batch["label"]
        check_features(pixels, self.in_features)
        if batch_idx == 0 and len(label):  # only once per epoch, because it synchronizes the GPU
            self._check_labels(label, stage)
        label = label.long()
        pixels, cost = self.perturbed(lambda moved: self._evaluate(moved, label).losses, pixels, stage)
        output = self._evaluate(pixels, label)
        labelled = label >= 0  # the others have a cross-entropy of 0
        right = output.scores.detach().argmax(-1).eq(label)[labelled]
        per_example = {"accuracy": right.float(), "nll": output.nll[labelled]}
        artifacts = {}
        if output.made is not None and output.correlation is not None:
            per_example["correlation"] = output.correlation
            if stage != "train":
                artifacts = {"images": pixels[:DRAWN], "reconstructions": _as_bright(output.made[:DRAWN], pixels[:DRAWN])}
        active = output.activity.detach().ne(0).sum(-1)
        counts: dict[str, Any] = {"support_size": active, "num_allowed": torch.full_like(active, self.width)}
        return StepOutput(output.losses, transport_cost=cost, per_example=per_example, artifacts=artifacts, **counts)

    def _check_labels(self, label: Tensor, stage: Stage) -> None:
        """Check the labels (B,) of the first batch of an epoch, and report missing ones."""
        check_labels(label.cpu(), self.classes)
        missing = int((label < 0).sum())
        if stage == "train" and missing == len(label):
            raise ConfigurationError(
                "Expected labelled images to train on but got none in the first batch. Set the data's `labelled: 1.0`."
            )
        if stage == "train" and missing and self.current_epoch == 0:
            rank_zero_info(
                f"note: {missing} of the {len(label)} images of the first batch have no label. They train the reconstruction"
                " but not the classifier; set the data's `labelled: 1.0` to use all labels."
            )

    def _evaluate(self, pixels: Tensor, label: Tensor) -> _Evaluation:
        """Return the outputs and losses for examples (B, D) with labels (B,)."""
        activity, alpha = self._activity(pixels), self.alpha
        scores = self.output(activity)
        losses = nll = nnf.cross_entropy(scores, label.clamp_min(-1), ignore_index=-1, reduction="none")
        made = correlation = None
        if self.supervision_epochs > 0:
            made = sparse_decode(activity, self.bases) if self._goes_sparse else activity @ self.bases
            correlation = _correlation(made, pixels)
            losses = (1 - alpha) * (1 - correlation) + alpha * nll
        return _Evaluation(activity, scores, nll, losses, made, correlation)

    def predict_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        """Return the predictions for a batch as a dict: ``index`` (B,), ``predicted`` (B,), and ``probs`` (B, classes)."""
        probs = self(batch["pixels"]).softmax(-1)
        return {"index": batch["index"], "predicted": probs.argmax(-1), "probs": probs}


def _correlation(a: Tensor, b: Tensor) -> Tensor:
    """Return Pearson's correlation (B,) of rows (B, D); it is 0, without a gradient, for constant rows."""
    dtype = torch.promote_types(a.dtype, torch.float32)
    a, b = (_standard(rows.to(dtype)) for rows in (a, b))
    return (a * b).sum(-1)


def _standard(rows: Tensor) -> Tensor:
    """Shift and scale rows (B, D) to mean 0 and norm 1, or norm 0 if constant; squares do not underflow."""
    rows = rows - rows.mean(-1, keepdim=True)
    largest = rows.detach().abs().amax(-1, keepdim=True)
    varies = largest > 0
    rows = rows / torch.where(varies, largest, 1.0)
    squares = rows.square().sum(-1, keepdim=True)
    return rows * torch.where(varies, squares, 1.0).rsqrt() * varies


def _as_bright(made: Tensor, images: Tensor) -> Tensor:
    """Scale reconstructions (N, D) to the mean and deviation of the images, which correlation does not determine."""
    mean, std = images.mean(-1, keepdim=True), images.std(-1, keepdim=True)
    made = made - made.mean(-1, keepdim=True)
    return (mean + std * made / made.std(-1, keepdim=True).clamp_min(1e-12)).clamp(0, 1)


def _keep_loaded(model: SupervisedOnlineAutoencoder, keys: Any) -> None:
    """Mark the loaded bases, so that training does not draw new ones."""
    model._started |= not any(key.endswith("encoder.weight") for key in keys.missing_keys)
