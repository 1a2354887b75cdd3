"""Variational auto-encoder of images with a latent vector of bits (Correia et al. 2020)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from typing_extensions import override

from lit_sparse.checks import CLASSES, FEATURES, INPUTS, MOST_EXAMPLES, SEED, WIDTHS, Count, ranges
from lit_sparse.errors import ConfigurationError
from lit_sparse.estimators import Estimator, Expectation, LatentBatch, Sampler, marginal_likelihood
from lit_sparse.metrics import BitsPerDim
from lit_sparse.models.base import Batch, LitSparseModule, Stage, StepOutput, mean_metrics
from lit_sparse.models.data_protocols import check_features
from lit_sparse.nn import MLP, SharedCategorical

__all__ = ["BitVectorVAE"]

#: Number of images of the first batch that are drawn.
DRAWN = 16


@ranges(
    in_features=INPUTS,
    bits=FEATURES,
    sample_seed=SEED,
    encoder_hidden=WIDTHS,
    decoder_hidden=WIDTHS,
    pixel_features=FEATURES,
    levels=CLASSES,
    importance_samples=Count(2, MOST_EXAMPLES),
)
class BitVectorVAE(LitSparseModule):
    """Variational auto-encoder of images with a latent vector of D bits, summed out over a sparse posterior's support.

    An encoder scores the bits of an image x, and the estimator turns the scores into a sparse posterior q(z|x) over the 2^D
    vectors. A decoder computes features of each pixel, and a linear layer that all pixels share gives a categorical
    distribution over the grey levels. With the uniform prior p(z) = 2^-D the loss is the negative evidence lower bound

        E_q[-log p(x|z)] + KL(q(z|x) || p(z)),  KL = D log 2 - H(q(z|x))

    logged as ``nelbo``, and its two terms as ``distortion`` and ``rate``, all in nats per image. Defaults are the paper's
    values.

    In the test, ``bits_per_dim`` is ``-log2 p(x) / pixels``. Here p(x) is summed exactly over the support of q and
    estimated by importance sampling elsewhere, with a correction for the bias of the logarithm; see
    :func:`lit_sparse.estimators.marginal_likelihood`. The samples for an image are a function of its index.
    ``bits_per_dim_standard_error`` is the sampling error of the mean over images, the root of the sum of their squared
    errors divided by their number; see :class:`lit_sparse.metrics.BitsPerDim`.

    Batches are dicts of ``pixels`` (B, P), intensities in [0, 1] that are rounded to ``levels`` equidistant values, and
    ``index`` (B,).

    Args:
        estimator: estimator of the expected loss over bit vectors, by their support.
        in_features: P, number of pixels.
        bits: D, number of latent bits.
        encoder_hidden: widths of the encoder's hidden layers.
        decoder_hidden: widths of the decoder's hidden layers.
        pixel_features: number of features per pixel, the inputs of the shared layer.
        levels: number of grey levels.
        importance_samples: number of importance samples per test image, at least 2.
        sample_seed: seed of these samples.
        options: risk, optimizer, learning rate scheduler and initial weights; see :class:`LitSparseModule`.

    Raises:
        ConfigurationError: for an estimator over categories, fewer than two samples or levels, or no bits.

    Source: Correia, Niculae, Aziz & Martins (2020), Efficient Marginalization of Discrete and Structured Latent Variables
    via Sparsity, section 5.3 and appendix.

    Example:
        >>> import torch
        >>> from lit_sparse.estimators import TopKMarginalize
        >>> model = BitVectorVAE(TopKMarginalize(10), in_features=64, bits=16, levels=17)
        >>> output = model.run_step(
        ...     {"pixels": torch.rand(3, 64), "index": torch.arange(3)}, 0, "val"
        ... )
        >>> bool((output["decoder_calls"] <= 10).all())
        True
    """

    def __init__(
        self,
        estimator: Estimator,
        *,
        in_features: int = 784,
        bits: int = 32,
        encoder_hidden: Sequence[int] = (128,),
        decoder_hidden: Sequence[int] = (128,),
        pixel_features: int = 5,
        levels: int = 256,
        importance_samples: int = 1024,
        sample_seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if estimator.latent != "bits":
            raise ConfigurationError(
                f"Expected an estimator over bit vectors but got {type(estimator).__name__} over categories. Use another, such"
                " as TopKMarginalize."
            )
        self.in_features, self.bits, self.pixel_features = in_features, bits, pixel_features
        self.levels, self.importance_samples = levels, importance_samples
        self.estimator = estimator.set_context_features(in_features)
        self.sample_seed = sample_seed
        self.encoder = MLP([in_features, *encoder_hidden, bits])
        self.decoder = MLP([bits, *decoder_hidden, in_features * pixel_features])
        self.likelihood = SharedCategorical(pixel_features, levels)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the scores (B, D) of the bits for images (B, P)."""
        return self.estimator.scores_from_logits(self.encoder(pixels))

    def distortion(self, pixels: Tensor, latent: LatentBatch) -> Tensor:
        """Return ``-log p(x|z)`` (R,) in nats for images (B, P) and bit vectors (R, D)."""
        grey = (pixels * (self.levels - 1)).round().long()
        likelihood: Tensor = self.likelihood(self._features(latent.values), grey[latent.example_index])
        return -likelihood

    def generate(self, values: Tensor) -> Tensor:
        """Return the expected pixels (R, P) in [0, 1] for bit vectors (R, D)."""
        return self.likelihood.mean(self._features(values)) / (self.levels - 1)

    @override
    def configure_metrics(self, stage: Stage) -> dict[str, Metric]:
        test = {"bits_per_dim": _BitsPerDim(self.in_features)} if stage == "test" else {}
        return mean_metrics("loss", "nelbo", "rate", "distortion") | test

    @override
    def step(self, batch: Batch, batch_idx: int, stage: Stage) -> StepOutput:
        pixels = batch["pixels"]
        check_features(pixels, self.in_features)
        out, latent = self._expectation(pixels)
        rate = self.bits * math.log(2.0) - out.entropy()
        nelbo = out.loss + rate
        if stage == "test":
            self._score(pixels, latent, batch["index"])
        per_example = {"nelbo": nelbo, "rate": rate, "distortion": out.loss}
        counts: dict[str, Any] = {"support_size": out.support_size, "decoder_calls": out.decoder_calls}
        artifacts = self._drawn(pixels[:DRAWN], out, latent) if stage != "train" and batch_idx == 0 else {}
        return StepOutput(nelbo, per_example=per_example, artifacts=artifacts, **counts)

    def predict_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        """Return the predictions for a batch as a dict: ``index`` (B,), ``nelbo`` (B,), and the bits' ``marginals`` (B, D)."""
        out, latent = self._expectation(batch["pixels"])
        if isinstance(self.estimator, Sampler):
            marginals = self(batch["pixels"]).sigmoid()
        else:
            marginals = latent.values.new_zeros(len(batch["index"]), self.bits)
            marginals = marginals.index_add(0, out.example_index, out.probs.unsqueeze(-1) * latent.values)
        nelbo = out.loss + self.bits * math.log(2.0) - out.entropy()
        return {"index": batch["index"], "nelbo": nelbo, "marginals": marginals}

    def _expectation(self, pixels: Tensor) -> tuple[Expectation, LatentBatch]:
        """Return the expected distortion, and the bit vectors that were decoded for it."""
        decoded: list[LatentBatch] = []

        def loss_fn(latent: LatentBatch) -> Tensor:
            decoded.append(latent)
            return self.distortion(pixels, latent)

        out = self.estimator(self(pixels), loss_fn, context=pixels)
        return out, decoded[0]

    def _score(self, pixels: Tensor, latent: LatentBatch, index: Tensor) -> None:
        """Measure the bits per dimension of images, given all or part of their posteriors' support in ``latent``."""
        posterior = None
        if isinstance(self.estimator, Sampler):  # a dense posterior: the best vector exactly, the others by sampling
            posterior = self(pixels)
            best = self.estimator.distribution(posterior).best(1)[0][:, 0]
            latent = LatentBatch(best, torch.arange(len(best), device=best.device))
        options: Any = {"posterior": posterior, "samples": self.importance_samples, "seed": self.sample_seed}
        likelihood = marginal_likelihood(lambda drawn: self.distortion(pixels, drawn), latent, index, **options)
        self.stage_metrics("test")["bits_per_dim"].update(likelihood.corrected, likelihood.standard_error)

    def _features(self, values: Tensor) -> Tensor:
        features: Tensor = self.decoder(values)
        return features.view(-1, self.in_features, self.pixel_features)

    def _drawn(self, pixels: Tensor, out: Expectation, latent: LatentBatch) -> dict[str, Tensor]:
        """Return images together with their expected reconstructions by the decoded vectors."""
        some = out.example_index < len(pixels)
        probs = out.probs[some].detach()
        probs = torch.where(probs == 0, torch.finfo(probs.dtype).tiny, probs)  # it may underflow for many bits
        shares = probs / Estimator.sum_by_example(probs, out.example_index[some], len(pixels))[out.example_index[some]]
        means = shares.unsqueeze(-1) * self.generate(latent.values[some])
        made = torch.zeros_like(pixels).index_add(0, out.example_index[some], means.to(pixels.dtype))
        return {"images": pixels.detach(), "reconstructions": made}


class _BitsPerDim(BitsPerDim):
    """Bits per dimension under the names that the model logs."""

    def compute(self) -> dict[str, Tensor]:
        computed = super().compute()
        return {"bits_per_dim": computed["mean"], "bits_per_dim_standard_error": computed["standard_error"]}
