"""ROUGE against rouge-score on single references, against cases worked by hand, and against slower ways to the same numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import version

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from lit_sparse.errors import ConfigurationError
from lit_sparse.metrics import Rouge
from lit_sparse.metrics.rouge import Overlap, RougeScore, combine, first_bytes, overlaps, rouge_w, weighted_lcs
from tests.metrics.test_bleu import FIRST, REFERENCES, SECOND, floats, split_over_processes, together

TOKENS = st.lists(st.sampled_from("abcd"), max_size=7)
HEADLINES = st.text(alphabet="abB -#1é\N{CJK UNIFIED IDEOGRAPH-65E5}", max_size=12)
EVERY = ("rouge1", "rouge2", "rouge3", "rougeL", "rougeW", "rougeW155")


def of_one(metric: Rouge, hypothesis: str, references: Sequence[str]) -> dict[str, float]:
    metric.reset()
    metric.update([hypothesis], [references])
    return floats(metric.compute())


@pytest.mark.filterwarnings("ignore:Rouge's tokenizer")
@pytest.mark.parametrize("use_stemmer", [False, True])
@given(HEADLINES, HEADLINES)
@settings(max_examples=150)
def test_one_reference_is_scored_as_by_rouge_score(use_stemmer: bool, hypothesis: str, reference: str) -> None:
    types = ("rouge1", "rouge2", "rouge3", "rougeL")
    found = of_one(Rouge(types, use_stemmer=use_stemmer), hypothesis, [reference])
    for kind, score in RougeScorer(types, use_stemmer=use_stemmer).score(reference, hypothesis).items():
        assert found[kind] == 100 * score.fmeasure
        assert found[f"{kind}_precision"] == 100 * score.precision
        assert found[f"{kind}_recall"] == 100 * score.recall


def test_stems_are_compared() -> None:
    assert of_one(Rouge(("rouge1",)), "schools opening", ["school opened"])["rouge1"] == 0
    assert of_one(Rouge(("rouge1",), use_stemmer=True), "schools opening", ["school opened"])["rouge1"] == 100


@given(st.sampled_from(FIRST + SECOND + [""]), st.sampled_from([*REFERENCES, [""], ["a b"], ["a", "", "The old bridge"]]))
@settings(max_examples=80)
def test_several_references(hypothesis: str, references: list[str]) -> None:
    types = ("rouge1", "rouge2", "rougeL")
    scorer = RougeScorer(types)
    single = [scorer.score(reference, hypothesis) for reference in references]
    average, best = (of_one(Rouge(types, references=rule), hypothesis, references) for rule in ("average", "best"))  # type: ignore[arg-type]
    for kind in types:
        mean = [sum(score[kind][column] for score in single) / len(single) for column in range(3)]
        assert [average[f"{kind}_precision"], average[f"{kind}_recall"], average[kind]] == pytest.approx(
            [100 * m for m in mean]
        )
        expected = scorer.score_multi(references, hypothesis)[kind]
        assert [best[f"{kind}_precision"], best[f"{kind}_recall"], best[kind]] == pytest.approx([100 * e for e in expected])


def test_the_best_reference_is_that_of_highest_f1() -> None:
    found = of_one(Rouge(("rouge1",), references="best"), "a b c d", ["a", "a b c d e"])  # the first has the higher recall
    assert found == pytest.approx({"rouge1": 100 * 8 / 9, "rouge1_precision": 100, "rouge1_recall": 80})


def test_pooled_references_worked_by_hand() -> None:
    """The references share 2 and 3 of 4 words, and have 2 and 6 words."""
    found = of_one(Rouge(("rouge1", "rougeW"), references="pooled"), "a b c d", ["a b", "b c d e f g"])
    assert found["rouge1_precision"] == pytest.approx(100 * 5 / 8)
    assert found["rouge1_recall"] == pytest.approx(100 * 5 / 8)
    weight = 2**1.2 + 3**1.2
    assert found["rougeW_precision"] == pytest.approx(100 * (weight / (2 * 4**1.2)) ** (1 / 1.2))
    assert found["rougeW_recall"] == pytest.approx(100 * (weight / (2**1.2 + 6**1.2)) ** (1 / 1.2))
    alone = [Overlap(2, 4, 2), Overlap(3, 4, 6)]
    assert combine(alone[:1], "pooled") == combine(alone[:1], "average") == combine(alone[:1], "best") == alone[0].score()


def by_recursion(hypothesis: Sequence[str], reference: Sequence[str], weight: float) -> float:
    """The paper's recursion, from the end to the beginning: (weight, length of the run that ends here)."""

    @cache
    def solve(i: int, j: int) -> tuple[float, int]:
        if not i or not j:
            return 0.0, 0
        if hypothesis[i - 1] == reference[j - 1]:
            before, run = solve(i - 1, j - 1)
            return before - run**weight + (run + 1) ** weight, run + 1
        return max(solve(i - 1, j)[0], solve(i, j - 1)[0]), 0

    return solve(len(hypothesis), len(reference))[0]


