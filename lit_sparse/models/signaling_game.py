"""Signaling game: a sender describes an image with a symbol, and a receiver picks the image (Lazaridou et al. 2017)."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torchmetrics import Metric
from typing_extensions import override

from lit_sparse.checks import FEATURES, INPUTS, MOST, Number, ranges
from lit_sparse.estimators import Estimator, Expectation, LatentBatch, RunningMean, Sampler, with_gradient_of
from lit_sparse.mappings import SparseMapping
from lit_sparse.models.base import Batch, LitSparseModule, Stage, StepOutput, mean_metrics
from lit_sparse.models.data_protocols import ask, check_features, check_positions
from lit_sparse.nn import Receiver, Sender
from lit_sparse.random import seeded_uniform

__all__ = ["SignalingGame"]


@ranges(in_features=INPUTS, vocabulary=FEATURES, entropy_weight=Number(-MOST, MOST))
class SignalingGame(LitSparseModule):
    """Signaling game: a sender maps an image to a symbol, and a receiver picks the image among candidates.

    They are a :class:`lit_sparse.nn.Sender` and a :class:`lit_sparse.nn.Receiver`, or modules with the same inputs and
    outputs. The sender scores the symbols, a mapping turns scores into q(symbol|image), and the estimator sums out or
    samples the symbol. The loss is the receiver's negative log-likelihood of the target minus ``entropy_weight`` times the
    entropy of q.

    With ``loss="success"`` the loss is 0 if the receiver picks the target and 1 if not. In training, the receiver samples
    its pick, its gradient is a score-function estimate with the mean loss so far as baseline, and the entropy of the pick
    also has the weight ``entropy_weight``. In eval mode, it picks the most probable candidate.

    Logged are ``success``, whether the receiver picks the target for the most probable decoded symbol, and
    ``expected_success``, its mean over the decoded symbols by their probability. In validation and test ``sent_success`` is
    the success with the symbol as training sends it: the mean over all symbols if they are summed out, one sampled symbol
    for a sampler, a relaxed one for ``GumbelSoftmax``; for a sampler with ``loss="success"``, the pick is sampled too.
    Samples are a function of ``index``. The authors' code reports this success. Also logged are ``entropy`` and ``nll`` in
    nats; for ``loss="success"`` there is ``error``, the expected loss, in place of ``nll``.

    Batches are dicts of ``target`` (B, F), ``candidates`` (B, N, F), ``position`` (B,) of the target among the candidates,
    and ``index`` (B,). Analyses of the language use ``label`` (B,), the class of the target, and ``attributes`` (B, A).

    Args:
        mapping: mapping from scores to probabilities.
        estimator: estimator of the expected loss, without a mapping.
        in_features: F, number of features per image.
        vocabulary: V, number of symbols.
        sender: module to use in place of ``Sender``.
        receiver: module to use in place of ``Receiver``.
        entropy_weight: weight of the entropy, which is maximized.
        sender_bias: whether ``Sender`` has biases.
        receiver_init: ``init`` of ``Receiver``.
        loss: ``"likelihood"``, or ``"success"`` for the 0/1 loss.
        options: risk, optimizer, learning rate scheduler and initial weights; see :class:`LitSparseModule`.

    Raises:
        ConfigurationError: if the mapping does not give probabilities, or the estimator has another mapping or is for bits.

    Source: Correia, Niculae, Aziz & Martins (2020), Efficient Marginalization of Discrete and Structured Latent Variables
    via Sparsity, section 5.2 and appendix.

    Example:
        >>> import torch
        >>> from lit_sparse.estimators import Marginalize
        >>> from lit_sparse.mappings import Sparsemax
        >>> game = SignalingGame(Sparsemax(), Marginalize(), in_features=20, vocabulary=8)
        >>> images = torch.rand(3, 4, 20)
        >>> batch = {
        ...     "target": images[:, 1],
        ...     "candidates": images,
        ...     "position": torch.ones(3).long(),
        ...     "index": torch.arange(3),
        ... }
        >>> game.run_step(batch, 0, "train")["loss"].isfinite().item()
        True
    """

    monitor: ClassVar[tuple[str, Literal["min", "max"]]] = ("val/success", "max")

    def __init__(
        self,
        mapping: SparseMapping,
        estimator: Estimator,
        *,
        in_features: int = 4096,
        vocabulary: int = 256,
        sender: nn.Module | None = None,
        receiver: nn.Module | None = None,
        entropy_weight: float = 0.1,
        sender_bias: bool = True,
        receiver_init: Literal["normal", "linear"] = "normal",
        loss: Literal["nll", "success"] = "nll",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.mapping, self.in_features, self.vocabulary = mapping, in_features, vocabulary
        self.estimator = estimator.bind(mapping).set_context_features(in_features)
        self.sender = Sender(in_features, vocabulary, bias=sender_bias) if sender is None else sender
        self.receiver = Receiver(in_features, vocabulary, init=receiver_init) if receiver is None else receiver
        self.entropy_weight, self.loss = entropy_weight, loss
        self.mean_error = RunningMean() if loss == "success" else None

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores (B, V) of the symbols for images (B, F)."""
        check_features(images, self.in_features)
        takes = f"images {tuple(images.shape)} for vocabulary={self.vocabulary}"
        return ask(self.sender, "sender", takes, "scores", [(len(images), self.vocabulary)], images)

    @override
    def configure_metrics(self, stage: Stage) -> dict[str, Metric]:
        names = ["loss", "success", "expected_success", self._loss_name, "entropy"]
        return mean_metrics(*names, *(["sent_success"] if stage != "train" else []))

    @property
    def _loss_name(self) -> str:
        return "nll" if self.mean_error is None else "error"

    @override
    def step(self, batch: Batch, batch_idx: int, stage: Stage) -> StepOutput:
        target, candidates, position = batch["target"], batch["candidates"], batch["position"]
        check_positions(position, candidates.shape[1])
        heard: list[tuple[Tensor, Tensor, Tensor]] = []

        def loss_fn(latent: LatentBatch) -> Tensor:
            messages, rows = latent.values, latent.example_index
            picks = self._pick(candidates, messages, rows)
            heard.append((messages, rows, picks.detach().argmax(-1)))
            return self._loss_of(picks, position[rows])

        scores = self(target)
        out = self.estimator(scores, loss_fn, context=target)
        if self.mean_error is not None and self.training:
            self.mean_error.update(out.loss.detach())
        entropy = out.entropy()
        losses = out.loss - self.entropy_weight * entropy
        messages, rows, picked = map(torch.cat, zip(*heard, strict=True))
        success, expected = _successes(out, messages, rows, (picked == position[rows]).to(target.dtype))
        per_example = {"success": success, "expected_success": expected, self._loss_name: out.loss, "entropy": entropy}
        if stage != "train":
            sampler = self.estimator if isinstance(self.estimator, Sampler) else None
            per_example["sent_success"] = expected if sampler is None else self._sent_success(sampler, scores, batch)
        allowed = torch.full_like(out.decoder_calls, self.vocabulary)
        counts: Any = {"support_size": out.support_size, "decoder_calls": out.decoder_calls, "num_allowed": allowed}
        artifacts = {} if stage == "train" else self._sent(out, batch)
        return StepOutput(losses, per_example=per_example, artifacts=artifacts, **counts)

    def predict_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        """Return the predictions for a batch as a dict: ``index``, the most probable ``symbol``, and the receiver's ``pick``.

        All have shape (B,).
        """
        symbol = self(batch["target"]).argmax(-1)
        messages = torch.nn.functional.one_hot(symbol, self.vocabulary).to(batch["target"].dtype)
        rows = torch.arange(len(symbol), device=symbol.device)
        pick = self._pick(batch["candidates"], messages, rows).argmax(-1)
        return {"index": batch["index"], "symbol": symbol, "pick": pick, "position": batch["position"]}

    def _sent_success(self, estimator: Sampler, scores: Tensor, batch: Batch) -> Tensor:
        """Return whether the receiver picks the target (B,) for the symbol that training would send."""
        candidates, index = batch["candidates"], batch["index"]
        symbols = estimator.sent(scores, _gumbel_noise(index, scores.shape[1], 1).to(scores.dtype))
        picks = self._pick(candidates, symbols, torch.arange(len(scores), device=scores.device))
        if self.mean_error is not None:
            picks = picks + _gumbel_noise(index, picks.shape[1], 2).to(picks.dtype)
        position: Tensor = batch["position"]
        return picks.argmax(-1).eq(position).to(scores.dtype)

    def _loss_of(self, scores: Tensor, position: Tensor) -> Tensor:
        """Return the loss (R,) for scores (R, N) of the candidates, with the gradient of the receiver's draw in training."""
        if self.mean_error is None:
            return torch.nn.functional.cross_entropy(scores, position, reduction="none")
        # The largest of scores plus Gumbel noise is a draw from their softmax.
        noisy = scores.detach() - torch.empty_like(scores).exponential_().log() if self.training else scores
        pick = noisy.argmax(-1)
        error = torch.where(scores.isnan().any(-1), math.nan, (pick != position).to(scores.dtype))
        if not self.training:
            return error
        log_probs = scores.log_softmax(-1)
        log_prob = log_probs.gather(-1, pick.unsqueeze(-1)).squeeze(-1)
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        advantage = error - self.mean_error.value.to(error.dtype)
        return with_gradient_of(error, advantage * log_prob - self.entropy_weight * entropy)

    def _pick(self, candidates: Tensor, messages: Tensor, rows: Tensor) -> Tensor:
        """Return the scores (R, N) of candidates (B, N, F) for messages (R, V)."""
        takes = f"candidates {tuple(candidates.shape)}, messages {tuple(messages.shape)} and rows {tuple(rows.shape)}"
        shapes = [(len(rows), candidates.shape[1])]
        return ask(self.receiver, "receiver", takes, "scores", shapes, candidates, messages, rows)

    @staticmethod
    def _sent(out: Expectation, batch: Batch) -> dict[str, Tensor]:
        """Return the most probable symbol (B,) of each game, with its label and attributes."""
        sent = {"messages": out.probs.detach().argmax(-1), "targets": batch["target"], "index": batch["index"]}
        known = {"labels": "label", "attributes": "attributes"}
        return sent | {name: batch[key] for name, key in known.items() if key in batch}


