"""ROUGE of summaries: common n-grams, longest common subsequences, and weighted ones that favour consecutive matches."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from importlib.metadata import version
from itertools import chain, groupby
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from lit_sparse.checks import Count, Number, ranges
from lit_sparse.errors import ConfigurationError
from lit_sparse.metrics.exact_metric import TextMetric, check_name

__all__ = ["Overlap", "Rouge", "RougeScore", "combine", "first_bytes", "overlaps", "rouge_w", "weighted_lcs"]

TYPES = re.compile(r"rouge([1-9]|L|W|W155)")


class RougeScore(NamedTuple):
    """ROUGE score of a summary: precision, recall and their harmonic mean F1, between 0 and 1."""

    precision: float
    recall: float
    f1: float


class Overlap(NamedTuple):
    """Overlap of a hypothesis and a reference: numbers (or weights) of shared, hypothesis and reference items such as n-grams.

    They can be added over references. ``power`` is the exponent of a run's length in its weight, 1 for plain numbers.
    """

    shared: float
    """Number, or weight, of the common items."""
    hypothesis: float
    """Number, or weight, of the hypothesis's items."""
    reference: float
    """Number, or weight, of the reference's items."""
    power: float = 1.0
    """Exponent of a run's length in its weight."""

    def score(self) -> RougeScore:
        """Return precision, recall and F1 of the overlap.

        Precision is ``f^-1(shared / hypothesis)`` and recall ``f^-1(shared / reference)``, with ``f(k) = k^power``.
        """
        precision, recall = (
            min(self.shared / total, 1.0) ** (1.0 / self.power) if total else 0.0  # min, because weights are rounded
            for total in (self.hypothesis, self.reference)
        )
        both = precision + recall
        return RougeScore(precision, recall, 2 * precision * recall / both if both else 0.0)


def first_bytes(text: str, number: int) -> str:
    """Return the longest prefix of a text with at most ``number`` bytes in UTF-8.

    Example:
        >>> first_bytes("naïve", 3), first_bytes("naïve", 4)
        ('na', 'naï')
    """
    return text.encode()[:number].decode(errors="ignore")


def weighted_lcs(hypothesis: Sequence[str], reference: Sequence[str], weight: float = 1.2) -> float:
    """Return the weight of the weighted longest common subsequence, in which a run of k common words weighs ``k^weight``.

    This is the recursion of the paper's section 4, which is greedy: for ``weight > 1`` and repeated words, another
    subsequence may weigh more.

    Args:
        hypothesis: tokens.
        reference: tokens.
        weight: exponent of a run's length.

    Source: Lin (2004), ROUGE: A Package for Automatic Evaluation of Summaries, section 4.

    Example:
        >>> weighted_lcs("a b c d h i k".split(), "a b c d e f g".split(), weight=2)
        16.0
        >>> weighted_lcs("a h b k c i d".split(), "a b c d e f g".split(), weight=2)
        4.0
    """
    return _weighted_table(reference, hypothesis, weight)[-1][-1]


def rouge_w(hypothesis: Sequence[str], reference: Sequence[str], weight: float = 1.2) -> RougeScore:
    """Return the ROUGE-W score of a hypothesis, based on the weighted longest common subsequence (WLCS).

    Recall is ``f^-1(WLCS / f(reference length))`` with ``f(k) = k^weight``, and precision has the hypothesis's length.

    Args:
        hypothesis: tokens.
        reference: tokens.
        weight: exponent of a run's length; 1 gives ROUGE-L.

    Source: Lin (2004), ROUGE: A Package for Automatic Evaluation of Summaries, section 4.

    Example:
        >>> in_a_row, apart, reference = (
        ...     text.split()
        ...     for text in ("a b c d h i k", "a h b k c i d", "a b c d e f g")
        ... )
        >>> [
        ...     round(rouge_w(hypothesis, reference, weight=2).f1, 3)
        ...     for hypothesis in (in_a_row, apart)
        ... ]
        [0.571, 0.286]
    """
    return _weighted_overlap(hypothesis, reference, weight).score()