def by_enumeration(hypothesis: Sequence[str], reference: Sequence[str], weight: float) -> float:
    """The largest weight of all ways to match words in order."""
    best = 0.0
    for size in range(1, min(len(hypothesis), len(reference)) + 1):
        for left in itertools.combinations(range(len(hypothesis)), size):
            for right in itertools.combinations(range(len(reference)), size):
                if all(hypothesis[i] == reference[j] for i, j in zip(left, right, strict=True)):
                    lengths = [1]
                    for (i, j), (k, m) in itertools.pairwise(zip(left, right, strict=True)):
                        if (k, m) == (i + 1, j + 1):
                            lengths[-1] += 1
                        else:
                            lengths.append(1)
                    best = max(best, sum(length**weight for length in lengths))
    return best


@given(TOKENS, TOKENS, st.sampled_from([1.0, 1.2, 2.0]))
def test_weighted_subsequence_is_that_of_the_paper_s_recursion(
    hypothesis: list[str], reference: list[str], weight: float
) -> None:
    found = weighted_lcs(hypothesis, reference, weight)
    assert found == pytest.approx(by_recursion(tuple(hypothesis), tuple(reference), weight))
    assert found == pytest.approx(weighted_lcs(reference, hypothesis, weight))


@given(st.permutations("abcdef"), st.permutations("abcdef"), st.integers(0, 6), st.sampled_from([1.2, 2.0]))
@settings(max_examples=40)
def test_weighted_subsequence_is_the_heaviest_where_no_word_comes_twice(
    hypothesis: list[str], reference: list[str], length: int, weight: float
) -> None:
    hypothesis = hypothesis[:length]
    assert weighted_lcs(hypothesis, reference, weight) == pytest.approx(by_enumeration(hypothesis, reference, weight))


@given(TOKENS, TOKENS)
def test_weight_of_one_is_the_longest_subsequence(hypothesis: list[str], reference: list[str]) -> None:
    expected = overlaps(hypothesis, reference, ["rougeL"])["rougeL"].score()
    assert rouge_w(hypothesis, reference, weight=1) == pytest.approx(expected)
    for score in (rouge_w(hypothesis, reference), overlaps(hypothesis, reference, ["rougeW155"])["rougeW155"].score()):
        assert all(0 <= value <= 1 for value in score)
        assert score.f1 <= expected.f1 + 1e-12


def test_weighted_subsequence_worked_by_hand() -> None:
    reference = list("abcdefg")
    in_a_row, apart = list("abcdhik"), list("ahbkcid")
    for weight, (first, second) in {2.0: (16, 4), 1.2: (4**1.2, 4)}.items():
        assert weighted_lcs(in_a_row, reference, weight) == pytest.approx(first)
        assert weighted_lcs(apart, reference, weight) == pytest.approx(second)
    assert rouge_w(in_a_row, reference, 2).f1 == pytest.approx(4 / 7)  # 0.571 and 0.286 in the paper
    assert rouge_w(apart, reference, 2).f1 == pytest.approx(2 / 7)
    precision, recall, f1 = rouge_w(list("abxc"), list("abc"))
    assert precision == pytest.approx((2**1.2 + 1) ** (1 / 1.2) / 4)
    assert recall == pytest.approx((2**1.2 + 1) ** (1 / 1.2) / 3)
    assert f1 == pytest.approx(2 / (1 / precision + 1 / recall))
    assert rouge_w(reference, reference) == (1, 1, 1)
    assert rouge_w([], reference) == rouge_w(reference, []) == rouge_w([], []) == (0, 0, 0)


