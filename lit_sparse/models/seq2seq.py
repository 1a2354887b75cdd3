"""Sequence to sequence with attention by any mapping: translation, summarization."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from pytorch_lightning.cli import LRSchedulerCallable, OptimizerCallable
from pytorch_lightning.utilities import rank_zero_info
from torch import Tensor, nn
from torch.nn import functional as nnf
from torchmetrics import Metric
from typing_extensions import override

from lit_sparse.aliases import former_method
from lit_sparse.checks import MOST_FEATURES, check_choice, check_count, check_number
from lit_sparse.errors import ConfigurationError
from lit_sparse.mappings import FenchelYoungLoss, SparseMapping
from lit_sparse.metrics import Bleu, ChrF, TextMetric
from lit_sparse.models.base import Batch, Stage, StepOutput
from lit_sparse.models.stage_metrics import mean_metrics
from lit_sparse.models.text import TextModule, check_lines, check_parts, count_groups
from lit_sparse.nn import EncoderDecoder, Hypothesis, RecurrentBody, State, beam_search, length_mask
from lit_sparse.risks import Risk
from lit_sparse.text import EOS

__all__ = ["Seq2Seq"]


class Seq2Seq(TextModule):
    """Reads a sequence, and writes another one attending to it, by any mapping.

    Logged: ``loss``, what is minimized, a token; ``nll``, the negative log-likelihood of a token, and ``perplexity``;
    ``accuracy``, the share of tokens that are the most probable one given those before; ``zeros``, the share of source
    positions with an attention of exactly 0; and support sizes and groups of equal weights of the attention, one decision a
    token and head. In the test, and with ``validation_beam_size`` in validation, also the ``metrics`` of what is written.

    Batches are those of :class:`lit_sparse.data.TranslationDataModule`.

    Args:
        mapping: from attention scores to weights.
        body: encoder and decoder; None for :class:`lit_sparse.nn.RecurrentBody`, the published one.
        output_mapping: gives the probabilities of the next token, trained by its Fenchel-Young loss; None for softmax and
            cross-entropy.
        tied_embeddings: whether the output layer has the weights of the target's embeddings.
        label_smoothing: share of the probability of the target that is spread over all tokens in ``loss``, not in ``nll``.
        loss_per: divisor of the loss of a batch, its tokens or its sentences. With tokens, each process and each accumulated
            batch has a mean of its own, so batches of different lengths weight their tokens slightly differently.
        init_range: weights are drawn uniformly from [-init_range, init_range] at first; None for torch's own, and tied
            embeddings from a Gaussian of variance 1 / width.
        beam_size: open sequences in the search.
        n_best: how many outputs of each input are predicted.
        length_penalty: alpha of the search.
        max_output: most tokens of an output; it is also cut after 3 times the input's length plus 10.
        replace_unknown: whether ``<unk>`` is replaced by the input's token with the largest attention, as it is written there.
        metrics: what outputs are scored by; None for BLEU and chrF. Two of one kind need a ``name`` each.
        validation_beam_size: open sequences in the search in validation; 0 for no search there.
        risk: the objective over the losses of a batch, in training; None for their mean.
        optimizer: builds the optimizer from the parameters.
        lr_scheduler: builds the learning rate scheduler from the optimizer; None for a constant rate.
        initial_weights: checkpoint whose weights training starts from (a warm start).

    Raises:
        ConfigurationError: for an argument outside its range, a body that is another model's, or metrics of one name.

    Source: Niculae & Blondel (2017), A Regularized Framework for Sparse and Structured Neural Attention, section 4.2.

    Example:
        >>> from lit_sparse.mappings import Fusedmax
        >>> from lit_sparse.text import Vocabulary
        >>> model = Seq2Seq(Fusedmax(), RecurrentBody(16, layers=1))
        >>> words = {"source": Vocabulary.build(["ein Hund"]), "target": Vocabulary.build(["a dog"])}
        >>> len(model.build(words).generate(["ein Hund", ""]))
        2
    """

    monitor: ClassVar[tuple[str, Literal["min", "max"]]] = ("val/accuracy", "max")
    count_name: ClassVar[str] = "tokens"
    vocabulary_names: ClassVar[frozenset[str]] = frozenset({"source", "target"})
    write = former_method("write", "generate")
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
        loss_per: Literal["sentence", "token"] = "sentence",
        init_range: float | None = 0.1,
        beam_size: int = 5,
        n_best: int = 1,
        length_penalty: float = 0.0,
        max_output: int = 100,
        replace_unknown: bool = False,
        metrics: list[TextMetric] | None = None,
        validation_beam_size: int = 0,
        risk: Risk | None = None,
        optimizer: OptimizerCallable = torch.optim.Adam,
        lr_scheduler: LRSchedulerCallable | None = None,
        initial_weights: str | None = None,
    ) -> None:
        super().__init__(risk=risk, optimizer=optimizer, lr_scheduler=lr_scheduler, initial_weights=initial_weights)
        check_parts(mapping=(mapping, SparseMapping), body=(body, EncoderDecoder | None))
        self.mapping = mapping
        self.body = (RecurrentBody() if body is None else body).bind(mapping)
        self.output_mapping = output_mapping
        self.tied_embeddings = tied_embeddings
        self.label_smoothing = check_number("label_smoothing", label_smoothing, 0.0, 1.0)
        self.loss_per = check_choice("loss_per", loss_per, ("sentence", "token"))
        self.init_range = None if init_range is None else check_number("init_range", init_range, 0.0, 1.0, open_low=True)
        self.beam_size = check_count("beam_size", beam_size, most=MOST_FEATURES)
        self.n_best = check_count("n_best", n_best, most=MOST_FEATURES)
        if n_best > beam_size:
            raise ConfigurationError(f"Expected `n_best` to be at most `beam_size`={beam_size} but got {n_best}.")
        self.length_penalty = check_number("length_penalty", length_penalty, 0.0, 10.0)
        self.max_output = check_count("max_output", max_output, most=MOST_FEATURES)
        self.replace_unknown = replace_unknown
        self.metrics: list[TextMetric] = [Bleu(), ChrF()] if metrics is None else metrics
        _check_keys(self.metrics)
        self._written, self._empty = 0, 0  # outputs of a test
        self.validation_beam_size = check_count("validation_beam_size", validation_beam_size, 0, MOST_FEATURES)
        self.fenchel_young = (
            None
            if output_mapping is None
            else FenchelYoungLoss(output_mapping, reduction="none", label_smoothing=self.label_smoothing)
        )

    def make_layers(self) -> None:
        """Make embeddings and the output layer."""
        source, target = self.vocabularies["source"], self.vocabularies["target"]
        self.source_embedding = nn.Embedding(len(source), self.body.width, padding_idx=source.pad)
        self.target_embedding = nn.Embedding(len(target), self.body.width, padding_idx=target.pad)
        self.output = nn.Linear(self.body.width, len(target))
        if self.tied_embeddings:
            self.output.weight = self.target_embedding.weight
        if self.init_range is not None:
            learnt = {
                id(parameter)
                for module in self.modules()
                if isinstance(module, SparseMapping)
                for parameter in module.parameters()
            }
            with torch.no_grad():
                for parameter in self.parameters():
                    if id(parameter) not in learnt:
                        parameter.uniform_(-self.init_range, self.init_range)
        with torch.no_grad():
            for embedding, its in ((self.source_embedding, source), (self.target_embedding, target)):
                if self.init_range is None and embedding.weight is self.output.weight:  # else no token but a few were likely
                    embedding.weight.normal_(0.0, self.body.width**-0.5)
                embedding.weight[its.pad] = 0.0

    def setup(self, stage: str) -> None:
        """Find the vocabularies, and say so where lower-cased outputs will be scored with case."""
        super().setup(stage)
        cased = [str(metric.name) for metric in self.metrics if getattr(metric, "lowercase", True) is False]
        target = self.vocabularies.get("target")
        if stage in ("validate", "test") and cased and target is not None and target.lowercase:
            rank_zero_info(
                f"note: outputs are lower-cased but {' and '.join(cased)} tell case apart; score with `lowercase: true`, or"
                " keep the case in the target vocabulary"
            )

    def encode(self, source: Tensor, lengths: Tensor) -> State:
        """Return the memory of sources (B, S) of some lengths (B,)."""
        self._check_built()
        return self.body.encode(self.source_embedding(source), lengths)

    def forward(self, source: Tensor, source_length: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores (B, T, V) of the token after each of targets (B, T), and attention (B, heads, T, S)."""
        hidden, weights = self.body.decode(self.target_embedding(target), self.encode(source, source_length))
        return self.output(hidden), weights

    @override
    def configure_metrics(self, stage: Stage) -> dict[str, Metric]:
        scored = {"train": 0, "val": self.validation_beam_size, "test": self.beam_size}[stage] > 0
        texts = {str(metric.name): metric.clone() for metric in self.metrics} if scored else {}
        return mean_metrics("loss", "nll", "accuracy", "zeros") | texts

    @override
    def step(self, batch: Batch, batch_idx: int, stage: Stage) -> StepOutput:
        source, target, lengths = batch["source"], batch["target"], batch["source_length"]
        memory = self.encode(source, lengths)
        hidden, weights = self.body.decode(self.target_embedding(target[:, :-1]), memory)
        there = length_mask(batch["target_length"] - 1, target.shape[1] - 1)
        rows, columns = there.nonzero(as_tuple=True)
        gold = target[rows, columns + 1]
        scores = self.output(hidden[rows, columns])  # no work for padding
        losses, nll = self._losses(scores, gold)
        weights = weights.detach()[rows, :, columns]  # (N, heads, S)
        support = weights.ne(0).sum(-1)
        allowed = lengths[rows].unsqueeze(-1).expand_as(support)
        with torch.no_grad():
            right = scores.gather(-1, gold.unsqueeze(-1)).squeeze(-1) >= scores.amax(-1)
        output = StepOutput(
            losses,
            example_index=rows,
            per_example={
                "nll": nll,
                "accuracy": right.float(),
                "zeros": 1 - support.float() / allowed.clamp_min(1),
            },
            support_size=support.flatten(),
            num_allowed=allowed.flatten(),
        )
        if self.loss_per == "sentence":  # the logged loss stays that of a token
            output.losses, output.example_index = losses.new_zeros(len(source)).index_add(0, rows, losses), None
            output.per_example["loss"] = self.weighted(losses, batch, rows)
        if stage != "train":
            output.groups = count_groups(self.mapping, weights).flatten()
            beam = self.beam_size if stage == "test" else self.validation_beam_size
            if beam and "references" in batch:
                output.artifacts = self._score(batch, memory, beam, stage)
        return output

    def search(self, memory: State, lengths: Tensor, beam_size: int | None = None) -> list[list[Hypothesis]]:
        """Return the best outputs for each input.

        Args:
            memory: of :meth:`encode`.
            lengths: (B,) of the inputs.
            beam_size: open sequences; the model's own by default.
        """
        beam_size = self.beam_size if beam_size is None else beam_size
        target = self.vocabularies["target"]
        limits = torch.where(lengths > 0, (3 * lengths + 10).clamp(max=self.max_output), 0)
        return beam_search(
            self._next,
            self.body.prepare(memory),
            self.body.start(memory),
            bos=target.bos,
            eos=target.eos,
            limits=limits,
            beam_size=beam_size,
            n_best=min(self.n_best, beam_size),
            length_penalty=self.length_penalty,
            forbidden=(target.pad, target.bos),
        )

    @torch.no_grad()
    def generate(self, lines: Sequence[str], batch_size: int = 64) -> list[str]:
        """Return the best output for each input line: its translation, or its summary.

        Args:
            lines: the inputs; an empty one gives an empty output.
            batch_size: how many are worked on together.

        Raises:
            ConfigurationError: for a batch size below 1, or what is no list of text.
        """
        self._check_built()
        check_count("batch_size", batch_size)
        check_lines("lines", lines)
        vocabulary, training = self.vocabularies["source"], self.training
        encoded = vocabulary.encode(list(lines))
        found: list[str] = [""] * len(encoded)
        self.eval()
        try:
            order = sorted(range(len(encoded)), key=lambda i: -len(encoded[i]))
            for start in range(0, len(order), batch_size):
                rows = order[start : start + batch_size]
                lengths = torch.tensor([len(encoded[i]) for i in rows])
                source = torch.full((len(rows), max(1, int(lengths.max()))), vocabulary.pad)
                for row, i in enumerate(rows):
                    source[row, : len(encoded[i])] = torch.tensor(encoded[i], dtype=torch.int64)
                source, lengths = source.to(self.device), lengths.to(self.device)
                for i, best in zip(rows, self.search(self.encode(source, lengths), lengths), strict=True):
                    found[i] = self._text(best[0], lines[i])
        finally:
            self.train(training)
        return found

    def predict_step(self, batch: Batch, batch_idx: int) -> dict[str, Any]:
        """Return ``index`` (B,), the B best output ``lines``, ``candidates`` with their scores, and the attention."""
        memory = self.encode(batch["source"], batch["source_length"])
        found = self.search(memory, batch["source_length"])
        drawn = self._drawn(batch, [best[0] for best in found])
        candidates = [
            [{"text": self._text(one, text), "score": one.score} for one in best]
            for best, text in zip(found, batch["source_text"], strict=True)
        ]
        lines = [best[0]["text"] for best in candidates]
        return {**drawn, "index": batch["index"], "lines": lines, "candidates": candidates, "source": batch["source_text"]}

    @override
    def on_test_epoch_start(self) -> None:
        super().on_test_epoch_start()
        self._written, self._empty = 0, 0

    def on_test_epoch_end(self) -> None:
        """Log the scores, and say so where most outputs are empty."""
        super().on_test_epoch_end()
        if 2 * self._empty > self._written:
            rank_zero_info(
                f"note: {self._empty} of {self._written} outputs are empty, because an end at once is more probable than any"
                " whole sentence. Train longer; until then a beam of one, --model.init_args.beam_size 1, writes more."
            )

    def on_test_end(self) -> None:
        """Write the signatures of the scores beside them: what they depend on, for others to compare with."""
        signatures = [metric.signature for metric in self._text_metrics("test")]
        folder = self.trainer.log_dir
        if folder is not None and self.trainer.loggers and self.trainer.is_global_zero:
            path = Path(folder) / "signatures.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            named = zip(self.metrics, signatures, strict=True)
            path.write_text("".join(f"{metric.name}: {signature}\n" for metric, signature in named), encoding="utf-8")

    def _text_metrics(self, stage: Stage) -> list[TextMetric]:
        """Return the metrics that score the outputs of a stage."""
        return [metric for metric in self.stage_metrics(stage).values() if isinstance(metric, TextMetric)]

    @override
    def _log_metrics(self, stage: Stage) -> None:
        super()._log_metrics(stage)
        self.log(f"{stage}/perplexity", self.stage_metrics(stage)["nll"].compute().exp(), sync_dist=True)

    def _losses(self, scores: Tensor, gold: Tensor) -> tuple[Tensor, Tensor]:
        """Return what is minimized and the negative log-likelihood, (N,), for scores (N, V) of tokens (N,)."""
        if self.output_mapping is None or self.fenchel_young is None:
            nll = nnf.cross_entropy(scores, gold, reduction="none")
            if not self.label_smoothing:
                return nll, nll.detach()
            smooth = self.label_smoothing
            return (1 - smooth) * nll + smooth * (scores.logsumexp(-1) - scores.mean(-1)), nll.detach()
        losses = self.fenchel_young(scores, gold)
        with torch.no_grad():
            probs = self.output_mapping.map(scores, None, -1).gather(-1, gold.unsqueeze(-1)).squeeze(-1)
        return losses, -probs.log()

    def _next(self, tokens: Tensor, memory: State, state: State) -> tuple[Tensor, Tensor, State]:
        """Return log-probabilities (R, V) of the tokens after tokens (R,), attention and state."""
        hidden, weights, state = self.body.step(self.target_embedding(tokens), memory, state)
        scores = self.output(hidden).float()
        if self.output_mapping is None:
            return scores.log_softmax(-1), weights, state
        return self.output_mapping.map(scores, None, -1).log(), weights, state

    def _score(self, batch: Batch, memory: State, beam_size: int, stage: Stage) -> dict[str, Any]:
        """Write freely, score it, and return what is to be drawn."""
        found = [best[0] for best in self.search(memory, batch["source_length"], beam_size)]
        lines = [self._text(one, text) for one, text in zip(found, batch["source_text"], strict=True)]
        for metric in self._text_metrics(stage):
            metric.update(lines, batch["references"])
        if stage == "test":
            self._written += len(lines)
            self._empty += sum(not line for line in lines)
        return {**self._drawn(batch, found), "index": batch["index"]}

    def _text(self, found: Hypothesis, source: str) -> str:
        """Return the text of an output for a source."""
        return self.vocabularies["target"].join(self._tokens(found, source))

    def _tokens(self, found: Hypothesis, source: str) -> list[str]:
        target = self.vocabularies["target"]
        tokens = target.lookup_tokens(found.tokens)
        if self.replace_unknown and target.unk in found.tokens:
            written = self.vocabularies["source"].tokenize(source)
            for place, number in enumerate(found.tokens):
                if number == target.unk and place < found.attention.shape[1]:
                    best = int(found.attention[:, place].mean(0).argmax())
                    tokens[place] = written[best] if best < len(written) else tokens[place]
        return tokens

    def _drawn(self, batch: Batch, found: list[Hypothesis]) -> dict[str, Any]:
        """Return attention (B, T, S), the mean of all heads, padded with zeros, and the tokens along its sides."""
        steps = max(max(one.attention.shape[1] for one in found), 1)
        attention = torch.zeros(len(found), steps, batch["source"].shape[1])
        outputs = []
        for row, one in enumerate(found):
            _, length, width = one.attention.shape
            attention[row, :length, :width] = one.attention.mean(0)
            outputs.append([*self._tokens(one, batch["source_text"][row]), EOS][:length])
        lengths = batch["source_length"].tolist()
        sources = [
            self.vocabularies["source"].lookup_tokens(row[:length].tolist())
            for row, length in zip(batch["source"], lengths, strict=True)
        ]
        return {"attention": attention, "source_tokens": sources, "output_tokens": outputs}


def _check_keys(metrics: Sequence[TextMetric]) -> None:
    """Check that no two metrics log under one name.

    Raises:
        ConfigurationError: if they do.
    """
    known: dict[str, TextMetric] = {}
    for metric in metrics:
        for key in metric.scores(metric.sums.cpu(), 1):
            if key in known:
                raise ConfigurationError(
                    f"The `metrics` {type(known[key]).__name__} and {type(metric).__name__} would both be logged as {key!r}."
                    f" Give one of them another `name`: {{class_path: {type(metric).__name__}, init_args: {{name: other}}}}."
                )
            known[key] = metric