def overlaps(
    hypothesis: Sequence[str], reference: Sequence[str], types: Iterable[str], weight: float = 1.2
) -> dict[str, Overlap]:
    """Return the overlap of a hypothesis with a reference for each type of ROUGE.

    Args:
        hypothesis: tokens without spaces.
        reference: tokens.
        types: types of ROUGE; see :class:`Rouge`.
        weight: exponent in ROUGE-W.

    Example:
        >>> overlaps("the cat".split(), "the cat sat".split(), ["rouge2"])["rouge2"]
        Overlap(shared=1, hypothesis=1, reference=2, power=1.0)
    """
    weighted = {"rougeW": _weighted_overlap, "rougeW155": _overlap_of_script}
    counted = tuple(kind for kind in types if kind not in weighted)
    scores = _scorer(counted).score(" ".join(reference), " ".join(hypothesis))
    result = {}
    for kind in types:
        if kind in weighted:
            result[kind] = weighted[kind](hypothesis, reference, weight)
        else:
            less = 0 if kind == "rougeL" else int(kind[-1]) - 1
            of_hypothesis, of_reference = (max(len(tokens) - less, 0) for tokens in (hypothesis, reference))
            result[kind] = Overlap(round(scores[kind].precision * of_hypothesis), of_hypothesis, of_reference)
    return result


def combine(found: Sequence[Overlap], references: str) -> RougeScore:
    """Return one ROUGE score for a hypothesis with several references.

    Args:
        found: overlap of the hypothesis with each reference.
        references: rule of combination, see :class:`Rouge`.

    Example:
        >>> both = [Overlap(2, 4, 4), Overlap(4, 4, 8)]
        >>> [combine(both, rule).recall for rule in ("average", "best", "pooled")]
        [0.5, 0.5, 0.5]
        >>> [combine(both, rule).precision for rule in ("average", "best", "pooled")]
        [0.75, 1.0, 0.75]
    """
    if references == "pooled":
        shared, hypothesis, reference = (sum(overlap[column] for overlap in found) for column in range(3))
        return Overlap(shared, hypothesis, reference, found[0].power).score()
    scores = [overlap.score() for overlap in found]
    if references == "best":
        return max(scores, key=lambda score: score.f1)
    return RougeScore(*(sum(column) / len(scores) for column in zip(*scores, strict=True)))