def test_the_script_s_variant_worked_by_hand() -> None:
    """The run is seen in the reference alone, and its length counts with the power 1.44."""

    def script(hypothesis: str, reference: str) -> RougeScore:
        return overlaps(hypothesis.split(), reference.split(), ["rougeW155"])["rougeW155"].score()

    found = script("a x b", "a b")
    assert found.precision == pytest.approx(2 / 3)
    assert found.recall == pytest.approx((2**1.2 / 2**1.44) ** (1 / 1.2))
    assert script("a b", "a x b").recall == pytest.approx((2 / 3**1.44) ** (1 / 1.2))
    assert script("a b", "a b").precision == 1
    assert script("a b", "a b").recall == pytest.approx(2**-0.2)
    # of two equally heavy subsequences, b and a, the later word of the reference is given up
    assert script("b a c", "a b c").recall == pytest.approx((2 / 3**1.44) ** (1 / 1.2))
    assert script("a b c", "b a c").recall == pytest.approx((2 / 3**1.44) ** (1 / 1.2))
    assert script("", "a") == script("a", "") == (0, 0, 0)


def test_both_texts_are_cut() -> None:
    """As by ``ROUGE-1.5.5.pl -b``: a limit raises recall where the reference is longer."""
    hypothesis, reference = "abcd efgh", "abcd efgh ijkl mnop"
    assert of_one(Rouge(("rouge1",), 9), hypothesis, [reference]) == {
        "rouge9_1": 100,
        "rouge9_1_precision": 100,
        "rouge9_1_recall": 100,
    }
    found = of_one(Rouge(("rouge1",), 7), hypothesis, ["abcd ef gh"])  # abcd ef, of both
    assert found["rouge7_1"] == 100
    found = of_one(Rouge(("rouge1",), 7), hypothesis, ["abcd"])  # half a word is a word
    assert (found["rouge7_1_precision"], found["rouge7_1_recall"]) == (50, 100)
    found = of_one(Rouge(("rouge1",), 7), "éé ab cd", ["ab"])  # two bytes for each é
    assert found["rouge7_1"] == 100


@given(st.text(max_size=8), st.integers(1, 20))
def test_no_character_is_cut_in_half(text: str, number: int) -> None:
    found = first_bytes(text, number)
    assert text.startswith(found)
    assert len(found.encode()) <= number
    longer = text[: len(found) + 1]
    assert found == text or len(longer.encode()) > number


def test_truncated_and_whole_side_by_side() -> None:
    whole, cut = Rouge(), Rouge(truncate_bytes=30)
    for metric in (whole, cut):
        metric.update(FIRST, REFERENCES)
    both = floats(whole.compute()) | floats(cut.compute())
    assert len(both) == 24
    assert {
        "rouge1",
        "rougeL_recall",
        "rougeW_precision",
        "rouge30_1",
        "rouge30_L_recall",
        "rouge30_W_precision",
    } <= both.keys()
    again = Rouge()
    again.update([text[:30] for text in FIRST], [[text[:30] for text in some] for some in REFERENCES])
    assert list(floats(cut.compute()).values()) == list(floats(again.compute()).values())
    assert list(floats(cut.compute()).values()) != list(floats(whole.compute()).values())
    for name, key in {"duc": "ducL", "duc_": "duc_L", "duc2004": "duc2004_L"}.items():
        assert key in of_one(Rouge(("rougeL",), 75, name=name), "a", ["a"])


