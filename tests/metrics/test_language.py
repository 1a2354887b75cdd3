"""Measures of what messages are like, against languages whose measures are known and against slower ways to compute them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import scipy.stats
import torch
from torch import Tensor

from lit_sparse.errors import ConfigurationError
from lit_sparse.metrics import (
    MessageCounts,
    MessageStructure,
    bag_of_symbols_disentanglement,
    positional_disentanglement,
    topographic_similarity,
)
from tests.support.processes import run_processes

#: All things of three attributes with four values each.
THINGS = torch.tensor(list(itertools.product(range(4), repeat=3)))


def _edits(first: list[int], second: list[int]) -> int:
    """Return Levenshtein's distance by its definition."""
    if not first or not second:
        return len(first) + len(second)
    options = (_edits(first[1:], second) + 1, _edits(first, second[1:]) + 1)
    return min(*options, _edits(first[1:], second[1:]) + (first[0] != second[0]))


def test_topographic_similarity_by_other_distances() -> None:
    inputs, messages = THINGS[::2], random_messages(0, size=32, length=4, vocabulary=3)
    pairs = list(itertools.combinations(range(32), 2))
    of_inputs = [int((inputs[i] != inputs[j]).sum()) for i, j in pairs]
    of_messages = [_edits(messages[i].tolist(), messages[j].tolist()) for i, j in pairs]
    expected = scipy.stats.spearmanr(of_inputs, of_messages).statistic
    found = topographic_similarity(inputs, messages, input_distance="hamming", message_distance="edit")
    assert float(found) == pytest.approx(expected, abs=1e-12)
    assert float(found) != pytest.approx(float(topographic_similarity(inputs, messages, input_distance="hamming")), abs=1e-3)
    with pytest.raises(ConfigurationError, match="message_distance"):
        topographic_similarity(inputs, messages, message_distance="cosine")  # type: ignore[arg-type]


def test_exact_ties_of_inputs_are_ties() -> None:
    """A cosine ignores lengths, so pairs with as many attributes in common are tied, independent of rounding."""
    ones = torch.nn.functional.one_hot(THINGS, 4).flatten(1).double()
    inputs = ones * torch.rand(len(ones), 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64).add(0.1)
    messages = random_messages(0, size=len(ones), length=3)
    pairs = torch.triu_indices(len(ones), len(ones), 1)
    distances = [(rows[pairs[0]] != rows[pairs[1]]).sum(-1).numpy() for rows in (THINGS, messages)]
    expected = scipy.stats.spearmanr(*distances).statistic
    assert float(topographic_similarity(inputs, messages)) == pytest.approx(expected, abs=1e-12)