@ranges(truncate_bytes=Count(), weight=Number(1.0, 10.0))
class Rouge(TextMetric):
    """Metric: ROUGE of summaries, the mean over inputs of F1, precision and recall, between 0 and 100.

    ROUGE-1, -2 (.. -9) and -L agree with the package rouge-score; ROUGE-W is :func:`rouge_w`. Each text counts as one
    sentence, as for headlines. Results of ``ROUGE-1.5.5.pl -m -b 75 -w 1.2``, usual for DUC, are comparable with
    ``Rouge(("rouge1", "rouge2", "rougeL", "rougeW155"), 75, references="pooled", use_stemmer=True)``.

    Args:
        types: ``rouge1`` .. ``rouge9`` (n-grams), ``rougeL`` (longest common subsequence), ``rougeW`` (the weighted one, by
            the paper's formula) and ``rougeW155``, ROUGE-W as the script ROUGE-1.5.5 computes it. The script departs from
            the formula twice. It detects runs in the reference alone, and it weights the reference's length twice,
            ``recall = f^-1(shared / f(f(length)))``, which lowers the recall by more than a third for ten words.
        truncate_bytes: number of bytes read of each text, hypotheses and references alike; None for all. This follows
            ``ROUGE-1.5.5.pl -b``: its manual mentions only the system's summary, but one routine reads and cuts both,
            before tokenization, so a word may be cut in half. Table 7 of Niculae & Blondel (2017) confirms it: on Gigaword
            recall is higher with the limit than without, which shorter hypotheses cannot cause.
        references: rule for several references. ``average`` is the mean of their scores. ``best`` is the score for the
            reference with the highest F1, the first of equal ones. ``pooled`` divides the overlap with all of them by their
            total, as in ROUGE-1.5.5 (``-f A``) and in the paper's formula of ROUGE-N.
        use_stemmer: whether to compare Porter stems of words with more than three letters, as the script's ``-m`` does.
        weight: exponent of a run's length in ROUGE-W, >= 1.
        name: prefix of the keys; None for ``rouge``, with truncation followed by the bytes, such as ``rouge75``, so that
            both can be logged together. Keys are ``{name}1`` for F1, ``{name}1_precision``, ``{name}1_recall`` and so on;
            ``_`` follows a name that ends in a digit, as in ``rouge75_1``.
        tokenizer: ``rouge_score`` lower-cases and keeps runs of a-z and 0-9, as ROUGE-1.5.5 does. It drops all other
            characters: the ``#`` for digits in Gigaword, and every letter that is not English, and warns once if these are
            most letters of a reference. ``spaces`` splits at spaces.
        options: keyword arguments of torchmetrics, such as ``sync_on_compute``.

    Raises:
        ConfigurationError: if an argument is not allowed.

    Source: Lin (2004), ROUGE: A Package for Automatic Evaluation of Summaries.

    Example:
        >>> metric = Rouge(types=("rouge1", "rougeL"))
        >>> metric.update(["police killed the gunman"], [["the gunman police killed"]])
        >>> {
        ...     key: float(value)
        ...     for key, value in metric.compute().items()
        ...     if "_" not in key
        ... }
        {'rouge1': 100.0, 'rougeL': 50.0}
    """

    def __init__(
        self,
        types: tuple[str, ...] = ("rouge1", "rouge2", "rougeL", "rougeW"),
        truncate_bytes: int | None = None,
        references: Literal["average", "best", "pooled"] = "average",
        use_stemmer: bool = False,
        weight: float = 1.2,
        name: str | None = None,
        tokenizer: Literal["rouge_score", "spaces"] = "rouge_score",
        **options: Any,
    ) -> None:
        self_types = _check_types(types)
        super().__init__(3 * len(self_types), torch.float64, **options)
        self.types = self_types
        self.truncate_bytes, self.references, self.use_stemmer = truncate_bytes, references, use_stemmer
        self.weight, self.tokenizer = weight, tokenizer
        self.name = f"rouge{truncate_bytes or ''}" if name is None else check_name("name", name)
        self._warned = False
        if use_stemmer and tokenizer == "spaces":
            raise ConfigurationError("`use_stemmer=True` needs `tokenizer='rouge_score'`, whose words are English.")

    def statistics(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Tensor:
        """Return F1, precision and recall of each type, (N, 3 * types) float64."""
        tokens = self._tokens()
        if self.tokenizer == "rouge_score":
            self._warn_of_letters(chain.from_iterable(references))
        rows = []
        for hypothesis, some in zip(hypotheses, references, strict=True):
            tokens_of_hypothesis = tokens(hypothesis)
            found = [overlaps(tokens_of_hypothesis, tokens(reference), self.types, self.weight) for reference in some]
            scores = [combine([shared[kind] for shared in found], self.references) for kind in self.types]
            rows.append([value for score in scores for value in (score.f1, score.precision, score.recall)])
        return torch.tensor(rows, dtype=torch.float64)

    @override
    def scores(self, sums: Tensor, number: int) -> dict[str, float]:
        between = "_" if self.name[-1].isdigit() else ""
        bare = [f"{self.name}{between}{kind.removeprefix('rouge')}" for kind in self.types]
        keys = [key + statistic for key in bare for statistic in ("", "_precision", "_recall")]
        return dict(zip(keys, (100 * sums / number).tolist(), strict=True))

    @override
    def described(self, references: int | None) -> str:
        number, stem = "var" if references is None else references, "yes" if self.use_stemmer else "no"
        settings = f"refs:{self.references}|tok:{self.tokenizer}|stem:{stem}|bytes:{self.truncate_bytes or 'all'}"
        return f"nrefs:{number}|{settings}|w:{self.weight:g}|version:rouge-score-{version('rouge-score')}"

    def _warn_of_letters(self, texts: Iterable[str]) -> None:
        """Warn, once, if the tokenizer drops most letters of a text."""
        foreign = (text for text in texts if not text.isascii() and _is_mostly_dropped(text))
        if not self._warned and (text := next(foreign, None)) is not None:
            self._warned = True
            warnings.warn(
                f"Rouge's tokenizer 'rouge_score' keeps only a-z and 0-9, so it drops most letters of {text[:40]!r}, and even a"
                " perfect output scores little or 0. Use tokenizer='spaces', on texts with spaces between words.",
                stacklevel=2,
            )

    def _tokens(self) -> Callable[[str], list[str]]:
        """Return the function that tokenizes a text."""
        tokenize = str.split if self.tokenizer == "spaces" else _tokenizer(self.use_stemmer)
        limit = self.truncate_bytes
        return tokenize if limit is None else lambda text: tokenize(first_bytes(text, limit))


def _is_mostly_dropped(text: str) -> bool:
    letters = [character for character in text if character.isalpha()]
    return 2 * sum(letter.isascii() for letter in letters) < len(letters)


def _check_types(types: Sequence[str]) -> tuple[str, ...]:
    if isinstance(types, str) or not types or not all(isinstance(kind, str) and TYPES.fullmatch(kind) for kind in types):
        raise ConfigurationError(
            f"Expected argument `types` to be some of 'rouge1' .. 'rouge9', 'rougeL', 'rougeW', 'rougeW155' but got {types!r}."
        )
    if len(set(types)) < len(types):
        raise ConfigurationError(f"Expected argument `types` without repetition but got {types!r}.")
    return tuple(types)


@lru_cache(maxsize=2)  # not attributes, because metrics are copied and pickled
def _tokenizer(use_stemmer: bool) -> Callable[[str], list[str]]:
    from rouge_score.tokenizers import DefaultTokenizer  # type: ignore[import-untyped, unused-ignore]

    tokenize: Callable[[str], list[str]] = DefaultTokenizer(use_stemmer).tokenize
    return tokenize


@lru_cache(maxsize=16)
def _scorer(types: tuple[str, ...]) -> Any:
    from rouge_score.rouge_scorer import RougeScorer  # type: ignore[import-untyped, unused-ignore]

    return RougeScorer(types, tokenizer=SimpleNamespace(tokenize=str.split))  # of texts that are already tokenized


def _weighted_overlap(hypothesis: Sequence[str], reference: Sequence[str], weight: float) -> Overlap:
    return Overlap(weighted_lcs(hypothesis, reference, weight), len(hypothesis) ** weight, len(reference) ** weight, weight)


def _overlap_of_script(hypothesis: Sequence[str], reference: Sequence[str], weight: float) -> Overlap:
    """Return the overlap in ROUGE-W as the script ROUGE-1.5.5 counts it; see ``rougeW155`` in :class:`Rouge`."""
    table = _weighted_table(reference, hypothesis, weight)
    matched = [False] * len(reference)
    i, j = len(reference), len(hypothesis)
    while i and j:
        if reference[i - 1] == hypothesis[j - 1]:
            i, j = i - 1, j - 1
            matched[i] = True
        elif table[i - 1][j] >= table[i][j - 1]:
            i -= 1
        else:
            j -= 1
    shared = sum(len(list(run)) ** weight for match, run in groupby(matched) if match)
    return Overlap(shared, len(hypothesis) ** weight, len(reference) ** (weight * weight), weight)


def _weighted_table(rows: Sequence[str], columns: Sequence[str], weight: float) -> list[list[float]]:
    """Return the weight of the common subsequence of the first i and first j tokens, for all i and j from 0."""
    powers = [length**weight for length in range(min(len(rows), len(columns)) + 1)]
    table = [[0.0] * (len(columns) + 1)]
    runs = [0] * (len(columns) + 1)  # length of the run that ends at the last row, per column
    for row in rows:
        above, before, runs = table[-1], runs, [0]
        current = [0.0]
        for j, column in enumerate(columns):
            if row == column:
                length = before[j]
                current.append(above[j] + powers[length + 1] - powers[length])
                runs.append(length + 1)
            else:
                current.append(max(above[j + 1], current[j]))
                runs.append(0)
        table.append(current)
    return table
