"""Corpus BLEU and chrF by sacrebleu, and a significance test for the difference of two systems."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.metadata import version
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from lit_sparse.checks import MOST_LAYERS, Count, check_count, ranges
from lit_sparse.errors import ConfigurationError, DataError, did_you_mean, needs_extra
from lit_sparse.ground.arguments import checked
from lit_sparse.metrics.exact_metric import TextMetric, check_name, check_texts

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

__all__ = ["Bleu", "ChrF", "PairedBootstrap", "paired_bootstrap"]

#: Longest n-grams in BLEU.
ORDERS = 4


class Bleu(TextMetric):
    r"""Corpus BLEU between 0 and 100, exactly equal to ``sacrebleu.metrics.BLEU().corpus_score``.

    .. math:: BLEU = BP \exp\Big(\frac{1}{4} \sum_{n=1}^4 \log \mathrm{precision}_n\Big)

    The n-grams are counted over all inputs. The brevity penalty is ``BP = min(1, exp(1 - reference length / hypothesis
    length))``.

    Before sacrebleu, BLEU was usually computed on lower-cased Moses tokens. ``Bleu("moses", lowercase=True,
    name="bleu_paper")`` tokenizes plain texts as ``tokenizer.perl -a -no-escape`` does: a hyphen within a word becomes the
    token ``@-@``. For texts that are already Moses tokens, use ``tokenize="none"``.

    Args:
        tokenize: tokenizer of sacrebleu, such as ``13a``, ``none``, ``intl``, ``char``, ``zh``; or ``moses``.
        lowercase: whether to compare lower-cased texts.
        name: key of the score. Further keys are ``{name}_bp`` (the brevity penalty), ``{name}_ratio`` (length of hypotheses
            over length of references) and ``{name}_precision1`` .. ``{name}_precision4``.
        language: language of the Moses tokenizer; the rules of English apply to languages that sacremoses does not support.
        options: keyword arguments of torchmetrics, such as ``sync_on_compute``.

    Raises:
        ConfigurationError: if an argument is not allowed.
        MissingExtraError: if ``tokenize`` is ``moses`` and sacremoses is missing.

    Source: Papineni, Roukos, Ward & Zhu (2002), BLEU: a Method for Automatic Evaluation of Machine Translation,
    doi:10.3115/1073083.1073135. Post (2018), A Call for Clarity in Reporting BLEU Scores, arXiv:1804.08771.

    Example:
        >>> metric = Bleu()
        >>> metric.update(
        ...     ["A man is riding a horse."],
        ...     [["A man rides a horse.", "A man is riding a horse."]],
        ... )
        >>> float(metric.compute()["bleu"]) > 99.99
        True
        >>> metric.signature.startswith(
        ...     "nrefs:2|case:mixed|eff:no|tok:13a|smooth:exp|version:"
        ... )
        True
    """

    def __init__(
        self, tokenize: str = "13a", lowercase: bool = False, name: str = "bleu", language: str = "en", **options: Any
    ) -> None:
        super().__init__(2 + 2 * ORDERS, **options)
        self.tokenize = _check_tokenizer(tokenize)
        self.lowercase = lowercase
        self.name = check_name("name", name)
        self.language = language
        if tokenize == "moses":
            _moses(language)  # raise a missing extra now, not after an epoch of training

    def statistics(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Tensor:
        """Return the lengths of hypothesis and reference, and matches and totals of n-grams for n = 1..4, (N, 10) int64."""
        scorer, tokenized = self._scorer(), _moses(self.language) if self.tokenize == "moses" else str
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
        if self.tokenize == "moses":  # sacrebleu itself ran without a tokenizer
            signature.update("moses", f"{self.language}-sacremoses-{version('sacremoses')}")
        return str(signature)

    def _scorer(self) -> BLEU:
        return _bleu("none" if self.tokenize == "moses" else self.tokenize, self.lowercase)


@ranges(word_order=Count(0, MOST_LAYERS))
class ChrF(TextMetric):
    """Corpus chrF between 0 and 100, equal to ``sacrebleu.metrics.CHRF().corpus_score``.

    The F-score of character n-grams for n = 1..6, with twice the weight on recall; ``word_order=2`` adds words and pairs of
    words (chrF++). With several references the best match of each input counts.

    Args:
        word_order: length of the longest word n-grams; 0 is chrF, 2 is chrF++.
        lowercase: whether to compare lower-cased texts.
        name: key of the score.
        options: keyword arguments of torchmetrics, such as ``sync_on_compute``.

    Raises:
        ConfigurationError: if an argument is not allowed.

    Source: Popović (2015), chrF: character n-gram F-score for automatic MT evaluation, doi:10.18653/v1/W15-3049. Popović
    (2017), chrF++: words helping character n-grams, doi:10.18653/v1/W17-4770.

    Example:
        >>> metric = ChrF()
        >>> metric.update(["a horse"], [["a horse"]])
        >>> float(metric.compute()["chrf"])
        100.0
    """

    def __init__(self, word_order: int = 0, lowercase: bool = False, name: str = "chrf", **options: Any) -> None:
        super().__init__(3 * (6 + word_order), **options)
        self.word_order, self.lowercase = word_order, lowercase
        self.name = check_name("name", name)

    def statistics(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Tensor:
        """Return for each n the numbers of n-grams in hypothesis, reference and both, (N, 3 * orders) int64."""
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
    """Difference between the scores of systems A and B, and its significance: the result of :func:`paired_bootstrap`.

    ``low`` and ``high`` are the ends of the 95 % interval of the difference ``score_a - score_b``, ``p_value`` and
    ``one_sided`` its two-sided and one-sided p-value.
    """

    difference: float
    """Score of A minus score of B."""
    low: float
    """Lower end of the 95 % interval of the difference."""
    high: float
    """Upper end of the 95 % interval of the difference."""
    p_value: float
    """sacrebleu's p-value: frequency with which the size of a resampled difference is above the mean size by the size of the
    difference or more."""
    score_a: float
    score_b: float
    one_sided: float
    """Share of the resamples in which the system of the smaller score is at least as good as the other."""


@checked
def paired_bootstrap(
    metric: TextMetric,
    hypotheses_a: Sequence[str],
    hypotheses_b: Sequence[str],
    references: Sequence[Sequence[str]],
    samples: int = 1000,
    seed: int = 0,
    key: str | None = None,
) -> PairedBootstrap:
    """Return the difference between two systems' scores, with its p-value and confidence interval by the paired bootstrap.

    The same inputs are sampled with replacement for both systems, as many as given, and scored from statistics computed
    once. With d the difference and d_s the difference in sample s, ``p = (1 + number of s with |d_s| - mean |d_s| >= |d|) /
    (1 + samples)``. This is sacrebleu's p-value except that ties count as evidence for chance, so a system compared with
    itself is never significant. It is smaller than the one-sided share ``(1 + number of s with d d_s <= 0) / (1 +
    samples)`` if the resampled differences vary little relative to their mean. The interval leaves out the ``samples // 40``
    lowest and highest d_s. These numbers describe the variation over test inputs, not over training seeds.

    Args:
        metric: metric to compare by, such as ``Bleu()`` or ``Rouge()``; only its arguments are used.
        hypotheses_a: N texts of the first system.
        hypotheses_b: N texts of the second system.
        references: references of each input.
        samples: number of resamples.
        seed: seed of the resamples.
        key: key among the metric's values; None for the first.

    Raises:
        ConfigurationError: if ``metric`` is not a text metric or lacks the key, or ``samples`` is not positive.
        DataError: if there are no inputs, or the texts have a wrong form.

    Source: Koehn (2004), Statistical Significance Tests for Machine Translation Evaluation.

    Example:
        >>> references = [
        ...     ["a man rides a horse on the beach"],
        ...     ["two dogs play in the snow"],
        ...     ["the girl reads a book"],
        ... ] * 5
        >>> good = [some[0] for some in references]
        >>> bad = [text.replace("the", "a").replace("a ", "an ") for text in good]
        >>> found = paired_bootstrap(Bleu(), good, bad, references, samples=100)
        >>> 0 < found.low <= found.difference <= found.high and found.p_value < 0.05
        True
    """
    if not isinstance(metric, TextMetric):
        raise ConfigurationError(f"Expected argument `metric` to be a text metric, such as Bleu(), but got {metric!r}.")
    return compare_resampled(
        *(
            resampled_scores(metric, hypotheses, references, samples=samples, seed=seed, key=key)
            for hypotheses in (hypotheses_a, hypotheses_b)
        )
    )


def resampled_scores(
    metric: TextMetric,
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    samples: int = 1000,
    seed: int = 0,
    key: str | None = None,
) -> list[float]:
    """Return the score of a system, and its scores on resampled inputs, which are the same for every system.

    For the arguments, see :func:`paired_bootstrap`.

    Raises:
        ConfigurationError: if the metric lacks the key.
        DataError: if there are no inputs.
    """
    check_count("samples", samples)
    generator = np.random.default_rng(check_count("seed", seed, 0))
    check_texts(hypotheses, references)
    if not hypotheses:
        raise DataError("Expected texts to compare but got none.")
    number, statistics = len(hypotheses), metric.statistics(hypotheses, references).numpy()
    keys = list(metric.scores(torch.from_numpy(statistics.sum(0)), number))
    if key is not None and key not in keys:
        hint = did_you_mean(str(key), keys)
        raise ConfigurationError(f"Expected argument `key` to be one of {tuple(keys)} but got {key!r}.{hint}")
    drawn = chain([np.arange(number)], (generator.choice(number, size=number) for _ in range(samples)))
    return [metric.scores(torch.from_numpy(statistics[rows].sum(0)), number)[key or keys[0]] for rows in drawn]


def compare_resampled(a: Sequence[float], b: Sequence[float]) -> PairedBootstrap:
    """Return the paired bootstrap of two systems, given what :func:`resampled_scores` returned for each."""
    differences, samples = np.subtract(a[1:], b[1:]), len(a) - 1
    sizes = np.abs(differences)
    beyond = int(np.sum(sizes - sizes.mean() >= abs(a[0] - b[0])))
    turned = int(np.sum(differences * (a[0] - b[0]) <= 0))
    differences.sort()
    tail = samples // 40
    low, high = float(differences[tail]), float(differences[samples - tail - 1])
    p_value, one_sided = ((1 + count) / (1 + samples) for count in (beyond, turned))
    return PairedBootstrap(a[0] - b[0], low, high, p_value, a[0], b[0], one_sided)


def _check_tokenizer(name: str) -> str:
    from sacrebleu.metrics.bleu import BLEU

    allowed = (*BLEU.TOKENIZERS, "moses")
    if name not in allowed:
        raise ConfigurationError(
            f"Expected argument `tokenize` to be one of {allowed} but got {name!r}.{did_you_mean(str(name), allowed)}"
        )
    return name


@lru_cache(maxsize=16)  # not an attribute, because metrics are copied and pickled, and some tokenizers load a model
def _bleu(tokenize: str, lowercase: bool) -> BLEU:
    from sacrebleu.metrics.bleu import BLEU

    try:
        # force: otherwise sacrebleu warns of tokenized texts, by a rule that depends on the batch size
        return BLEU(lowercase=lowercase, force=True, tokenize=tokenize)
    except (ImportError, OSError, RuntimeError) as error:  # the tokenizer's package is missing, or its model
        reason = " ".join(str(error).split())
        raise ConfigurationError(
            f"Expected the tokenizer {tokenize!r} of sacrebleu to be available but got: {reason}"
        ) from error


@lru_cache(maxsize=16)
def _chrf(word_order: int, lowercase: bool) -> CHRF:
    from sacrebleu.metrics.chrf import CHRF

    return CHRF(word_order=word_order, lowercase=lowercase)


@lru_cache(maxsize=16)
def _moses(language: str) -> Callable[[str], str]:
    with needs_extra("text", "The tokens of Moses"):
        from sacremoses import MosesTokenizer  # type: ignore[import-not-found, import-untyped, unused-ignore]
    tokenizer = MosesTokenizer(lang=language)

    def tokenized(text: str) -> str:
        return str(tokenizer.tokenize(text, aggressive_dash_splits=True, return_str=True, escape=False))

    return tokenized


def _streams(references: Sequence[Sequence[str]]) -> list[list[str | None]]:
    """Return the first references, the second ones and so on, with None for missing ones, as sacrebleu expects them."""
    return [list(stream) for stream in zip_longest(*references)]


def _signature_of(scorer: BLEU | CHRF, references: int | None) -> Any:
    """Return sacrebleu's signature for a number of references per input, None if it varies."""
    numbers = [1, 2] if references is None else [references]
    streams: Any = _streams([["text"] * number for number in numbers])
    scorer.corpus_score(["text"] * len(numbers), streams)  # the signature contains the number of the last scored references
    return scorer.get_signature()


def _inner(scorer: CHRF, method: str) -> Callable[..., Any]:
    """Return a private method of sacrebleu's chrF, which has no public access to the counts.

    Raises:
        ImportError: if this version of sacrebleu lacks the method.
    """
    found: Callable[..., Any] | None = getattr(scorer, method, None)
    if found is None:
        raise ImportError(
            f"chrF needs the method {method} of sacrebleu.metrics.CHRF, which sacrebleu {version('sacrebleu')} lacks. "
            "Install a version with the method: pip install 'sacrebleu>=2.4,<3'"
        )
    return found