def random_messages(seed: int, size: int = 40, length: int = 2, vocabulary: int = 6) -> Tensor:
    return torch.randint(vocabulary, (size, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("length", [1, 3])
def test_topographic_similarity_is_spearmans_correlation_of_distances(length: int) -> None:
    for seed in range(5):
        inputs = torch.randn(40, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        messages = random_messages(seed, length=length)
        of_inputs, of_messages = [], []
        for i, j in itertools.combinations(range(40), 2):
            of_inputs.append(1 - float(torch.cosine_similarity(inputs[i], inputs[j], dim=0)))
            of_messages.append(sum(int(a != b) for a, b in zip(messages[i], messages[j], strict=True)))
        expected = scipy.stats.spearmanr(of_inputs, of_messages).statistic
        assert float(topographic_similarity(inputs, messages)) == pytest.approx(expected, abs=1e-9)


def test_topographic_similarity_of_nothing_to_compare() -> None:
    assert math.isnan(topographic_similarity(torch.randn(5, 3), torch.zeros(5, 1).long()))
    assert math.isnan(topographic_similarity(torch.randn(1, 3), torch.zeros(1, 1).long()))


def test_languages_that_are_known() -> None:
    permuted = torch.stack([THINGS[:, 2] + 4, THINGS[:, 0], 3 - THINGS[:, 1] + 8], -1)
    assert float(positional_disentanglement(THINGS, permuted)) == pytest.approx(1)
    assert float(bag_of_symbols_disentanglement(THINGS, permuted)) == pytest.approx(1)
    same_symbols = THINGS.clone()  # the place tells, what symbols there are tells of all attributes alike
    assert float(positional_disentanglement(THINGS, same_symbols)) == pytest.approx(1)
    assert float(bag_of_symbols_disentanglement(THINGS, same_symbols)) == pytest.approx(0, abs=1e-9)
    sums = (THINGS[:, :2].sum(-1, keepdim=True)) % 4  # tells of the two attributes together, of none alone
    assert float(positional_disentanglement(THINGS[:, :2], sums)) == pytest.approx(0, abs=1e-9)


def brute_force(parts: Tensor, attributes: Tensor) -> float:
    """Chaabouni et al., term by term, from probabilities of pairs."""
    shares = []
    for column in parts.unbind(-1):
        n = len(column)
        p = {s: float((column == s).sum()) / n for s in column.tolist()}
        entropy = -sum(q * math.log(q) for q in p.values())
        if entropy == 0:
            continue
        informations = []
        for attribute in attributes.unbind(-1):
            total = 0.0
            for s, a in itertools.product(set(column.tolist()), set(attribute.tolist())):
                joint = float(((column == s) & (attribute == a)).sum()) / n
                if joint > 0:
                    total += joint * math.log(joint / p[s] / (float((attribute == a).sum()) / n))
            informations.append(total)
        first, second, *_ = sorted(informations, reverse=True)
        shares.append((first - second) / entropy)
    return sum(shares) / len(shares)


@pytest.mark.parametrize("seed", range(4))
def test_disentanglement_equals_its_definition(seed: int) -> None:
    messages, attributes = random_messages(seed, length=3), random_messages(seed + 9, length=4, vocabulary=3)
    assert float(positional_disentanglement(attributes, messages)) == pytest.approx(brute_force(messages, attributes))
    counts = torch.stack([(messages == symbol).sum(-1) for symbol in range(6)], -1)
    assert float(bag_of_symbols_disentanglement(attributes, messages)) == pytest.approx(brute_force(counts, attributes))


def test_disentanglement_needs_two_attributes_and_something_said() -> None:
    for measure in (positional_disentanglement, bag_of_symbols_disentanglement):
        assert math.isnan(measure(THINGS[:, :1], THINGS))
        assert math.isnan(measure(THINGS, torch.zeros_like(THINGS)))


def test_counts_of_messages() -> None:
    messages, labels = random_messages(0, 500, 1, 7)[:, 0], random_messages(1, 500, 1, 5)[:, 0]
    counts = MessageCounts(vocabulary=9, classes=5)
    for part in torch.arange(500).split(64):
        counts.update(messages[part], labels[part])
    found = {name: float(value) for name, value in counts.compute().items()}
    p = torch.bincount(messages).double() / 500
    assert found["message_entropy"] == pytest.approx(float(-(p * p.log()).sum()))
    assert found["used_vocabulary"] == 7
    pairs = torch.bincount(messages * 5 + labels, minlength=35).view(7, 5).double() / 500
    independent = pairs.sum(0) * pairs.sum(1, keepdim=True)
    assert found["class_information"] == pytest.approx(float(torch.special.xlogy(pairs, pairs / independent).sum()))


def _process(rank: int, world: int, store: str, folder: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    metric = MessageStructure(features=3, attributes=2, length=2, examples=30)
    if rank < 2:  # the last one has nothing
        _fill(metric, torch.arange(50)[rank::2])
    torch.save(metric.compute(), f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def _fill(metric: MessageStructure, index: Tensor) -> None:
    inputs = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    metric.update(index, inputs[index], random_messages(0, 50)[index], random_messages(1, 50)[index])


@pytest.mark.slow
def test_structure_is_that_of_one_process(tmp_path: Path) -> None:
    run_processes(_process, (3, str(tmp_path / "store"), str(tmp_path)), 3)
    whole = MessageStructure(features=3, attributes=2, length=2, examples=30)
    _fill(whole, torch.arange(50).flip(0))
    expected = whole.compute()
    assert expected.keys() == {"topographic_similarity", "posdis", "bosdis"}
    inputs = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))[:30]
    torch.testing.assert_close(expected["topographic_similarity"], topographic_similarity(inputs, random_messages(0, 50)[:30]))
    for rank in range(3):
        found = torch.load(tmp_path / f"{rank}.pt")
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value)


def test_structure_by_other_distances() -> None:
    """The Hamming distance of inputs compares their attributes, if there are any."""
    messages = random_messages(0, size=len(THINGS), length=3, vocabulary=3)
    inputs = torch.randn(len(THINGS), 5, generator=torch.Generator().manual_seed(0)).round()
    for attributes, compared in ((THINGS, THINGS), (None, inputs)):
        known = 0 if attributes is None else 3
        metric = MessageStructure(5, known, 3, input_distance="hamming", message_distance="edit")
        metric.update(torch.arange(len(THINGS)), inputs, messages, attributes)
        found = metric.compute()["topographic_similarity"]
        expected = topographic_similarity(compared, messages, input_distance="hamming", message_distance="edit")
        torch.testing.assert_close(found, expected)
        for first, second in (("hamming", "hamming"), ("cosine", "edit")):
            other = topographic_similarity(compared, messages, input_distance=first, message_distance=second)  # type: ignore[arg-type]
            assert not torch.isclose(found, other, atol=1e-3)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: MessageStructure(3, input_distance="edit"), "`input_distance`"),  # type: ignore[arg-type]
        (lambda: MessageStructure(3, message_distance="cosine"), "`message_distance`"),  # type: ignore[arg-type]
        (lambda: MessageCounts(0), "`vocabulary`"),
        (lambda: MessageCounts(3, classes=0), "`classes`"),
        (lambda: MessageStructure(0), "`features`"),
        (lambda: MessageStructure(3, attributes=-1), "`attributes`"),
    ],
)
def test_bad_arguments_are_explained(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make()


WHOLE = torch.tensor([[0, 1], [1, 1], [0, 0]])


@pytest.mark.parametrize(
    ("messages", "labels"),
    [
        (torch.tensor([4, 0]), torch.tensor([0, 0])),  # it would count for the next class
        (torch.tensor([-1, 0]), torch.tensor([0, 0])),
        (torch.tensor([1, 0]), torch.tensor([-1, 0])),
        (torch.tensor([1, 0]), torch.tensor([0])),
        (torch.tensor([1.5, 0.0]), torch.tensor([0, 0])),
    ],
)
def test_symbols_outside_the_vocabulary_are_refused(messages: Tensor, labels: Tensor) -> None:
    metric = MessageCounts(vocabulary=4, classes=2)
    with pytest.raises(ConfigurationError, match=r"Expected (symbols in 0 \.\. 3|classes of at least 0|a label|messages)"):
        metric.update(messages, labels)
    assert not int(metric.counts.sum())


@pytest.mark.parametrize(
    ("inputs", "messages"), [(WHOLE, WHOLE[:2]), (WHOLE[:2], WHOLE), (WHOLE, WHOLE[:, 0]), (WHOLE.unsqueeze(0), WHOLE)]
)
def test_analyses_take_a_row_per_message(inputs: Tensor, messages: Tensor) -> None:
    for analyse in (topographic_similarity, positional_disentanglement, bag_of_symbols_disentanglement):
        with pytest.raises(ConfigurationError, match="messages"):
            analyse(inputs, messages)


@pytest.mark.parametrize(
    "wrong",
    [
        {"index": torch.tensor([-1, 0, 1])},  # it would be the last place
        {"index": torch.tensor([0.0, 1.0, 2.0])},
        {"inputs": torch.rand(3, 5)},
        {"messages": WHOLE[:, :1]},
        {"messages": WHOLE + 0.5},
        {"attributes": WHOLE[:2]},
    ],
    ids=",".join,
)
def test_structures_refuse_rows_that_do_not_fit(wrong: dict[str, Tensor]) -> None:
    given = {"index": torch.arange(3), "inputs": torch.rand(3, 4), "messages": WHOLE, "attributes": WHOLE} | wrong
    with pytest.raises(ConfigurationError):
        MessageStructure(features=4, attributes=2, length=2).update(**given)
