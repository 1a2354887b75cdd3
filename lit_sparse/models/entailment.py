"""Entailment classifier that attends to the premise with any mapping."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as nnf
from torchmetrics import Metric
from typing_extensions import override

from lit_sparse.checks import FEATURES, FLOATS, check_tensor, ranges
from lit_sparse.errors import ConfigurationError
from lit_sparse.lightning.choice import rank_zero_info
from lit_sparse.mappings import SparseMapping
from lit_sparse.models.base import Batch, Stage, StepOutput, mean_metrics
from lit_sparse.models.text import TextModule, check_lines, count_groups, listed, two_texts
from lit_sparse.nn import EntailmentNetwork, EntailmentPredictor, WordVectors
from lit_sparse.random import seeded_uniform
from lit_sparse.text.labels import LABELS, check_labels

__all__ = ["EntailmentClassifier"]

#: Range of the uniform random vectors of words without a vector, far below published vectors.
RANDOM = 0.05


@ranges(vector_size=FEATURES)
class EntailmentClassifier(TextModule):
    """Model that classifies whether a hypothesis follows from a premise, attending to the premise with any mapping.

    The network is :class:`lit_sparse.nn.EntailmentNetwork`. If the data have word vectors, a new model uses them as fixed
    embeddings; words without a vector get small fixed random vectors, a function of their id. All vectors are in the
    checkpoints, so a loaded model needs no file of vectors. Without vectors in the data, the embeddings are trained.

    Logged are ``loss``, the cross-entropy, ``accuracy``, and ``zeros``, the fraction of premise positions with an attention
    of exactly 0. Support sizes and groups of equal attention weights are measured per pair.

    Batches come from :class:`lit_sparse.data.EntailmentDataModule`.

    Args:
        mapping: mapping from attention scores to weights.
        width: number of hidden units of the GRUs and of the attention.
        vector_size: width of the word vectors, as in the data.
        dropout: dropout probability of the projected word vectors and of the last hidden layer.
        gate_bias: number added to the initial bias of the update gates; see the network.
        labels: names of the classes, by index, as in the data.
        options: risk, optimizer, learning rate scheduler and initial weights (these include word vectors); see
            :class:`LitSparseModule`.

    Raises:
        ConfigurationError: for an argument outside its range.

    Source: Niculae & Blondel (2017), A Regularized Framework for Sparse and Structured Neural Attention, section 4.1 and
    appendix C.2.

    Example:
        >>> from lit_sparse.mappings import Fusedmax
        >>> from lit_sparse.text import Vocabulary
        >>> model = EntailmentClassifier(Fusedmax(), width=8, vector_size=5)
        >>> model = model.build(
        ...     {"text": Vocabulary.build(["A dog runs outside.", "An animal is asleep."])}
        ... )
        >>> (found,) = model.classify([("A dog runs outside.", "A dog is asleep.")])
        >>> found in model.labels
        True
    """

    monitor: ClassVar[tuple[str, Literal["min", "max"]]] = ("val/accuracy", "max")
    count_name: ClassVar[str] = "pairs"
    vocabulary_names: ClassVar[frozenset[str]] = frozenset({"text"})

    def __init__(
        self,
        mapping: SparseMapping,
        *,
        width: int = 100,
        vector_size: int = 300,
        dropout: float = 0.1,
        gate_bias: float = 1.0,
        labels: Sequence[str] = LABELS,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.mapping = mapping
        self.labels = check_labels(labels)
        self.vector_size = vector_size
        self.network = EntailmentNetwork(mapping, vector_size, width, len(self.labels), dropout, gate_bias)

    def make_layers(self) -> None:
        """Create the word embedding for the vocabulary."""
        text = self.vocabularies["text"]
        self.words = WordVectors(len(text), self.vector_size, text.pad)

    def setup(self, stage: str) -> None:
        """Set the vocabulary, and check the labels against the data's.

        Raises:
            ConfigurationError: if the labels differ from the data's.
        """
        data = getattr(self.trainer, "datamodule", None)
        labels = getattr(data, "labels", None)  # other data have the name of an array here
        if isinstance(labels, list | tuple) and tuple(labels) != self.labels:
            raise ConfigurationError(
                f"Expected data with the labels {', '.join(self.labels)} but got {', '.join(labels)}."
                " Give the model and the data the same labels in the same order."
            )
        super().setup(stage)

    def initialize(self, data: Any) -> None:
        """Use the word vectors of the data module, if it has any."""
        vectors = data.vectors() if callable(getattr(data, "vectors", None)) else None
        if vectors is not None:
            self.use_vectors(*vectors)

    def use_vectors(self, vectors: Tensor, known: Tensor | None = None) -> None:
        """Set fixed word vectors as the embedding.

        Args:
            vectors: (V, E) vectors of the words of the vocabulary ``text``.
            known: (V,) bool mask of the words with a vector; the others get random vectors. None if all have one.

        Raises:
            ConfigurationError: if the width E is not ``vector_size``, or the vocabulary is not set yet.
        """
        self._check_built()
        check_tensor(vectors, "word vectors (V, E) in a floating tensor", shape=(None, None), dtypes=FLOATS)
        if vectors.shape[-1] != self.vector_size:
            raise ConfigurationError(
                f"Expected word vectors of width vector_size={self.vector_size} but got {vectors.shape[-1]} in the data."
                f" Set the model's `vector_size` to {vectors.shape[-1]}, or use vectors of width {self.vector_size}."
            )
        known = torch.ones(len(vectors), dtype=torch.bool) if known is None else known
        check_tensor(known, "a mask (V,) of the known words", shape=(len(vectors),), dtypes=(torch.bool,))
        random = RANDOM * (2 * seeded_uniform(0, torch.arange(len(vectors)), (self.vector_size,)) - 1)
        self.words.fix(torch.where(known.unsqueeze(-1), vectors, random))
        rank_zero_info(f"{int(known.sum())} of {len(known)} words have a vector")

    def forward(
        self, premise: Tensor, premise_length: Tensor, hypothesis: Tensor, hypothesis_length: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return scores (B, C) of the labels and attention weights (B, S).

        Args:
            premise: (B, S) word ids.
            premise_length: (B,) lengths of the premises.
            hypothesis: (B, T) word ids.
            hypothesis_length: (B,) lengths of the hypotheses.
        """
        self._check_built()
        output: tuple[Tensor, Tensor] = self.network(
            self.words(premise), premise_length, self.words(hypothesis), hypothesis_length
        )
        return output

    @override
    def configure_predictor(self) -> EntailmentPredictor:
        self._check_built()
        return EntailmentPredictor(self.words, self.network)

    @override
    def exported(self) -> dict[str, tuple[nn.Module, tuple[Any, ...]]]:
        return {"": (self.predictor(), 2 * two_texts(next(iter(self.vocabularies.values())).unk))}

    @override
    def configure_metrics(self, stage: Stage) -> dict[str, Metric]:
        return mean_metrics("loss", "accuracy", "zeros")

    @override
    def step(self, batch: Batch, batch_idx: int, stage: Stage) -> StepOutput:
        scores, weights = self._read(batch)
        losses = nnf.cross_entropy(scores, batch["label"], reduction="none")
        weights, allowed = weights.detach(), batch["premise_length"]
        support, predicted = weights.ne(0).sum(-1), scores.detach().argmax(-1)
        zeros = 1 - support.float() / allowed.clamp_min(1)
        per_example = {"accuracy": (predicted == batch["label"]).float(), "zeros": zeros}
        output = StepOutput(losses, per_example=per_example, support_size=support, num_allowed=allowed)
        if stage != "train":
            output.groups = count_groups(self.mapping, weights)
            texts = batch.get("hypothesis_text") or [
                self.vocabularies["text"].decode(row) for row in batch["hypothesis"].tolist()
            ]
            labels = [self.labels[label] for label in batch["label"].tolist()]
            titles = [f"{hypothesis} ({label})" for hypothesis, label in zip(texts, labels, strict=True)]
            output.artifacts = {**self._drawn(batch, weights, predicted), "index": batch["index"], "title": titles}
        return output

    def predict_step(self, batch: Batch, batch_idx: int) -> dict[str, Any]:
        """Return the predictions for a batch as a dict: ``index`` (B,), the B best labels ``lines``, and ``candidates``.

        ``candidates`` lists all labels with their probabilities. The dict also holds the attention, and the pairs as
        ``source``, with a tab between premise and hypothesis.
        """
        scores, weights = self._read(batch)
        probabilities, order = scores.softmax(-1).sort(dim=-1, descending=True, stable=True)
        candidates = [
            [{"text": self.labels[label], "score": probability} for label, probability in zip(*row, strict=True)]
            for row in zip(order.tolist(), probabilities.tolist(), strict=True)
        ]
        pairs = zip(batch["premise_text"], batch["hypothesis_text"], strict=True)
        return {
            **self._drawn(batch, weights, order[:, 0]),
            "index": batch["index"],
            "lines": [best[0]["text"] for best in candidates],
            "candidates": candidates,
            "source": ["\t".join(pair) for pair in pairs],
        }

    @torch.no_grad()
    def classify(self, pairs: Sequence[tuple[str, str]], batch_size: int = 256) -> list[str]:
        """Return the most probable label of each pair of a premise and a hypothesis.

        Args:
            pairs: the pairs, as text.
            batch_size: number of pairs per batch.

        Raises:
            ConfigurationError: for a batch size below 1, or for other objects than pairs of text.
        """
        self._check_built()
        pairs = listed("pairs", pairs)
        if any(isinstance(pair, str) or not isinstance(pair, Sequence | np.ndarray) or len(pair) != 2 for pair in pairs):
            raise ConfigurationError(
                "Expected argument `pairs` to be a list of pairs of texts but got something else. Write [(premise,"
                " hypothesis), ...]."
            )
        text = self.vocabularies["text"]
        names = ("premises", "hypotheses")
        sides = [text.encode(check_lines(name, [pair[i] for pair in pairs])) for i, name in enumerate(names)]

        def best(_: list[int], *inputs: Tensor) -> list[str]:
            return [self.labels[label] for label in self(*inputs)[0].argmax(-1).tolist()]

        return self.in_batches(best, sides, text.pad, batch_size)

    def _read(self, batch: Batch) -> tuple[Tensor, Tensor]:
        scores, weights = self(batch["premise"], batch["premise_length"], batch["hypothesis"], batch["hypothesis_length"])
        return scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores, weights

    def _drawn(self, batch: Batch, weights: Tensor, predicted: Tensor) -> dict[str, Any]:
        """Return attention (B, 1, S), the tokens of the premise and the predicted label."""
        return {
            "attention": weights.unsqueeze(1),
            "source_tokens": self.tokens_in("text", batch["premise"], batch["premise_length"]),
            "output_tokens": [[self.labels[label]] for label in predicted.tolist()],
        }