@pytest.mark.filterwarnings("ignore:Rouge's tokenizer")
def test_what_the_tokenizers_keep() -> None:
    text = "#.# percent, Straße"
    assert of_one(Rouge(("rouge1",)), text, ["percent stra e"])["rouge1"] == 100
    assert of_one(Rouge(("rouge1",), tokenizer="spaces"), text, ["percent stra e"])["rouge1"] == 0
    assert of_one(Rouge(("rouge1",), tokenizer="spaces"), text, ["#.# percent, Straße"])["rouge1"] == 100
    assert of_one(Rouge(tokenizer="spaces"), "日本", ["日本"])["rougeW"] == 100
    assert of_one(Rouge(), "日本", ["日本"])["rouge1"] == 0


@given(st.data())
@settings(max_examples=30)
def test_batches_and_processes_change_nothing(data: st.DataObject) -> None:
    rule = data.draw(st.sampled_from(["average", "best", "pooled"]))
    make = Rouge(EVERY, data.draw(st.sampled_from([None, 20])), references=rule)
    number = data.draw(st.integers(1, 8))
    references = [data.draw(st.permutations(some))[: data.draw(st.integers(1, 2))] for some in REFERENCES[:number]]
    corpus = FIRST[:number], references
    owners = data.draw(st.lists(st.integers(0, 2), min_size=number, max_size=number))
    metric = together(split_over_processes(make, corpus, owners, data.draw(st.integers(1, 3))))
    whole = make.clone()
    whole.update(*corpus)
    found = floats(metric.compute())
    assert found == floats(whole.compute())
    assert metric.signature == whole.signature
    single = [of_one(make, text, some) for text, some in zip(*corpus, strict=True)]
    for key, value in found.items():
        assert value == pytest.approx(math.fsum(of[key] for of in single) / number, abs=1e-9)


def test_signature_tells_what_the_numbers_depend_on() -> None:
    metric = Rouge(truncate_bytes=75, references="best", use_stemmer=True)
    metric.update(FIRST, REFERENCES)
    assert (
        metric.signature
        == f"nrefs:2|refs:best|tok:rouge_score|stem:yes|bytes:75|w:1.2|version:rouge-score-{version('rouge-score')}"
    )
    metric.update(["a"], [["a"]])
    assert metric.signature.startswith("nrefs:var|")


def test_arguments_are_kept_under_their_names() -> None:
    metric = Rouge(["rouge1", "rougeW"], 75, "best", weight=2, tokenizer="spaces")  # type: ignore[arg-type]
    assert (metric.types, metric.truncate_bytes, metric.references) == (("rouge1", "rougeW"), 75, "best")
    assert (metric.use_stemmer, metric.weight, metric.name, metric.tokenizer) == (False, 2, "rouge75", "spaces")
    assert Rouge().name == "rouge"
    assert metric.sums.dtype == torch.float64


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Rouge(("rouge0",)), "`types` to be some of .* but got"),
        (lambda: Rouge(("rougeLsum",)), "`types`"),
        (lambda: Rouge("rouge1"), "`types`"),  # type: ignore[arg-type]
        (lambda: Rouge(()), "`types`"),
        (lambda: Rouge(("rouge1", "rouge1")), "without repetition"),
        (lambda: Rouge(truncate_bytes=0), "`truncate_bytes` to be an integer of at least 1 but got 0"),
        (lambda: Rouge(references="first"), "`references` to be one of"),  # type: ignore[arg-type]
        (lambda: Rouge(use_stemmer=1), "`use_stemmer` to be True or False"),  # type: ignore[arg-type]
        (lambda: Rouge(weight=0.5), "1.0 <= weight"),
        (lambda: Rouge(name=""), "`name`"),
        (lambda: Rouge(tokenizer="13a"), "`tokenizer` to be one of"),  # type: ignore[arg-type]
        (lambda: Rouge(use_stemmer=True, tokenizer="spaces"), "`use_stemmer=True` needs"),
    ],
)
def test_bad_arguments_are_explained(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make()
