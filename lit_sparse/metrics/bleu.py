"""BLEU and chrF of a corpus by sacrebleu, and a test of whether two systems differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from lit_sparse.checks import check_count, check_integer
from lit_sparse.errors import ConfigurationError, DataError, MissingExtraError, did_you_mean
from lit_sparse.metrics.text import TextMetric, check_flag, check_name, check_texts

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

__all__ = ["Bleu", "ChrF", "PairedBootstrap", "paired_bootstrap"]

#: Longest n-grams of BLEU.
ORDERS = 4


class Bleu(TextMetric):
    """Corpus BLEU of 0 to 100, bit for bit that of ``sacrebleu.metrics.BLEU().corpus_score``.

    ``BLEU = BP * exp(mean over n = 1..4 of log precision_n)`` of n-grams counted over all inputs, with the brevity penalty
    ``BP = min(1, exp(1 - reference length / hypothesis length))``.

    Figures from before sacrebleu are of lower-cased Moses tokens. ``Bleu("moses", lowercase=True, name="bleu_paper")`` counts
    these, made as ``tokenizer.perl -a -no-escape`` makes them (a hyphen within a word becomes ``@-@``, a token of its
    own). Its texts are to be plain ones: where they are Moses tokens already, ``tokenize="none"`` is right.

    Args:
        tokenize: sacrebleu's name of a tokenizer, such as ``13a``, ``none``, ``intl``, ``char``, ``zh``; or ``moses``.
        lowercase: compare lower-cased texts.
        name: key of the score. Beside it are ``{name}_bp`` (the brevity penalty), ``{name}_ratio`` (of the lengths, hypotheses
            over references) and ``{name}_precision1`` .. ``{name}_precision4``.
        language: whose rules Moses tokens follow; those of English for a language that sacremoses does not know.

    Raises:
        ConfigurationError: if an argument is not allowed.
        MissingExtraError: if Moses tokens are asked for and sacremoses is missing.

    Source: Papineni et al. (2002), BLEU: a method for automatic evaluation of machine translation; Post (2018), A call for
    clarity in reporting BLEU scores.

    Example:
        >>> metric = Bleu()
        >>> metric.update(["A man is riding a horse."], [["A man rides a horse.", "A man is riding a horse."]])
        >>> float(metric.compute()["bleu"]) > 99.99
        True
        >>> metric.signature.startswith("nrefs:2|case:mixed|eff:no|tok:13a|smooth:exp|version:")
        True
    """

    def __init__(self, tokenize: str = "13a", lowercase: bool = False, name: str = "bleu", language: str = "en") -> None:
        super().__init__(2 + 2 * ORDERS)
        self.tokenize = _check_tokenizer(tokenize)
        self.lowercase = check_flag("lowercase", lowercase)
        self.name = check_name("name", name)
        self.language = language
        if tokenize == "moses":
            _moses(language)  # where it is missing, say so now and not after an epoch of training

    def statistics(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Tensor:
        """Return the lengths of hypothesis and reference, matches and number of n-grams for n = 1..4, (N, 10) int64."""
        scorer, tokenized = self._scorer(), self._tokenized()
        rows = []
        for hypothesis, some in zip(hypotheses, references, strict=True):
            score = scorer.corpus_score([tokenized(hypothesis)], [[tokenized(reference)] for reference in some])
            rows.append([score.sys_len, score.ref_len, *score.counts, *score.totals])
        return torch.tensor(rows)

    @override
    def scores(self, sums: Tensor, number: int) -> dict[str, float]:
        hypothesis, reference, *counts = sums.tolist()
        bleu = self._scorer().compute_bleu(counts[:ORDERS], counts[ORDERS:], hypothesis, reference, smooth_method="exp")
        scores = {self.name: bleu.score, f"{self.name}_bp": bleu.bp, f"{self.name}_ratio": bleu.ratio}
        return scores | {f"{self.name}_precision{n}": precision for n, precision in enumerate(bleu.precisions, 1)}

    @override
    def described(self, references: int | None) -> str:
        signature = _signature_of(self._scorer(), references)
        if self.tokenize == "moses":  # for sacrebleu there was no tokenizer
            signature.update("moses", f"{self.language}-sacremoses-{version('sacremoses')}")
        return str(signature)

    def _scorer(self) -> BLEU:
        return _bleu("none" if self.tokenize == "moses" else self.tokenize, self.lowercase)

    def _tokenized(self) -> Callable[[str], str]:
        return _moses(self.language) if self.tokenize == "moses" else str


class ChrF(TextMetric):
    """Corpus chrF of 0 to 100, that of ``sacrebleu.metrics.CHRF().corpus_score``.

    The F-score, recall weighing twice as much as precision, of character n-grams for n = 1..6; with ``word_order=2`` of words
    and pairs of words beside them (chrF++). With several references the one that an input matches best counts.

    Args:
        word_order: longest n-grams of words; 0 is chrF, 2 is chrF++.
        lowercase: compare lower-cased texts.
        name: key of the score.

    Raises:
        ConfigurationError: if an argument is not allowed.

    Source: Popović (2015), chrF: character n-gram F-score for automatic MT evaluation; Popović (2017), chrF++.

    Example:
        >>> metric = ChrF()
        >>> metric.update(["a horse"], [["a horse"]])
        >>> float(metric.compute()["chrf"])
        100.0
    """

    def __init__(self, word_order: int = 0, lowercase: bool = False, name: str = "chrf") -> None:
        super().__init__(3 * (6 + check_count("word_order", word_order, least=0)))
        self.word_order = word_order
        self.lowercase = check_flag("lowercase", lowercase)
        self.name = check_name("name", name)

    def statistics(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Tensor:
        """Return for each n how many n-grams hypothesis and reference have, and share, (N, 3 * orders) int64."""
        counted = _inner(_chrf(self.word_order, self.lowercase), "_extract_corpus_statistics")
        return torch.tensor(counted(hypotheses, _streams(references)))

    @override
    def scores(self, sums: Tensor, number: int) -> dict[str, float]:
        scored = _inner(_chrf(self.word_order, self.lowercase), "_compute_score_from_stats")
        return {self.name: scored(sums.tolist()).score}

    @override
    def described(self, references: int | None) -> str:
        return str(_signature_of(_chrf(self.word_order, self.lowercase), references))


class PairedBootstrap(NamedTuple):
    """By how much system A is better than system B, and how sure that is."""

    difference: float
    """Score of A less that of B."""
    low: float
    """Of the difference, 2.5 % of the samples are below."""
    high: float
    """Of the difference, 2.5 % of the samples are above."""
    p_value: float
    """How often the difference of samples varies by as much as the difference itself, two-sided."""
    score_a: float
    score_b: float


def paired_bootstrap(
    metric: TextMetric,
    hypotheses_a: Sequence[str],
    hypotheses_b: Sequence[str],
    references: Sequence[Sequence[str]],
    samples: int = 1000,
    seed: int = 0,
    key: str | None = None,
) -> PairedBootstrap:
    """Say whether two systems differ by more than the choice of test inputs explains.

    The same inputs are drawn with replacement for both systems, as many as there are, and scored anew from their statistics:
    no text is read twice. With d the difference and d_s that of sample s,
    ``p = (1 + number of s with |d_s| - mean |d_s| >= |d|) / (1 + samples)``, which is that of sacrebleu but for equality: it
    speaks for chance here, so that a system does not differ from itself (there p is then the smallest possible). The interval
    leaves out the ``samples // 40`` lowest and highest d_s.

    Args:
        metric: what is compared, such as ``Bleu()`` or ``Rouge()``; only its arguments matter.
        hypotheses_a: N texts of the first system.
        hypotheses_b: N texts of the second system.
        references: for each input its references.
        samples: how often inputs are drawn.
        seed: of the draws.
        key: which of the metric's numbers; None means its first.

    Raises:
        ConfigurationError: if ``metric`` is no such metric or has no such key, or ``samples`` is not positive.
        DataError: if there is no input, or the texts are not as they should be.

    Source: Koehn (2004), Statistical significance tests for machine translation evaluation.

    Example:
        >>> references = [["a man rides a horse on the beach"], ["two dogs play in the snow"], ["the girl reads a book"]] * 5
        >>> good = [some[0] for some in references]
        >>> bad = [text.replace("the", "a").replace("a ", "an ") for text in good]
        >>> found = paired_bootstrap(Bleu(), good, bad, references, samples=100)
        >>> 0 < found.low <= found.difference <= found.high and found.p_value < 0.05
        True
    """
    if not isinstance(metric, TextMetric):
        raise ConfigurationError(f"Expected argument `metric` to be a metric of texts, such as Bleu(), but got {metric!r}.")
    check_count("samples", samples)
    generator = np.random.default_rng(check_integer("seed", seed))
    number = len(hypotheses_a)
    systems = []
    for hypotheses in (hypotheses_a, hypotheses_b):
        check_texts(hypotheses, references)
        if not hypotheses:
            raise DataError("Expected texts to compare but got none.")
        systems.append(metric.statistics(hypotheses, references).numpy())
    keys = list(metric.scores(torch.from_numpy(systems[0].sum(0)), number))
    if key is not None and key not in keys:
        hint = did_you_mean(str(key), keys)
        raise ConfigurationError(f"Expected argument `key` to be one of {tuple(keys)} but got {key!r}.{hint}")

    def scored(statistics: np.ndarray[Any, np.dtype[Any]]) -> float:
        return metric.scores(torch.from_numpy(statistics.sum(0)), number)[key or keys[0]]

    score_a, score_b = (scored(statistics) for statistics in systems)
    differences = np.empty(samples)
    for sample in range(samples):
        drawn = generator.choice(number, size=number)
        differences[sample] = scored(systems[0][drawn]) - scored(systems[1][drawn])
    sizes = np.abs(differences)
    beyond = int(np.sum(sizes - sizes.mean() >= abs(score_a - score_b)))
    differences.sort()
    tail = samples // 40
    low, high = float(differences[tail]), float(differences[samples - tail - 1])
    return PairedBootstrap(score_a - score_b, low, high, (1 + beyond) / (1 + samples), score_a, score_b)


def _check_tokenizer(name: str) -> str:
    from sacrebleu.metrics.bleu import BLEU

    allowed = (*BLEU.TOKENIZERS, "moses")
    if name not in allowed:
        raise ConfigurationError(
            f"Expected argument `tokenize` to be one of {allowed} but got {name!r}.{did_you_mean(str(name), allowed)}"
        )
    return name


@lru_cache(maxsize=16)  # not kept in the metric, which is copied and pickled; some tokenizers load a model
def _bleu(tokenize: str, lowercase: bool) -> BLEU:
    from sacrebleu.metrics.bleu import BLEU

    # force: without it sacrebleu warns of tokens in the texts, by a rule that depends on the size of a batch
    return BLEU(lowercase=lowercase, force=True, tokenize=tokenize)


@lru_cache(maxsize=16)
def _chrf(word_order: int, lowercase: bool) -> CHRF:
    from sacrebleu.metrics.chrf import CHRF

    return CHRF(word_order=word_order, lowercase=lowercase)


@lru_cache(maxsize=16)
def _moses(language: str) -> Callable[[str], str]:
    try:
        from sacremoses import MosesTokenizer  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ModuleNotFoundError as error:
        raise MissingExtraError("The tokens of Moses", "text") from error
    tokenizer = MosesTokenizer(lang=language)

    def tokenized(text: str) -> str:
        return str(tokenizer.tokenize(text, aggressive_dash_splits=True, return_str=True, escape=False))

    return tokenized


def _streams(references: Sequence[Sequence[str]]) -> list[list[str | None]]:
    """Return first references, second ones and so on, None where an input has fewer, as sacrebleu takes them."""
    most = max(len(some) for some in references)
    return [[some[number] if number < len(some) else None for some in references] for number in range(most)]


def _signature_of(scorer: BLEU | CHRF, references: int | None) -> Any:
    """Return sacrebleu's signature for so many references an input, None where that differs."""
    numbers = [1, 2] if references is None else [references]
    streams: Any = _streams([["text"] * number for number in numbers])
    scorer.corpus_score(["text"] * len(numbers), streams)  # it learns the number from what it scored last
    return scorer.get_signature()


def _inner(scorer: CHRF, method: str) -> Callable[..., Any]:
    """Return a method that sacrebleu keeps to itself: its chrF has no other way to the counts.

    Raises:
        ImportError: if this version of sacrebleu has none of that name.
    """
    found: Callable[..., Any] | None = getattr(scorer, method, None)
    if found is None:
        raise ImportError(
            f"chrF needs the method {method} of sacrebleu.metrics.CHRF, which sacrebleu {version('sacrebleu')} lacks. "
            "Install one that has it, with: pip install 'sacrebleu>=2.4,<3'"
        )
    return found
