"""Sequence-to-sequence models with any mapping in their attention, for translation and summarization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf
from torchmetrics import Metric
from typing_extensions import override

from lit_sparse.checks import FEATURES, MOST_FEATURES, Count, Number, check_result, ranges
from lit_sparse.errors import ConfigurationError, full_name
from lit_sparse.lightning.choice import AGREED
from lit_sparse.mappings import FenchelYoungLoss, SparseMapping
from lit_sparse.metrics import Bleu, ChrF, TextMetric
from lit_sparse.models.base import Batch, Stage, StepOutput, mean_metrics
from lit_sparse.models.generation import GeneratingModule, check_keys
from lit_sparse.models.text import check_lines, count_groups, two_texts
from lit_sparse.nn import EncoderDecoder, Hypothesis, RecurrentBody, Seq2SeqPredictor, State, beam_search, length_mask
from lit_sparse.nn.inputs import embedded
from lit_sparse.nn.output_layer.losses import layer_losses

__all__ = ["Seq2Seq"]


@ranges(
    label_smoothing=Number(0.0, 1.0),
    init_range=Number(0.0, 1.0, open_low=True),
    beam_size=FEATURES,
    n_best=FEATURES,
    length_penalty=Number(0.0, 10.0),
    max_output=FEATURES,
    validation_beam_size=Count(0, MOST_FEATURES),
)
class Seq2Seq(GeneratingModule):
    """Sequence-to-sequence model with any mapping in its attention, for translation and summarization.

    Logged are per token ``loss``, the minimized loss, ``nll``, the negative log-likelihood, ``perplexity``, and
    ``accuracy``, the fraction of tokens that are the most probable ones given their predecessors. ``zeros`` is the fraction
    of source positions with an attention of exactly 0. Support sizes and groups of equal attention weights are measured per
    token and head. The test logs the ``metrics`` of the generated outputs, as does validation with
    ``validation_beam_size``. Batches come from :class:`lit_sparse.data.TranslationDataModule`.

    Args:
        mapping: mapping from attention scores to weights.
        body: encoder and decoder; None for :class:`lit_sparse.nn.RecurrentBody`, as in the paper.
        output_mapping: mapping to the probabilities of the next token, trained with its Fenchel-Young loss; None for softmax
            and cross-entropy.
        tied_embeddings: whether the output layer shares the weights of the target embeddings.
        label_smoothing: probability mass that ``loss`` (but not ``nll``) moves from the target token to all tokens.
        loss_normalization: ``"token"`` for the mean over tokens, ``"sentence"`` for their sum per sentence. The mean is per
            process and per accumulated batch, so batches of different lengths weight their tokens slightly differently.
        init_range: limit of the uniform initial weights [-init_range, init_range]. None for torch's initialization, with
            tied embeddings from a Gaussian of variance 1 / width.
        beam_size: number of open sequences in the search.
        n_best: number of predicted outputs per input.
        length_penalty: exponent of the length penalty; see :func:`lit_sparse.nn.beam_search`.
        max_output: maximum number of output tokens; the limit 3 times the input's length plus 10 also applies.
        replace_unknown: whether to replace ``<unk>`` by the input token with the largest attention.
        metrics: metrics of the outputs; None for BLEU and chrF. Two metrics of one class need different ``name``.
        validation_beam_size: number of open sequences in the search in validation; 0 for no search, no text scores and no
            heat maps.
        options: risk, optimizer, learning rate scheduler and initial weights; see :class:`LitSparseModule`.

    Raises:
        ConfigurationError: for an argument outside its range, a body of another model, or metrics with equal names.

    Source: Niculae & Blondel (2017), A Regularized Framework for Sparse and Structured Neural Attention, section 4.2.

    Example:
        >>> from lit_sparse.mappings import Fusedmax
        >>> from lit_sparse.text import Vocabulary
        >>> model = Seq2Seq(Fusedmax(), RecurrentBody(16, layers=1))
        >>> words = {
        ...     "source": Vocabulary.build(["ein Hund"]),
        ...     "target": Vocabulary.build(["a dog"]),
        ... }
        >>> len(model.build(words).generate(["ein Hund", ""]))
        2
    """

    monitor: ClassVar[tuple[str, Literal["min", "max"]]] = ("val/accuracy", "max")
    count_name: ClassVar[str] = "tokens"
    vocabulary_names: ClassVar[frozenset[str]] = frozenset({"source", "target"})
    inference_arguments: ClassVar[frozenset[str]] = frozenset(
        {"beam_size", "n_best", "length_penalty", "max_output", "replace_unknown", "metrics", "validation_beam_size"}
    )

    def __init__(
        self,
        mapping: SparseMapping,
        body: EncoderDecoder | None = None,
        *,
        output_mapping: SparseMapping | None = None,
        tied_embeddings: bool = False,
        label_smoothing: float = 0.0,
        loss_normalization: Literal["sentence", "token"] = "sentence",
        init_range: float | None = 0.1,
        beam_size: int = 5,
        n_best: int = 1,
        length_penalty: float = 0.0,
        max_output: int = 100,
        replace_unknown: bool = False,
        metrics: list[TextMetric] | None = None,
        validation_beam_size: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.mapping = mapping
        self.body = (RecurrentBody() if body is None else body).bind(mapping)
        self.output_mapping, self.tied_embeddings = output_mapping, tied_embeddings
        self.label_smoothing, self.loss_normalization = label_smoothing, loss_normalization
        self.init_range, self.beam_size, self.n_best = init_range, beam_size, n_best
        if n_best > beam_size:
            raise ConfigurationError(f"Expected `n_best` <= `beam_size`={beam_size} but got {n_best}. Increase `beam_size`.")
        self.length_penalty, self.max_output = length_penalty, max_output
        self.replace_unknown, self.validation_beam_size = replace_unknown, validation_beam_size
        self.metrics = check_keys([Bleu(), ChrF()] if metrics is None else metrics)
        self.fenchel_young = None
        if output_mapping is not None:
            self.fenchel_young = FenchelYoungLoss(output_mapping, reduction="none", label_smoothing=label_smoothing)

    def make_layers(self) -> None:
        """Create the embeddings and the output layer for the vocabularies."""
        source, target = self.vocabularies["source"], self.vocabularies["target"]
        self.source_embedding = nn.Embedding(len(source), self.body.width, padding_idx=source.pad)
        self.target_embedding = nn.Embedding(len(target), self.body.width, padding_idx=target.pad)
        self.output = nn.Linear(self.body.width, len(target))
        if self.tied_embeddings:
            self.output.weight = self.target_embedding.weight
        if self.init_range is not None:
            learnt = {id(it) for part in self.modules() if isinstance(part, SparseMapping) for it in part.parameters()}
            with torch.no_grad():
                for parameter in self.parameters():
                    if id(parameter) not in learnt:
                        parameter.uniform_(-self.init_range, self.init_range)
        with torch.no_grad():
            for embedding, its in ((self.source_embedding, source), (self.target_embedding, target)):
                # Larger weights would make a few tokens too likely.
                if self.init_range is None and embedding.weight is self.output.weight:
                    embedding.weight.normal_(0.0, self.body.width**-0.5)
                embedding.weight[its.pad] = 0.0

    def encode(self, source: Tensor, lengths: Tensor) -> State:
        """Return the encoder's memory, a tuple of tensors (B, ...), of sources (B, S) of int64 token ids with lengths (B,)."""
        self._check_built()
        return self.body.encode(embedded("ids of sources", source, self.source_embedding), lengths)

    def _memory(self, source: Tensor, lengths: Tensor) -> State:
        """Return the memory from :meth:`encode`, after a check of it."""
        memory: Any = self.encode(source, lengths)
        shapes = [getattr(part, "shape", None) for part in memory.values()] if isinstance(memory, dict) else [None]
        if any(shape is None or shape[:1] != source.shape[:1] for shape in shapes):
            raise ConfigurationError(
                f"Expected `encode` of {full_name(self)} and {full_name(self.body)} to return a dict of tensors"
                f" ({len(source)}, ...) but got {full_name(memory)} with {shapes}."
            )
        return memory  # type: ignore[no-any-return]

    def _decoded(self, target: Tensor, memory: State) -> tuple[Tensor, Tensor]:
        """Return hidden vectors (B, T, E) and attention weights (B, heads, T, S) for target tokens (B, T)."""
        found: Any = self.body.decode(embedded("ids of targets", target, self.target_embedding), memory)
        hidden, weights = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
        check_result(self.body, "decode", hidden, (*target.shape, self.body.width))
        if not isinstance(weights, Tensor) or weights.ndim != 4 or weights.shape[::2] != target.shape:
            got = tuple(weights.shape) if isinstance(weights, Tensor) else full_name(weights)
            raise ConfigurationError(
                f"Expected `decode` of {full_name(self.body)} to return attention weights (B, heads, T, S) but got {got}."
            )
        return hidden, weights

    def forward(self, source: Tensor, source_length: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores of the next token after each target token, given the previous ones, and the attention.

        Args:
            source: (B, S) int64 ids of source tokens, padded.
            source_length: (B,) lengths of the sources.
            target: (B, T) int64 ids of target tokens, the first of which is ``<bos>``.

        Returns:
            Scores (B, T, V) of the V target tokens, and attention weights (B, heads, T, S).
        """
        hidden, weights = self._decoded(target, self._memory(source, source_length))
        return self.output(hidden), weights

    @override
    def configure_predictor(self) -> Seq2SeqPredictor:
        self._check_built()
        return Seq2SeqPredictor(self.source_embedding, self.body, self.target_embedding, self.output, self.output_mapping)

    @override
    def exported(self) -> dict[str, tuple[nn.Module, tuple[Any, ...]]]:
        """Return the modules to export: a decoding step, and the encoder, whose file name ends in ``_encoder``."""
        predictor, texts = self.predictor(), two_texts(self.vocabularies["source"].unk)
        encoder = predictor.get_submodule("encoder")
        memory, state = encoder(*texts)
        tokens = torch.full((2,), self.vocabularies["target"].bos)
        for _ in range(2):
            _, _, state = predictor(tokens, memory, state)
        return {"": (predictor, (tokens, memory, state)), "_encoder": (encoder, texts)}

    @override
    def configure_metrics(self, stage: Stage) -> dict[str, Metric]:
        scored = {"train": 0, "val": self.validation_beam_size, "test": self.beam_size}[stage] > 0
        texts = {str(metric.name): metric.clone() for metric in self.metrics} if scored else {}
        return mean_metrics("loss", "nll", "accuracy", "zeros") | texts

    @override
    def step(self, batch: Batch, batch_idx: int, stage: Stage) -> StepOutput:
        source, target, lengths = batch["source"], batch["target"], batch["source_length"]
        memory = self._memory(source, lengths)
        hidden, weights = self._decoded(target[:, :-1], memory)
        there = length_mask(batch["target_length"] - 1, target.shape[1] - 1)
        rows, columns = there.nonzero(as_tuple=True)
        gold = target[rows, columns + 1]
        losses, nll, right = self._losses(hidden[rows, columns], gold)  # without padding
        weights = weights.detach()[rows, :, columns]  # (N, heads, S)
        support = weights.ne(0).sum(-1)
        allowed = lengths[rows].unsqueeze(-1).expand_as(support)
        zeros = (1 - support.float() / allowed.clamp_min(1)).flatten()
        per_example = {"nll": nll, "accuracy": right.float(), "zeros": zeros}
        counts: dict[str, Any] = {"support_size": support.flatten(), "num_allowed": allowed.flatten()}
        output = StepOutput(losses, example_index=rows, per_example=per_example, **counts)
        if self.loss_normalization == "sentence":  # the logged loss stays per token
            output.losses, output.example_index = losses.new_zeros(len(source)).index_add(0, rows, losses), None
            output.per_example["loss"] = self.weighted(losses, batch, rows)
        if stage != "train":
            output.groups = count_groups(self.mapping, weights).flatten()
            beam = self.beam_size if stage == "test" else self.validation_beam_size
            if beam and "references" in batch:
                output.artifacts = self.scored(batch, self.search(memory, lengths, beam), stage)
        return output

    def search(self, memory: State, lengths: Tensor, beam_size: int | None = None) -> list[list[Hypothesis]]:
        """Return the best outputs for each input, found by beam search.

        Args:
            memory: memory from :meth:`encode`.
            lengths: (B,) lengths of the inputs.
            beam_size: number of open sequences; by default the model's ``beam_size``.
        """
        beam_size = self.beam_size if beam_size is None else beam_size
        target = self.vocabularies["target"]
        limits = torch.where(lengths > 0, (3 * lengths + 10).clamp(max=self.max_output), 0)
        tokens: Any = {"bos": target.bos, "eos": target.eos, "forbidden": (target.pad, target.bos)}
        options: Any = {"n_best": min(self.n_best, beam_size), "length_penalty": self.length_penalty}
        step, prepared, start = self.configure_predictor(), self.body.prepare(memory), self.body.start(memory)
        return beam_search(step, prepared, start, limits=limits, beam_size=beam_size, **tokens, **options)

    @torch.no_grad()
    def generate(self, lines: Sequence[str], batch_size: int = 64) -> list[str]:
        """Return the best output for each input line, such as a translation or a summary.

        Args:
            lines: inputs; an empty input gives an empty output.
            batch_size: number of inputs per batch.

        Raises:
            ConfigurationError: for a batch size below 1, or for another object than a list of text.
        """
        self._check_built()
        lines = check_lines("lines", lines)

        def best(rows: list[int], source: Tensor, lengths: Tensor) -> list[str]:
            found = self.search(self._memory(source, lengths), lengths)
            return [self.text_of(some[0], lines[row]) for row, some in zip(rows, found, strict=True)]

        source = self.vocabularies["source"]
        return self.in_batches(best, [source.encode(lines)], source.pad, batch_size)

    def predict_step(self, batch: Batch, batch_idx: int) -> dict[str, Any]:
        """Return the predictions for a batch as a dict: ``index`` (B,), the B best outputs ``lines``, and ``candidates``.

        ``candidates`` lists outputs with their scores. The dict also holds the attention and the tokens.
        """
        found = self.search(self._memory(batch["source"], batch["source_length"]), batch["source_length"])
        candidates = [
            [{"text": self.text_of(one, text), "score": one.score} for one in some]
            for some, text in zip(found, batch["source_text"], strict=True)
        ]
        lines = [some[0]["text"] for some in candidates]
        drawn = self.drawn(batch, found)
        return {**drawn, "index": batch["index"], "lines": lines, "candidates": candidates, "source": batch["source_text"]}

    @override
    def _log_metrics(self, stage: Stage) -> None:
        super()._log_metrics(stage)
        self.log(f"{stage}/perplexity", self.stage_metrics(stage)["nll"].compute().exp(), **AGREED)

    def _losses(self, hidden: Tensor, gold: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the minimized loss, the negative log-likelihood and whether the token has the highest score, each (N,).

        Args:
            hidden: (N, E).
            gold: (N,) tokens.
        """
        if self.fenchel_young is not None:
            found = layer_losses(self.output, hidden, gold, self.fenchel_young)
            return found.losses, -found.probabilities.log(), found.highest
        scores = self.output(hidden)
        losses = nll = nnf.cross_entropy(scores, gold, reduction="none")
        if smooth := self.label_smoothing:
            losses = (1 - smooth) * nll + smooth * (scores.logsumexp(-1) - scores.mean(-1))
        with torch.no_grad():
            right = scores.gather(-1, gold.unsqueeze(-1)).squeeze(-1) >= scores.amax(-1)
        return losses, nll.detach(), right