def _gumbel_noise(index: Tensor, size: int, stream: int) -> Tensor:
    """Return draws (B, size) float64 from the standard Gumbel distribution, a function of the index (B,)."""
    uniform = seeded_uniform(0, index, (size,), stream=stream).double() + 2.0**-25
    return -(-uniform.log()).log()


def _successes(out: Expectation, heard: Tensor, rows: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each game (B,) the success of the most probable decoded symbol, and the expected success.

    Args:
        out: expectation of the loss.
        heard: decoded messages (R, V).
        rows: (R,) the game of each.
        right: (R,) whether the receiver picked the target.
    """
    size = len(out.loss)
    weights = (out.probs.detach()[rows] * heard.detach()).sum(-1).nan_to_num(0.0).clamp_min(0.0)
    best = torch.full((size,), -math.inf, dtype=weights.dtype, device=weights.device)
    best = best.scatter_reduce(0, rows, weights, "amax")
    # Several symbols of the same probability count alike.
    most, weights = (weights == best[rows]).to(right.dtype), weights.to(right.dtype)

    def sums(values: Tensor) -> Tensor:
        return Estimator.sum_by_example(values, rows, size)

    success = sums(most * right) / sums(most).clamp_min(1.0)
    return success, sums(weights * right) / sums(weights).clamp_min(torch.finfo(right.dtype).tiny)
