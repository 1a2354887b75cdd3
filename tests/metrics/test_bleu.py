"""BLEU and chrF against sacrebleu on the whole corpus at once, however the corpus was split."""

from __future__ import annotations

import builtins
import copy
import math
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import sacrebleu
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest
from torch import Tensor

from lit_sparse.errors import ConfigurationError, DataError, MissingExtraError
from lit_sparse.metrics import Bleu, ChrF, Rouge, TextMetric, paired_bootstrap
from lit_sparse.metrics import bleu as module

SENTENCES = [
    "The well-known ferry left the harbour at dawn, although the fog had not lifted.",
    "Two children are building a tower of wooden blocks on the kitchen floor.",
    "Mr. O'Neill said (quite calmly) that prices rose by 3.5% in 1998!",
    "Der Bäcker öffnet seine Tür früh am Morgen.",
    "L'homme d'à côté n'est pas venu aujourd'hui.",
    "A dog jumps over the fence .",
    "a dog jumps over the fence .",
    "日本語の文です。",
    "It's the end-of-year report; nobody has read it.",
    "Yes",
    "",
]
#: Translations of the same eight sentences.
REFERENCES = [
    ["A woman in a red coat is waiting for the last train.", "A woman wearing a red coat waits for the last train."],
    ["The old bridge was closed because of the flood.", "Because of the flood, the old bridge had been closed."],
    ["He reads the newspaper every morning before work.", "Every morning he reads the newspaper before going to work."],
    ["Three boats are lying on the beach.", "Three boats lie on the shore."],
    ["The teacher explains the new rules to the class.", "The teacher is explaining the new rules to her pupils."],
    ["Nobody knew where the key had been hidden.", "No one knew where the key was hidden."],
    ["Our neighbours sold their house last summer.", "Last summer our neighbours sold the house."],
    ["The concert begins at eight in the town hall.", "The concert starts at eight o'clock in the town hall."],
]
FIRST = [
    "A woman in a red coat waits for the last train.",
    "The old bridge was closed because of the flood.",
    "He reads the newspaper each morning before he works.",
    "Three boats lie at the beach.",
    "The teacher explains the new rules to the class.",
    "Nobody knew where the key was.",
    "Our neighbours sold their house in the last summer.",
    "The concert begins at eight in the hall.",
]
SECOND = [
    "A woman with a red coat is waiting for the train.",
    "The old bridge is closed because of flood.",
    "He reads newspaper every morning before work.",
    "Three boats are on the beach.",
    "The teacher tells the new rules to the class.",
    "Nobody knew where the key had been hidden.",
    "Our neighbours have sold their home last summer.",
    "The concert starts at eight at the town hall.",
]

Corpus = tuple[list[str], list[list[str]]]


@st.composite
def corpora(draw: st.DrawFn) -> Corpus:
    """Texts with one to three references each, some of them alike."""
    number = draw(st.integers(1, 9))
    text = st.sampled_from(SENTENCES)
    hypotheses = draw(st.lists(text, min_size=number, max_size=number))
    references = draw(st.lists(st.lists(text, min_size=1, max_size=3), min_size=number, max_size=number))
    return hypotheses, references


def streams(references: Sequence[Sequence[str]]) -> list[list[str | None]]:
    most = max(map(len, references))
    return [[(list(some) + [None] * most)[k] for some in references] for k in range(most)]  # type: ignore[list-item]


def floats(values: dict[str, Tensor]) -> dict[str, float]:
    assert all(value.dtype == torch.float64 and value.ndim == 0 for value in values.values())
    return {key: float(value) for key, value in values.items()}


def split_over_processes(metric: TextMetric, corpus: Corpus, owners: Sequence[int], batch: int) -> list[TextMetric]:
    """Return a metric of each process, having seen the inputs that it owns, some at a time."""
    processes = []
    for rank in range(max(owners) + 1):
        mine = [index for index, owner in enumerate(owners) if owner == rank]
        process = metric.clone()
        assert isinstance(process, TextMetric)
        process.update([], [])  # one may get no batch at all
        for start in range(0, len(mine), batch):
            some = mine[start : start + batch]
            process.update([corpus[0][i] for i in some], [corpus[1][i] for i in some])
        processes.append(process)
    return processes


def together(processes: Sequence[TextMetric]) -> TextMetric:
    """Return the first of some processes, able to reach the others as torchmetrics does."""
    first = processes[0]

    def gather(state: Tensor, group: object = None) -> list[Tensor]:
        name = next(name for name in ("sums", "seen") if getattr(first, name) is state)
        return [getattr(process, name) for process in processes]

    first.dist_sync_fn, first.distributed_available_fn = gather, lambda: True
    return first


