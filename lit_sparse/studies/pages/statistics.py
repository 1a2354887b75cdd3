"""Statistics that compare several classifiers over many runs each.

The procedure follows Thom & Palm (2013), section 5: samples are trimmed, tested for normality (Shapiro & Wilk) and equal
variances (Levene), and, where these are not equal, compared by ranks (Kruskal & Wallis). Two classifiers differ where
their mean ranks do by more than Dunn's critical difference in the modification of Tukey and Kramer; how much, the probability
of superiority tells.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from lit_sparse.ground.figure_text import literal, new_figure
from lit_sparse.studies.jobs.rows import Row
from lit_sparse.studies.pages.figures import write_png
from lit_sparse.studies.pages.tables import by_size, markdown, numbers
from lit_sparse.studies.plan.study import Study

#: Values a sample needs for its normality to be tested.
LEAST = 3
#: Points of an integral.
POINTS = 4000


def trimmed(sample: Sequence[float], cut: int = 4) -> list[float]:
    """Return a sorted sample without its ``cut`` smallest and largest values, or untrimmed if fewer than three would remain.

    Example:
        >>> trimmed([5.0, 1.0, 3.0, 9.0, 4.0], cut=1)
        [3.0, 4.0, 5.0]
    """
    ordered = sorted(sample)
    return ordered[cut:-cut] if cut and len(ordered) - 2 * cut >= LEAST else ordered


def superiority(a: Sequence[float], b: Sequence[float]) -> float:
    """Return Mann & Whitney's estimate U / (n m) of the probability P(A < B), counting ties by half.

    Example:
        >>> superiority([1, 2], [2, 3])
        0.875
    """
    return float(stats.mannwhitneyu(b, a).statistic) / (len(a) * len(b))


def gaussian_superiority(a: Sequence[float], b: Sequence[float]) -> float:
    r"""Return the minimum-variance unbiased estimate of P(A < B) for independent Gaussians of unknown means and variances.

    By the Rao-Blackwell theorem, it is the probability that the first observation of A is below the first of B, given the
    means and sums of squares of both samples. Given these, an observation is ``mean + spread w`` with ``spread = (n - 1) /
    sqrt(n) s``, and ``(1 + w) / 2`` has a beta distribution with both parameters ``n / 2 - 1``.

    Args:
        a: n >= 3 numbers; the result is NaN if one is not finite.
        b: m >= 3 numbers.

    Raises:
        ValueError: for fewer than three numbers in a sample.

    Source: Downton (1973), The estimation of Pr{Y < X} in the normal case.

    Example:
        >>> round(gaussian_superiority([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]), 9)
        0.5
    """
    if min(len(a), len(b)) < LEAST:
        raise ValueError(f"Expected at least {LEAST} values in each sample but got {len(a)} and {len(b)}.")
    if not np.isfinite([*a, *b]).all():
        return math.nan
    one, two = ((np.mean(x), (len(x) - 1) / math.sqrt(len(x)) * np.std(x, ddof=1), len(x) / 2 - 1) for x in (a, b))
    if one[1] == 0 and two[1] == 0:
        return float((one[0] < two[0]) + 0.5 * (one[0] == two[0]))
    if two[1] == 0:
        return 1 - gaussian_superiority(b, a)
    quantiles = (np.arange(POINTS) + 0.5) / POINTS  # in place of the density, which may have poles
    first = one[0] + one[1] * (2 * stats.beta.ppf(quantiles, one[2], one[2]) - 1)
    return float(stats.beta.sf((1 + (first - two[0]) / two[1]) / 2, two[2], two[2]).mean())


@dataclass(frozen=True)
class Comparison:
    """Result of the tests that compare several samples.

    Attributes:
        normality: name -> statistic and p-value of the Shapiro-Wilk test.
        levene: statistic and p-value of Levene's test of equal variances.
        kruskal: statistic and p-value of the Kruskal-Wallis test.
        ranks: name -> mean rank; the smallest is the best.
        differences: pair of names -> critical difference of their mean ranks.
        groups: maximal groups of names whose ranks do not differ significantly, best first.
    """

    normality: dict[str, tuple[float, float]]
    levene: tuple[float, float]
    kruskal: tuple[float, float]
    ranks: dict[str, float]
    differences: dict[tuple[str, str], float]
    groups: list[list[str]]


def compare(samples: Mapping[str, Sequence[float]], level: float = 0.05) -> Comparison:
    """Return a comparison by ranks of at least two samples of at least three numbers each, where smaller is better.

    Args:
        samples: name -> numbers, which may be infinite.
        level: significance level for all pairs together.

    Raises:
        ValueError: for fewer or smaller samples, or NaN, which has no rank.
    """
    small = [name for name, sample in samples.items() if len(sample) < LEAST]
    if len(samples) < 2 or small:
        raise ValueError(
            f"Expected at least two samples of at least {LEAST} values each but {small or list(samples)} are fewer."
        )
    if broken := [name for name, sample in samples.items() if np.isnan([*sample]).any()]:
        raise ValueError(f"Expected numbers to rank but got NaN in {broken}.")
    values = pd.concat({name: pd.Series(sample, dtype=float) for name, sample in samples.items()})
    ranked = values.rank()
    ranks: dict[str, float] = ranked.groupby(level=0, sort=False).mean().to_dict()
    variance = len(values) * (len(values) + 1) / 12 * float(stats.tiecorrect(ranked))
    quantile = float(stats.studentized_range.ppf(1 - level, len(samples), np.inf))
    names = sorted(samples, key=ranks.__getitem__)
    differences = {
        (one, two): quantile / math.sqrt(2) * math.sqrt(variance * (1 / len(samples[one]) + 1 / len(samples[two])))
        for one, two in combinations(names, 2)
    }
    constant, finite = values.nunique() == 1, bool(np.isfinite(values).all())
    return Comparison(
        normality={name: _shapiro(sample) for name, sample in samples.items()},
        levene=(math.nan, 1.0) if constant else _pair(stats.levene(*samples.values())) if finite else (math.nan, math.nan),
        kruskal=(0.0, 1.0) if constant else _pair(stats.kruskal(*samples.values())),
        ranks=ranks,
        differences=differences,
        groups=_groups(names, ranks, differences),
    )


def _pair(found: Any) -> tuple[float, float]:
    return float(found.statistic), float(found.pvalue)


def _shapiro(sample: Sequence[float]) -> tuple[float, float]:
    return _pair(stats.shapiro(sample)) if len(set(sample)) > 1 and np.isfinite(sample).all() else (math.nan, math.nan)


def _groups(names: Sequence[str], ranks: Mapping[str, float], differences: Mapping[tuple[str, str], float]) -> list[list[str]]:
    """Return the longest runs of names in the order of their ranks of which no two differ."""
    apart = {pair for pair, least in differences.items() if ranks[pair[1]] - ranks[pair[0]] > least}
    runs = [names[start:end] for start, end in combinations(range(len(names) + 1), 2)]
    alike = [[*run] for run in runs if apart.isdisjoint(combinations(run, 2))]
    return [run for run in alike if not any({*run} < {*other} for other in alike)]


def critical_difference_diagram(axis: Any, comparison: Comparison, level: float = 0.05) -> None:
    """Draw the mean ranks of samples along a line, with a bar over each group that does not differ significantly.

    Args:
        axis: a matplotlib axis.
        comparison: result of :func:`compare`.
        level: significance level of the comparison.

    Source: Demsar (2006), Statistical comparisons of classifiers over multiple data sets, for samples that are not paired.
    """
    names = sorted(comparison.ranks, key=comparison.ranks.__getitem__)
    for place, name in enumerate(names):
        rank = comparison.ranks[name]
        axis.plot([rank, rank], [0, -1 - place], color="0.5", linewidth=0.8)
        axis.plot(rank, 0, marker="o", color="black", markersize=4)
        label = f"{literal(name)} ({rank:.1f})"
        white = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # over the lines of later samples
        axis.annotate(label, (rank, -1 - place), xytext=(4, 0), textcoords="offset points", fontsize=9, bbox=white)
    shown = [group for group in comparison.groups if len(group) > 1]
    for height, group in enumerate(shown):
        ends = [comparison.ranks[group[0]], comparison.ranks[group[-1]]]
        axis.plot(ends, [0.5 + 0.4 * height] * 2, color="black", linewidth=3, solid_capstyle="butt")
    axis.axhline(0, color="black", linewidth=0.8)
    axis.set_yticks([])
    axis.set_xlabel(f"mean rank; bars join what does not differ at the level {level:g}")
    axis.margins(x=0.25)
    axis.spines[["left", "right", "top"]].set_visible(False)


def ranks_of(study: Study, rows: Sequence[Row]) -> tuple[dict[str, list[float]], Comparison | None]:
    """Return the trimmed samples of a study's cells, and their comparison; None with fewer than two large enough samples.

    A study that compares nothing by ranks has no samples.
    """
    if study.ranks is None:
        return {}, None
    column = study.columns[study.ranks.column]
    known = {study.title_of(name): numbers([row for row in rows if row["cell"] == name], column) for name in study.cells}
    found = {name: by_size(sample, column).tolist() for name, sample in known.items()}
    samples = {name: trimmed(sample, study.ranks.trim) for name, sample in found.items() if len(sample) >= LEAST}
    sign = -1.0 if column.best == "max" else 1.0  # the best has the smallest rank
    signed = {name: [sign * value for value in sample] for name, sample in samples.items()}
    return samples, compare(signed, study.ranks.level) if len(samples) > 1 else None


def ranks_page(study: Study, rows: Sequence[Row]) -> list[str]:
    """Return the lines of a study's comparison by ranks, in markdown."""
    samples, found = ranks_of(study, rows)
    if found is None:
        return []
    ordered = sorted(samples, key=found.ranks.__getitem__)
    lines = [["", "runs", "Shapiro & Wilk: W", "p", "mean rank"]]
    for name in ordered:
        w, p = found.normality[name]
        shape = [f"{w:.3f}", f"{p:.3g}"] if math.isfinite(w) else ["-", "-"]  # runs that are all alike have none
        lines.append([name, str(len(samples[name])), *shape, f"{found.ranks[name]:.1f}"])
    text = (
        f"Levene: {found.levene[0]:.3g}, p = {found.levene[1]:.3g}. Kruskal & Wallis: {found.kruskal[0]:.3g},"
        f" p = {found.kruskal[1]:.3g}. Groups without a difference: {'; '.join(', '.join(group) for group in found.groups)}."
    )
    apart = sum(len(group) for group in found.groups) == len(samples)  # no cell is in two groups
    groups = found.groups if apart else [[name] for name in ordered]
    pooled = {" + ".join(group): [x for name in group for x in samples[name]] for group in groups}
    pairs = [["P(A < B)", "Gaussian", "Mann & Whitney"]]
    for (a, one), (b, two) in combinations(pooled.items(), 2):
        pairs.append([f"{a} < {b}", f"{gaussian_superiority(one, two):.4f}", f"{superiority(one, two):.4f}"])
    return ["", *markdown(lines), "", text, *(["", *markdown(pairs)] if len(pairs) > 1 else [])]


def draw_ranks(study: Study, rows: Sequence[Row], path: Path) -> bool:
    """Draw the critical difference diagram of a study to a file; return False with too few samples."""
    found = ranks_of(study, rows)[1]
    if found is None:
        return False
    canvas, (axis,) = new_figure(1, 1, 7.0, 3.5)
    critical_difference_diagram(axis, found, study.ranks.level if study.ranks else 0.05)
    write_png(canvas, path, bbox_inches="tight")
    return True
