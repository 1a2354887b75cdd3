"""The statistics of the comparison against scipy, scikit-posthocs, simulation and cases worked by hand."""

from __future__ import annotations

import math
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from scipy import integrate, stats

import lit_sparse.studies.pages.statistics as s
from lit_sparse.studies.plan.presentation import Column, Ranks
from lit_sparse.studies.plan.study import Cell, Study


def samples(seed: int = 0) -> dict[str, list[float]]:
    rng = np.random.default_rng(seed)
    return {
        "a": (0.8 + 0.04 * rng.standard_normal(20)).round(2).tolist(),
        "b": (0.95 + 0.05 * rng.standard_normal(18)).round(2).tolist(),
        "c": (0.97 + 0.03 * rng.standard_normal(20)).round(2).tolist(),
        "d": (1.3 + 0.2 * rng.standard_normal(9)).round(2).tolist(),
    }


def test_trimmed_samples_lose_their_ends() -> None:
    assert s.trimmed([3.0, 1.0, 2.0, 5.0, 4.0], 1) == [2.0, 3.0, 4.0]
    assert s.trimmed([3.0, 1.0, 2.0], 1) == [1.0, 2.0, 3.0], "too few to lose any"
    assert len(s.trimmed(list(range(55)))) == 47


def test_tests_are_those_of_scipy() -> None:
    found = s.compare(samples())
    values = samples().values()
    assert found.levene == pytest.approx(tuple(stats.levene(*values)))
    assert found.kruskal == pytest.approx(tuple(stats.kruskal(*values)))
    for name, sample in samples().items():
        assert found.normality[name] == pytest.approx(tuple(stats.shapiro(sample)))
    ranked = stats.rankdata(np.concatenate([np.array(sample) for sample in values]))
    assert found.ranks["a"] == pytest.approx(ranked[:20].mean())


@pytest.mark.parametrize("level", [0.01, 0.05, 0.3])
def test_pairs_differ_where_scikit_posthocs_says(level: float) -> None:
    posthocs = pytest.importorskip("scikit_posthocs")
    for seed in range(20):
        rng = np.random.default_rng(seed)  # without ties, which it does not correct for
        distinct = {name: [x + 1e-4 * rng.random() for x in sample] for name, sample in samples(seed).items()}
        found = s.compare(distinct, level)
        p = posthocs.posthoc_nemenyi(list(distinct.values()), dist="tukey").to_numpy()
        for (i, one), (j, two) in combinations(enumerate(distinct), 2):
            key = (one, two) if (one, two) in found.differences else (two, one)
            differs = abs(found.ranks[one] - found.ranks[two]) > found.differences[key]
            assert differs == (p[i, j] < level), (seed, one, two)


def test_groups_are_the_longest_runs_without_a_difference() -> None:
    found = s.compare(samples())
    assert found.groups[0] == ["a"]
    assert ["b", "c"] in found.groups or any({"b", "c"} <= set(group) for group in found.groups)
    for group in found.groups:
        for one, two in combinations(group, 2):
            assert found.ranks[two] - found.ranks[one] <= found.differences[one, two]
    same = s.compare({name: [1.0, 1.0, 1.0] for name in "ab"})
    assert same.kruskal == (0.0, 1.0)


def test_superiority_counts_pairs() -> None:
    a, b = samples()["a"], samples()["b"]
    u = stats.mannwhitneyu(b, a, alternative="greater").statistic
    assert s.superiority(a, b) == pytest.approx(u / (len(a) * len(b)))
    assert s.superiority([1.0], [1.0]) == 0.5


@pytest.mark.parametrize(("n", "m"), [(3, 3), (3, 12), (7, 4), (20, 31)])
def test_the_gaussian_estimate_is_the_conditional_probability(n: int, m: int) -> None:
    """By a double integral over what is left free, and unbiased over many samples."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(0.0, 1.0, n), rng.normal(0.6, 2.0, m)

    def density(w: float, number: int) -> float:
        return (1 - w * w) ** ((number - 4) / 2)

    spreads = [(len(x) - 1) / math.sqrt(len(x)) * x.std(ddof=1) for x in (a, b)]
    if min(n, m) > 3:  # the density of three has poles, which this way of integrating does not bear
        whole = [integrate.quad(density, -1, 1, args=(len(x),))[0] for x in (a, b)]

        def above(w: float) -> float:
            bound = np.clip((a.mean() + spreads[0] * w - b.mean()) / spreads[1], -1, 1)
            return density(w, n) * integrate.quad(density, bound, 1, args=(m,))[0]

        expected = integrate.quad(above, -1, 1, limit=200)[0] / whole[0] / whole[1]
        assert s.gaussian_superiority(a, b) == pytest.approx(expected, abs=2e-4)
    assert s.gaussian_superiority(a, b) + s.gaussian_superiority(b, a) == pytest.approx(1.0, abs=2e-3)
    truth = stats.norm.cdf(0.6 / math.sqrt(5))
    drawn = [s.gaussian_superiority(rng.normal(0, 1, n), rng.normal(0.6, 2, m)) for _ in range(1000)]
    assert np.mean(drawn) == pytest.approx(truth, abs=4 * np.std(drawn) / math.sqrt(1000))


def test_samples_without_spread() -> None:
    assert s.gaussian_superiority([1.0] * 3, [2.0] * 3) == 1.0
    assert s.gaussian_superiority([2.0] * 3, [2.0] * 3) == 0.5
    one = s.gaussian_superiority([1.0, 2.0, 3.0, 4.0], [2.0] * 4)
    assert one == pytest.approx(1 - s.gaussian_superiority([2.0] * 4, [1.0, 2.0, 3.0, 4.0]))
    assert 0.2 < one < 0.5


def test_bad_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="at least two samples of at least 3"):
        s.compare({"a": [1.0, 2.0, 3.0]})
    with pytest.raises(ValueError, match=r"\['b'\] are fewer"):
        s.compare({"a": [1.0, 2.0, 3.0], "b": [1.0]})
    with pytest.raises(ValueError, match=r"numbers to rank but got NaN in \['b'\]"):
        s.compare({"a": [1.0, 2.0, 3.0], "b": [1.0, math.nan, 2.0]})
    with pytest.raises(ValueError, match="at least 3 values"):
        s.gaussian_superiority([1.0, 2.0], [1.0, 2.0, 3.0])


@pytest.mark.parametrize("best", [None, "min", "max"])
def test_seeds_that_diverged_have_the_worst_rank(best: str | None) -> None:
    study = Study(
        cells={name: Cell() for name in "ab"},
        columns={"y": Column("y", best=best)},
        ranks=Ranks("y", trim=0),
    )
    values = {"b": ("nan", "nan", "nan"), "a": ("4", "5", "6")}
    rows = [{"cell": name, "seed": f"{i}", "y": y} for name, some in values.items() for i, y in enumerate(some)]
    found = s.ranks_of(study, rows)[1]
    assert found is not None
    assert found.ranks["b"] == 5.0 and found.groups[0][0] == "a"
    assert math.isfinite(found.kruskal[1])
    assert "| b | 3 | - | - |" in "\n".join(s.ranks_page(study, rows))


def test_the_diagram_shows_every_name(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure()
    axis = figure.subplots()
    s.critical_difference_diagram(axis, s.compare(samples()))
    texts = [text.get_text() for text in axis.texts]
    assert sorted(text[0] for text in texts) == ["a", "b", "c", "d"]
    figure.savefig(tmp_path / "ranks.png")