@given(corpora(), st.data())
@settings(max_examples=60)
def test_bleu_is_that_of_sacrebleu_however_the_corpus_is_split(corpus: Corpus, data: st.DataObject) -> None:
    tokenize = data.draw(st.sampled_from(["13a", "none", "intl", "char", "zh"]))
    lowercase = data.draw(st.booleans())
    owners = data.draw(st.lists(st.integers(0, 2), min_size=len(corpus[0]), max_size=len(corpus[0])))
    processes = split_over_processes(Bleu(tokenize, lowercase), corpus, owners, data.draw(st.integers(1, 4)))
    metric = together(processes)
    reference = BLEU(tokenize=tokenize, lowercase=lowercase)
    expected = reference.corpus_score(corpus[0], streams(corpus[1]))  # type: ignore[arg-type]
    found = floats(metric.compute())
    assert list(found) == ["bleu", "bleu_bp", "bleu_ratio", *(f"bleu_precision{n}" for n in range(1, 5))]
    assert list(found.values()) == [expected.score, expected.bp, expected.ratio, *expected.precisions]
    assert metric.signature == str(reference.get_signature())


@given(corpora(), st.data())
@settings(max_examples=60)
def test_chrf_is_that_of_sacrebleu_however_the_corpus_is_split(corpus: Corpus, data: st.DataObject) -> None:
    word_order, lowercase = data.draw(st.sampled_from([0, 1, 2])), data.draw(st.booleans())
    owners = data.draw(st.lists(st.integers(0, 2), min_size=len(corpus[0]), max_size=len(corpus[0])))
    processes = split_over_processes(ChrF(word_order, lowercase), corpus, owners, data.draw(st.integers(1, 4)))
    metric = together(processes)
    reference = CHRF(word_order=word_order, lowercase=lowercase)
    expected = reference.corpus_score(corpus[0], streams(corpus[1]))  # type: ignore[arg-type]
    assert floats(metric.compute()) == {"chrf": expected.score}
    assert metric.signature == str(reference.get_signature())


@pytest.mark.parametrize("lowercase", [True, False])
def test_moses_tokens_are_counted_as_they_are(lowercase: bool) -> None:
    sacremoses = pytest.importorskip("sacremoses", reason="the extra 'text' is not installed")
    metric = Bleu("moses", lowercase=lowercase, name="bleu_paper")
    hypotheses = ["The well-known ferry left .", *SENTENCES[1:]]
    metric.update(hypotheses, [[text] for text in SENTENCES])
    tokens = sacremoses.MosesTokenizer("en")

    def tokenized(text: str) -> str:
        return str(tokens.tokenize(text, aggressive_dash_splits=True, return_str=True, escape=False))

    assert tokenized("well-known") == "well @-@ known"
    reference = BLEU(tokenize="none", lowercase=lowercase, force=True)
    expected = reference.corpus_score([tokenized(text) for text in hypotheses], [[tokenized(text) for text in SENTENCES]])
    assert floats(metric.compute())["bleu_paper"] == expected.score
    assert 0 < expected.score < 100
    assert metric.signature is not None
    before, after = str(reference.get_signature()).split("|version:")
    assert metric.signature == f"{before}|moses:en-sacremoses-{sacremoses.__version__}|version:{after}"


def test_moses_follows_the_rules_of_a_language() -> None:
    pytest.importorskip("sacremoses", reason="the extra 'text' is not installed")
    precisions = []
    for language in ("fr", "en"):
        metric = Bleu("moses", language=language)
        metric.update(["l'homme"], [["homme"]])
        precisions.append(floats(metric.compute())["bleu_precision1"])
    assert precisions == [50, 0]  # of l' and homme, of l and 'homme


def test_missing_sacremoses_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("sacremoses"):
            raise ModuleNotFoundError("No module named 'sacremoses'", name="sacremoses")
        return imported(name, *args, **kwargs)

    module._moses.cache_clear()
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match="need the extra 'text'"):
        Bleu("moses")
    Bleu("13a")


def test_a_sacrebleu_without_what_chrf_needs_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    metric = ChrF()
    monkeypatch.setattr(module, "_chrf", lambda *_: object())
    with pytest.raises(ImportError, match=r"_extract_corpus_statistics .* which sacrebleu .* lacks"):
        metric.update(["a"], [["a"]])
    assert int(metric.seen[0]) == 0


METRICS: list[Callable[[], TextMetric]] = [Bleu, ChrF, Rouge, lambda: Rouge(truncate_bytes=75)]


