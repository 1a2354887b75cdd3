"""Base class of models that generate text: it converts the outputs of a search to text, scores them, and reports the scores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from typing_extensions import override

from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.files import replaced
from lit_sparse.lightning.choice import rank_zero_info
from lit_sparse.metrics import TextMetric
from lit_sparse.models.base import Batch, Stage
from lit_sparse.models.text import TextModule
from lit_sparse.nn import Hypothesis
from lit_sparse.text import EOS

__all__ = ["GeneratingModule", "check_keys"]


class GeneratingModule(TextModule):
    """Base class of models that generate a target text from a source text; a subclass searches for outputs.

    Batches hold ``source`` (B, S), ``source_length`` (B,) and the lines ``source_text``, and in validation and test also
    ``references`` and ``index`` (B,).

    Args:
        options: options of :class:`TextModule`.
    """

    #: Whether to replace ``<unk>`` by the source token with the largest attention.
    replace_unknown: bool
    #: Metrics of the outputs; a stage scores by its own copies of them.
    metrics: list[TextMetric]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._empty: list[bool] = []  # for each output of a test

    def setup(self, stage: str) -> None:
        """Set the vocabularies of source and target; warn if outputs are lower-cased but a metric distinguishes case."""
        super().setup(stage)
        cased = [str(metric.name) for metric in self.metrics if getattr(metric, "lowercase", True) is False]
        target = self.vocabularies.get("target")
        if stage in ("validate", "test") and cased and target is not None and target.lowercase:
            rank_zero_info(
                f"note: outputs are lower-cased but {' and '.join(cased)} depend on case; score with `lowercase: true`, or"
                " keep the case in the target vocabulary"
            )

    def tokens_of(self, hypothesis: Hypothesis, source: str) -> list[str]:
        """Return the tokens of an output; with ``replace_unknown``, words of the source replace ``<unk>``.

        Args:
            hypothesis: the output, as beam search returns it.
            source: line that it was generated from.
        """
        target = self.vocabularies["target"]
        tokens = target.lookup_tokens(hypothesis.tokens)
        if self.replace_unknown and target.unk in hypothesis.tokens:
            written = self.vocabularies["source"].tokenize(source)
            for place, number in enumerate(hypothesis.tokens):
                if number == target.unk and place < hypothesis.attention.shape[1]:
                    best = int(hypothesis.attention[:, place].mean(0).argmax())
                    tokens[place] = written[best] if best < len(written) else tokens[place]
        return tokens

    def text_of(self, hypothesis: Hypothesis, source: str) -> str:
        """Return an output as text; see :meth:`tokens_of`.

        Args:
            hypothesis: the output, as beam search returns it.
            source: line that it was generated from.
        """
        return self.vocabularies["target"].join(self.tokens_of(hypothesis, source))

    def drawn(self, batch: Batch, found: Sequence[Sequence[Hypothesis]]) -> dict[str, Any]:
        """Return the attention of the best outputs and the tokens of both sides, as artifacts of a step.

        Args:
            batch: batch of B inputs.
            found: outputs for each input, best first.

        Returns:
            ``attention`` (B, T, S), averaged over heads and zero-padded, ``source_tokens`` and ``output_tokens``, B lists
            each.
        """
        weights = [best.attention.mean(0) for best, *_ in found]
        attention = torch.zeros(len(found), max(1, *map(len, weights)), batch["source"].shape[1])
        outputs = []
        for row, (rows, (best, *_), source) in enumerate(zip(weights, found, batch["source_text"], strict=True)):
            attention[row, : len(rows), : rows.shape[1]] = rows
            outputs.append([*self.tokens_of(best, source), EOS][: len(rows)])
        return {
            "attention": attention,
            "source_tokens": self.tokens_in("source", batch["source"], batch["source_length"]),
            "output_tokens": outputs,
        }

    def scored(self, batch: Batch, found: Sequence[Sequence[Hypothesis]], stage: Stage) -> dict[str, Any]:
        """Update the metrics of a stage with the best outputs, and return the artifacts for callbacks to draw.

        Args:
            batch: batch of B inputs.
            found: outputs for each input, best first.
            stage: ``"val"`` or ``"test"``.

        Returns:
            Result of :meth:`drawn`, and ``index`` (B,).
        """
        lines = [self.text_of(best, source) for (best, *_), source in zip(found, batch["source_text"], strict=True)]
        for metric in self._scores(stage):
            metric.update(lines, batch["references"])
        if stage == "test":
            self._empty += [not line for line in lines]
        return {**self.drawn(batch, found), "index": batch["index"]}

    @override
    def on_test_epoch_start(self) -> None:
        super().on_test_epoch_start()
        self._empty = []

    def on_test_epoch_end(self) -> None:
        """Log the metrics of the generated outputs, and warn if most outputs are empty."""
        super().on_test_epoch_end()
        if 2 * sum(self._empty) > len(self._empty):
            rank_zero_info(
                f"note: {sum(self._empty)} of {len(self._empty)} outputs are empty, because an immediate end is more probable"
                " than any sentence. Train longer, or use greedy search, --model.init_args.beam_size 1, which gives longer"
                " outputs."
            )

    def on_test_end(self) -> None:
        """Write the metrics' signatures, which list all settings that the scores depend on, to ``signatures.txt``."""
        folder = self.trainer.log_dir
        if folder is not None and self.trainer.loggers and self.trainer.is_global_zero:
            with replaced(Path(folder) / "signatures.txt", "w") as file:
                for metric in self._scores("test"):
                    file.write(f"{metric.name}: {metric.signature}\n")

    def _scores(self, stage: Stage) -> list[TextMetric]:
        """Return the metrics that score the outputs of a stage."""
        return [metric for metric in self.stage_metrics(stage).values() if isinstance(metric, TextMetric)]


def check_keys(metrics: list[TextMetric]) -> list[TextMetric]:
    """Return the metrics of a model after a check that no two of them log under one name.

    Raises:
        ConfigurationError: if two log under one name.
    """
    known: dict[str, TextMetric] = {}
    for metric in metrics:
        for key in metric.scores(metric.totals.cpu(), 1):
            if key in known:
                raise ConfigurationError(
                    f"Expected `metrics` with different names but got {key!r} twice, for {type(known[key]).__name__} and"
                    f" {type(metric).__name__}. Set a `name` in the init_args of one."
                )
            known[key] = metric
    return metrics
