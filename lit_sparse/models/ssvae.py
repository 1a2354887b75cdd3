"""Semi-supervised variational auto-encoder with a latent class (Kingma et al. 2014; Correia et al. 2020)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as nnf
from torchmetrics import Metric
from typing_extensions import override

from lit_sparse.checks import FEATURES, INPUTS, MOST_FEATURES, SEED, WIDTHS, Count, Number, check_tensor, ranges
from lit_sparse.errors import ConfigurationError
from lit_sparse.estimators import Estimator, LatentBatch
from lit_sparse.ground.distributed import world_size
from lit_sparse.mappings import FenchelYoungLoss, SparseMapping
from lit_sparse.models.base import Batch, LitSparseModule, Stage, StepOutput, mean_metrics
from lit_sparse.models.data_protocols import check_features, check_intensities, check_labels
from lit_sparse.nn import MLP, ClassPredictor
from lit_sparse.random import seeded_normal
from lit_sparse.risks import Mean

__all__ = ["SemiSupervisedVAE"]

#: Number of images of the first batch that are drawn.
DRAWN = 16


#: Rows to decode: images (R, D), their classes (R, K), one-hot or relaxed, and standard normal noise (R, H) of the style.
Rows: TypeAlias = tuple[Tensor, Tensor, Tensor]


@ranges(
    in_features=INPUTS,
    classes=FEATURES,
    style_features=Count(0, MOST_FEATURES),
    classifier_hidden=WIDTHS,
    inference_hidden=WIDTHS,
    generator_hidden=WIDTHS,
    unlabelled_weight=Number(0.0, math.inf, open_high=True),
    sample_seed=SEED,
)
class SemiSupervisedVAE(LitSparseModule):
    """Semi-supervised variational auto-encoder of images: the class of unlabelled images is summed out or sampled.

    A classifier scores the classes z of an image x, and a mapping turns scores into q(z|x). An inference network gives a
    Gaussian q(h|x, z) of a style h, and a generator gives the Bernoulli means of the pixels. For each class

        l(z) = -log p(x|z, h) + KL(q(h|x, z) || N(0, I)) + log K

    The loss of an unlabelled image is ``E_q l(z) - H(q(z|x))``. The loss of a labelled image is ``l(true z)`` plus the
    mapping's Fenchel-Young loss (cross-entropy for softmax, the sparsemax loss for sparsemax). Defaults are the paper's
    values, except that the inference network and the generator have two hidden layers, as in the released code.

    Batches are dicts of ``pixels`` (B, D), ``label`` (B,), -100 if unlabelled, and ``index`` (B,). In validation and
    test all images are treated as unlabelled, and the samples of h are a function of the index.

    Args:
        mapping: mapping from class scores to q(z|x).
        estimator: estimator of the expected loss, without a mapping.
        in_features: D, number of pixels.
        classes: K, number of classes.
        style_features: size of h.
        classifier_hidden: widths of the classifier's hidden layers.
        inference_hidden: widths of the inference network's hidden layers.
        generator_hidden: widths of the generator's hidden layers.
        unlabelled_weight: weight of the unlabelled images, all together, relative to the labelled ones; >= 0. For the mean,
            it is the factor of the mean unlabelled loss. For a risk, it is a weight of examples, not a factor of losses.
        sample_seed: seed of the samples of h in validation and test.
        options: risk, optimizer, learning rate scheduler and initial weights; see :class:`LitSparseModule`.

    Raises:
        ConfigurationError: if the mapping does not give probabilities, the estimator has another mapping, or a size or
            weight is out of its range.

    Source: Correia, Niculae, Aziz & Martins (2020), Efficient Marginalization of Discrete and Structured Latent Variables
    via Sparsity, section 5.1 and appendix.

    Example:
        >>> import torch
        >>> from lit_sparse.estimators import Marginalize
        >>> from lit_sparse.mappings import Sparsemax
        >>> model = SemiSupervisedVAE(Sparsemax(), Marginalize(), in_features=64)
        >>> bool((model.class_probabilities(torch.rand(3, 64)).sum(-1) - 1 < 1e-6).all())
        True
    """

    monitor: ClassVar[tuple[str, Literal["min", "max"]]] = ("val/accuracy", "max")

    def __init__(
        self,
        mapping: SparseMapping,
        estimator: Estimator,
        *,
        in_features: int = 784,
        classes: int = 10,
        style_features: int = 8,
        classifier_hidden: Sequence[int] = (256, 256, 256),
        inference_hidden: Sequence[int] = (128, 128),
        generator_hidden: Sequence[int] = (128, 128),
        unlabelled_weight: float = 9.0,
        sample_seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.mapping, self.in_features, self.classes = mapping, in_features, classes
        self.style_features, self.unlabelled_weight, self.sample_seed = style_features, unlabelled_weight, sample_seed
        self.estimator = estimator.bind(mapping).set_context_features(in_features)
        self.classifier = MLP([in_features, *classifier_hidden, classes])
        seen, known = in_features + classes, style_features + classes
        self.inference = MLP([seen, *inference_hidden, 2 * style_features])
        self.generator = MLP([known, *generator_hidden, in_features])
        self.classification_loss = FenchelYoungLoss(mapping, reduction="none")

    def forward(self, pixels: Tensor) -> Tensor:
        """Return class scores (B, K) of images (B, D)."""
        scores: Tensor = self.classifier(pixels)
        return scores

    def class_probabilities(self, pixels: Tensor) -> Tensor:
        """Return the class probabilities q(z|x), (B, K), for images (B, D)."""
        return self.mapping.map(self(pixels), None, -1)

    def generate(self, styles: Tensor, classes: Tensor) -> Tensor:
        """Return the expected pixels (B, D) for styles (B, H) and classes (B,).

        Raises:
            ConfigurationError: if the shapes do not match, or a class is negative.
        """
        check_labels(classes, self.classes)
        if classes.device.type == "cpu" and bool((classes < 0).any()):
            raise ConfigurationError(f"Expected classes of at least 0 but got {int(classes.min())}.")
        shape = (len(classes), self.style_features)
        check_tensor(styles, f"styles {shape}", shape=shape)
        dtype = next(self.generator.parameters()).dtype
        one_hot = nnf.one_hot(classes.long(), self.classes).to(dtype)
        logits: Tensor = self.generator(torch.cat([styles.to(dtype), one_hot], -1))
        return torch.sigmoid(logits)

    @override
    def configure_predictor(self) -> ClassPredictor:
        return ClassPredictor(self.classifier, self.mapping)

    @override
    def configure_metrics(self, stage: Stage) -> dict[str, Metric]:
        return mean_metrics("loss", "accuracy", "nelbo", "classification")

    @override
    def step(self, batch: Batch, batch_idx: int, stage: Stage) -> StepOutput:
        pixels, label = batch["pixels"], check_labels(batch["label"], self.classes)
        check_features(pixels, self.in_features)
        if batch_idx == 0:  # only once per epoch, because it synchronizes the GPU
            check_intensities(pixels)
        scores = self(pixels)
        if stage == "train":
            return self._training_output(batch, scores)
        noise = seeded_normal(self.sample_seed, batch["index"], (self.classes, self.style_features)).to(pixels.dtype)
        nelbo, counts, _ = self._unlabelled(pixels, scores, noise)
        s, y = scores[label >= 0], label[label >= 0]
        classified = {
            "accuracy": (s.argmax(-1) == y).to(pixels.dtype),
            "classification": self.classification_loss.of_labels(s, y),
        }
        per_example = {"nelbo": nelbo} | classified
        artifacts = self._drawn(pixels[:DRAWN], scores[:DRAWN]) if batch_idx == 0 else {}
        return StepOutput(nelbo, per_example=per_example, artifacts=artifacts, **counts)

    def predict_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        """Return the predictions for a batch as a dict: ``index`` (B,), ``class`` (B,), and ``probabilities`` (B, K)."""
        scores = self(batch["pixels"])
        probabilities = self.mapping.map(scores, None, -1)
        return {"index": batch["index"], "class": scores.argmax(-1), "probabilities": probabilities}

    def _training_output(self, batch: Batch, scores: Tensor) -> StepOutput:
        pixels, label = batch["pixels"], batch["label"].long()
        labelled, unlabelled = (label >= 0).nonzero().squeeze(-1), (label < 0).nonzero().squeeze(-1)
        per_example: dict[str, Tensor] = {}
        parts: list[tuple[float, Tensor, Tensor]] = []
        counts: dict[str, Any] = {}
        known, supervised = None, None
        if len(labelled):
            x, s, y = (values.index_select(0, labelled) for values in (pixels, scores, label))
            per_example["classification"] = self.classification_loss.of_labels(s, y)
            per_example["accuracy"] = (s.argmax(-1) == y).to(x.dtype)
            noise = torch.randn(len(x), self.style_features, device=x.device, dtype=x.dtype)
            known = (x, nnf.one_hot(y, self.classes).to(x.dtype), noise)
        if len(unlabelled) or world_size() > 1:  # other processes may wait for this one in a baseline's reduction
            x, s = pixels.index_select(0, unlabelled), scores.index_select(0, unlabelled)
            noise = torch.randn(len(x), self.classes, self.style_features, device=x.device, dtype=x.dtype)
            nelbo, counts, supervised = self._unlabelled(x, s, noise, known)
            per_example["nelbo"] = nelbo
            parts.append((self.unlabelled_weight, nelbo, unlabelled))
        if known is not None:
            supervised = self._losses(*known) if supervised is None else supervised
            parts.append((1.0, supervised + per_example["classification"], labelled))
        return StepOutput(objective=self._of_kinds(parts, batch), per_example=per_example, **counts)

    def _of_kinds(self, parts: list[tuple[float, Tensor, Tensor]], batch: Batch) -> Tensor:
        """Return the objective of kinds of examples, each with its weight, losses (R,), and their positions (R,) in the batch.

        It is the objective of a population that holds each kind in proportion to its weight, times the sum of the weights. For
        the mean this is the weighted sum of the means of the kinds.
        """
        linear = isinstance(self.risk, Mean)
        if linear:  # a factor of a loss is a weight of its example
            parts = [(1.0, weight * losses, rows) for weight, losses, rows in parts]
        total = sum(weight for weight, _, rows in parts if len(rows))
        losses, rows = torch.cat([losses for _, losses, _ in parts]), torch.cat([rows for _, _, rows in parts])
        inverse = torch.tensor([total * len(rows) / weight if weight else math.inf for weight, _, rows in parts])
        shares = len(rows) / inverse.repeat_interleave(torch.tensor([len(rows) for _, _, rows in parts])).to(losses.device)
        if not linear:
            order = rows.argsort()  # a risk may take the first examples of a batch for a smaller batch
            losses, rows, shares = losses[order], rows[order], shares[order]
        return total * self.objective(losses, batch, "train", rows, shares)

    def _unlabelled(
        self, pixels: Tensor, scores: Tensor, noise: Tensor, known: Rows | None = None
    ) -> tuple[Tensor, dict[str, Any], Tensor | None]:
        """Return the negative ELBO (B,) with the class summed out or sampled, its counts, and the losses of ``known`` rows.

        Args:
            pixels: (B, D) images.
            scores: (B, K) scores of the classes.
            noise: (B, K, H) standard normal, one draw per example and class.
            known: other rows, which are decoded in the same pass; their losses are None if nothing was decoded.
        """
        beside: list[Tensor] = []

        def loss_fn(latent: LatentBatch) -> Tensor:
            at, values = latent.example_index, latent.values
            rows = (pixels.index_select(0, at), values, noise[at, values.argmax(-1)])
            if known is None or beside:
                return self._losses(*rows)
            losses = self._losses(*map(torch.cat, zip(rows, known, strict=True)))  # the networks run once for both
            beside.append(losses[len(at) :])
            return losses[: len(at)]

        out = self.estimator(scores, loss_fn, context=pixels)
        allowed = torch.full_like(out.decoder_calls, self.classes)
        counts = {"decoder_calls": out.decoder_calls, "support_size": out.support_size, "num_allowed": allowed}
        return out.loss - out.entropy(), counts, beside[0] if beside else None

    def _losses(self, pixels: Tensor, values: Tensor, noise: Tensor) -> Tensor:
        """Return l(z) (R,) of :data:`Rows`."""
        mean, log_variance = self.inference(torch.cat([pixels, values], -1)).chunk(2, -1)
        style = mean + torch.exp(0.5 * log_variance) * noise
        logits = self.generator(torch.cat([style, values], -1))
        reconstruction = nnf.binary_cross_entropy_with_logits(logits, pixels, reduction="none").sum(-1)
        divergence = 0.5 * (mean.square() + log_variance.exp() - log_variance - 1).sum(-1)
        losses: Tensor = reconstruction + divergence + math.log(self.classes)
        return losses

    def _drawn(self, pixels: Tensor, scores: Tensor) -> dict[str, Tensor]:
        """Return images and their reconstructions from the most probable class and the mean style."""
        values = nnf.one_hot(scores.argmax(-1), self.classes).to(pixels.dtype)
        mean = self.inference(torch.cat([pixels, values], -1)).chunk(2, -1)[0]
        made = torch.sigmoid(self.generator(torch.cat([mean, values], -1)))
        return {"images": pixels.detach(), "reconstructions": made.detach()}