@pytest.mark.parametrize("make", METRICS)
class TestEveryTextMetric:
    """Behaviour of the base class."""

    def test_nothing_to_score(self, make: Callable[[], TextMetric]) -> None:
        metric = make()
        metric.update([], [])
        assert metric.signature is None
        empty = floats(metric.compute())
        assert all(math.isnan(value) for value in empty.values())
        metric.update([""], [["a text"]])
        found = floats(metric.compute())
        assert found.keys() == empty.keys()
        assert not any(math.isnan(value) for value in found.values())
        assert next(iter(found.values())) == 0

    def test_an_empty_reference_and_a_perfect_match(self, make: Callable[[], TextMetric]) -> None:
        metric = make()
        metric.update(["a b c d e", ""], [["a b c d e", ""], [""]])
        assert metric.signature is not None
        assert metric.signature.startswith("nrefs:var|")
        assert not any(math.isnan(value) for value in floats(metric.compute()).values())

    def test_copies_pickles_and_resets(self, make: Callable[[], TextMetric]) -> None:
        metric = make()
        metric.update(FIRST, REFERENCES)
        expected = floats(metric.compute())
        assert metric.signature is not None
        for copied in (copy.deepcopy(metric), pickle.loads(pickle.dumps(metric)), metric.clone()):
            copied.update([], [])  # compute anew
            assert floats(copied.compute()) == expected
            assert copied.signature == metric.signature
        assert metric.state_dict() == {}
        metric.reset()
        assert metric.signature is None
        metric.update(["no word shared"], [["xyz"]])
        assert next(iter(floats(metric.compute()).values())) < 10
        assert metric.signature.startswith("nrefs:1|")

    @pytest.mark.parametrize("cast", ["to", "half", "float", "bfloat16", "set_dtype", "type"])
    def test_no_cast_costs_a_digit(self, make: Callable[[], TextMetric], cast: str) -> None:
        metric, untouched = make(), make()
        holder = torch.nn.ModuleDict({"metric": metric})
        for number, (hypothesis, some) in enumerate(zip(FIRST, REFERENCES, strict=True)):
            for each in (metric, untouched):
                each.update([hypothesis], [some])
            if number == 3:
                if cast == "to":
                    holder.to(torch.bfloat16)
                elif cast == "set_dtype":
                    metric.set_dtype(torch.float16)
                elif cast == "type":
                    holder.type(torch.float16)
                else:
                    getattr(holder, cast)()
        assert metric.sums.dtype == untouched.sums.dtype
        assert metric.seen.dtype == torch.int64
        assert floats(metric.compute()) == floats(untouched.compute())

    def test_follows_to_a_device(self, make: Callable[[], TextMetric]) -> None:
        metric = make().to("meta")
        metric.update(FIRST, REFERENCES)  # texts are counted on the CPU for every device
        assert {metric.sums.device.type, metric.seen.device.type} == {"meta"}

    def test_one_call_scores_a_batch_and_adds_it(self, make: Callable[[], TextMetric]) -> None:
        metric, whole, batch = make(), make(), make()
        metric(FIRST[:3], REFERENCES[:3])
        of_batch = floats(metric(FIRST[3:], [some[:1] for some in REFERENCES[3:]]))
        batch.update(FIRST[3:], [some[:1] for some in REFERENCES[3:]])
        whole.update(FIRST, [some if i < 3 else some[:1] for i, some in enumerate(REFERENCES)])
        assert of_batch == pytest.approx(floats(batch.compute()), abs=1e-9)
        assert metric.signature == whole.signature  # not the one of the batch alone
        assert floats(metric.compute()) == pytest.approx(floats(whole.compute()), abs=1e-9)

    @pytest.mark.parametrize(
        ("hypotheses", "references", "words"),
        [
            (["a"], [], "got 1 hypotheses, references for 0"),
            (["a"], [[]], r"references\[0\] is empty"),
            (["a", "b"], [["a"], "b"], r"references\[1\] to be a list of str, such as \['the only one'\], but got str"),
            ("a", [["a"]], "`hypotheses` to be a list with one entry per input but got str"),
            (["a"], "a", "`references` to be a list"),
            ([b"a"], [["a"]], r"hypotheses\[0\] to be a str but got bytes"),
            ([None], [["a"]], r"hypotheses\[0\] to be a str but got NoneType"),
            (["a"], [["a", None]], r"references\[0\]\[1\] to be a str but got NoneType"),
            (["a"], [torch.zeros(1)], r"references\[0\] to be a list of str"),
        ],
    )
    def test_what_is_no_text_is_explained(
        self, make: Callable[[], TextMetric], hypotheses: Any, references: Any, words: str
    ) -> None:
        metric = make()
        metric.update(["b"], [["b"]])
        with pytest.raises(DataError, match=words):
            metric.update(hypotheses, references)
        assert metric.seen.tolist() == [1, 1, 1]


def test_a_signature_speaks_of_all_processes_once_computed() -> None:
    processes = [Bleu(), Bleu()]
    processes[0].update(["a"], [["a"]])
    processes[1].update(["a"], [["a", "b"]])
    assert [process.signature.split("|")[0] for process in processes if process.signature] == ["nrefs:1", "nrefs:2"]
    metric = together(processes)
    metric.compute()
    assert metric.signature is not None
    assert metric.signature.startswith("nrefs:var|")
    metric.update(["a"], [["a"]])
    assert metric.signature.startswith("nrefs:1|")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Bleu("13b"), "`tokenize` to be one of .* Did you mean '13a'"),
        (lambda: Bleu("Moses"), "Did you mean 'moses'"),
        (lambda: Bleu(lowercase="no"), "`lowercase` to be True or False but got 'no'"),  # type: ignore[arg-type]
        (lambda: Bleu(name=""), "`name`"),
        (lambda: ChrF(word_order=-1), "`word_order` to be an integer of at least 0 but got -1"),
        (lambda: ChrF(lowercase=1), "`lowercase`"),  # type: ignore[arg-type]
        (lambda: paired_bootstrap(Bleu, FIRST, SECOND, REFERENCES), "`metric` to be a text metric"),  # type: ignore[arg-type]
        (lambda: paired_bootstrap(Bleu(), FIRST, SECOND, REFERENCES, samples=0), "`samples`"),
        (lambda: paired_bootstrap(Bleu(), FIRST, SECOND, REFERENCES, key="blue"), "Did you mean 'bleu'"),
    ],
)
def test_bad_arguments_are_explained(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make()


def test_arguments_are_kept_under_their_names() -> None:
    metric = Bleu("intl", lowercase=True, name="lc", language="de")
    assert (metric.tokenize, metric.lowercase, metric.name, metric.language) == ("intl", True, "lc", "de")
    chrf = ChrF(2, True, "chrfpp")
    assert (chrf.word_order, chrf.lowercase, chrf.name) == (2, True, "chrfpp")


@pytest.mark.parametrize(("metric", "peer"), [(Bleu(), BLEU()), (ChrF(2), CHRF(word_order=2))])
def test_paired_bootstrap_is_that_of_sacrebleu(
    metric: TextMetric, peer: sacrebleu.metrics.base.Metric, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    systems: list[tuple[str, Sequence[str]]] = [("second", SECOND), ("first", FIRST)]
    test = PairedTest(systems, {"peer": peer}, streams(REFERENCES), "bs", n_samples=300)  # type: ignore[arg-type]
    _, (_, (baseline, system)) = (lambda found: (found[0], list(found[1].values())))(test())
    found = paired_bootstrap(metric, FIRST, SECOND, REFERENCES, samples=300, seed=7)
    assert found.p_value == system.p_value
    assert 0.01 < found.p_value < 0.99
    assert (found.score_a, found.score_b) == (system.score, baseline.score)
    assert found.difference == found.score_a - found.score_b


def test_the_bootstrap_s_interval_is_that_of_texts_drawn_anew() -> None:
    generator = np.random.default_rng(3)
    differences = []
    for _ in range(80):
        drawn = generator.choice(len(FIRST), size=len(FIRST))
        references: Any = streams([REFERENCES[i] for i in drawn])
        of_first, of_second = (BLEU().corpus_score([texts[i] for i in drawn], references).score for texts in (FIRST, SECOND))
        differences.append(of_first - of_second)
    found = paired_bootstrap(Bleu(), FIRST, SECOND, REFERENCES, samples=80, seed=3)
    differences.sort()
    assert (found.low, found.high) == (differences[2], differences[-3])
    back = paired_bootstrap(Bleu(), SECOND, FIRST, REFERENCES, samples=80, seed=3)
    assert back == (-found.difference, -found.high, -found.low, *found[3:4], found.score_b, found.score_a, found.one_sided)
    sign = np.sign(found.difference)
    assert found.one_sided == (1 + sum(sign * difference <= 0 for difference in differences)) / 81
    assert 1 / 81 < found.one_sided < 0.5, "some resamples turn the order"


def test_a_system_does_not_differ_from_itself() -> None:
    found = paired_bootstrap(Rouge(), FIRST, FIRST, REFERENCES, samples=50, key="rougeL_recall")
    assert found[:3] == (0, 0, 0)
    assert (found.p_value, found.one_sided) == (1, 1)
    with pytest.raises(DataError, match="got none"):
        paired_bootstrap(Bleu(), [], [], [])
    with pytest.raises(DataError, match="7 hypotheses, references for 8"):
        paired_bootstrap(Bleu(), FIRST, SECOND[1:], REFERENCES)
