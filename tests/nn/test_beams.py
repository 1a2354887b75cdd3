"""Beam search against exhaustive search and a greedy loop written apart."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from lit_sparse.errors import ConfigurationError
from lit_sparse.nn import beam_search
from lit_sparse.nn.encoder_decoder.base import State

BOS, EOS, SIZE = 0, 1, 5


def random_table(rows: int, seed: int = 0) -> Tensor:
    """Log-probabilities (rows, previous, next) of a Markov chain for each row."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, SIZE, SIZE, generator=generator).mul(1.5).log_softmax(-1).double()


def step(tokens: Tensor, memory: State, state: State) -> tuple[Tensor, Tensor, State]:
    table = memory["table"]
    weights = torch.nn.functional.one_hot(tokens, SIZE).double().unsqueeze(1)  # attention marks the previous token
    log_probs = table[torch.arange(len(tokens)), tokens] + 0.1 * torch.sin(state["time"].unsqueeze(-1) + torch.arange(SIZE))
    return log_probs.log_softmax(-1), weights, {"time": state["time"] + tokens + 1.0}


def found_by_beam(table: Tensor, limits: list[int], **options: float) -> list[list[tuple[list[int], float]]]:
    state = {"time": torch.zeros(len(table), dtype=torch.float64)}
    found = beam_search(step, {"table": table}, state, bos=BOS, eos=EOS, limits=torch.tensor(limits), **options)  # type: ignore[arg-type]
    return [[(one.tokens, one.score) for one in row] for row in found]


def log_probability(table: Tensor, tokens: list[int], limit: int) -> float:
    """Return the score of a sequence that ends by itself, or at the limit."""
    state, total, last = {"time": torch.zeros(1, dtype=torch.float64)}, 0.0, BOS
    ends = [EOS] if len(tokens) < limit else []
    for token in [*tokens, *ends]:
        log_probs, _, state = step(torch.tensor([last]), {"table": table.unsqueeze(0)}, state)
        total, last = total + float(log_probs[0, token]), token
    return total


def test_a_wide_beam_finds_the_best_of_all_sequences() -> None:
    table, limit = random_table(6), 4
    found = found_by_beam(table, [limit] * 6, beam_size=SIZE**limit, n_best=3)
    for row in range(6):
        every = [list(s) for n in range(limit + 1) for s in itertools.product([0, 2, 3, 4], repeat=n)]
        scored = sorted(((log_probability(table[row], s, limit), s) for s in every), key=lambda item: -item[0])
        # A sequence of the limit's length that ends in the end token is one shorter than the limit.
        assert [tokens for tokens, _ in found[row]] == [s for _, s in scored[:3]]
        assert [score for _, score in found[row]] == pytest.approx([score for score, _ in scored[:3]])


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_a_beam_of_one_is_greedy_search(alpha: float) -> None:
    table = random_table(20, 1)
    found = found_by_beam(table, [7] * 20, beam_size=1, length_penalty=alpha)
    for row in range(20):
        tokens, last, state = [], BOS, {"time": torch.zeros(1, dtype=torch.float64)}
        while len(tokens) < 7:
            log_probs, _, state = step(torch.tensor([last]), {"table": table[row : row + 1]}, state)
            last = int(log_probs.argmax())
            if last == EOS:
                break
            tokens.append(last)
        assert found[row][0][0] == tokens


def test_rows_do_not_depend_on_one_another() -> None:
    table, limits = random_table(12, 2), [1, 9, 0, 3, 4, 9, 2, 5, 6, 7, 8, 9]
    together = found_by_beam(table, limits, beam_size=3, n_best=3, length_penalty=0.6)
    for row in range(12):
        assert found_by_beam(table[row : row + 1], limits[row : row + 1], beam_size=3, n_best=3, length_penalty=0.6) == [
            together[row]
        ]


def test_attention_belongs_to_the_tokens() -> None:
    found = beam_search(
        step,
        {"table": random_table(4, 3)},
        {"time": torch.zeros(4, dtype=torch.float64)},
        bos=BOS,
        eos=EOS,
        limits=torch.full((4,), 6),
        beam_size=4,
        n_best=4,
    )
    for row in found:
        for one in row:
            before = one.attention[0].argmax(-1).tolist()
            assert before == [BOS, *one.tokens][: len(before)]
            assert len(before) in (len(one.tokens), len(one.tokens) + 1)


def test_scores_are_divided_by_the_length_penalty_and_sorted() -> None:
    table = random_table(5, 4)
    for row, found in enumerate(found_by_beam(table, [5] * 5, beam_size=4, n_best=4, length_penalty=1.0)):
        scores = [score for _, score in found]
        assert scores == sorted(scores, reverse=True)
        for tokens, score in found:
            length = min(len(tokens) + 1, 5)
            assert score == pytest.approx(log_probability(table[row], tokens, 5) * 6 / (5 + length))


@pytest.mark.parametrize("beam_size", [1, 3])
def test_what_was_written_stays_where_no_token_may_follow(beam_size: int) -> None:
    """A row that is stuck keeps its tokens and their score; one that cannot begin has none, and is not certain of that."""
    allowed = {BOS: [2, 3], 2: [3]}

    def step(last: Tensor, memory: State, state: State) -> tuple[Tensor, Tensor, State]:
        log_probs = torch.full((len(last), 5), -math.inf)
        for row, (token, stuck) in enumerate(zip(last.tolist(), memory["stuck"].tolist(), strict=True)):
            for number in [] if stuck else allowed.get(token, []):
                log_probs[row, number] = -0.5 if number == 2 else -1.0
        return log_probs, torch.ones(len(last), 1, 4), state

    memory = {"stuck": torch.tensor([False, True])}
    found = beam_search(
        step, memory, {}, bos=BOS, eos=EOS, limits=torch.tensor([9, 9]), beam_size=beam_size, length_penalty=1.0
    )
    assert found[0][0].tokens == [2, 3]
    assert found[0][0].score == pytest.approx(-1.5 / (7 / 6))
    assert found[0][0].attention.shape == (1, 2, 4)
    assert found[1][0].tokens == []
    assert found[1][0].score == -math.inf


def test_forbidden_and_impossible_tokens_are_never_taken() -> None:
    table = random_table(6, 5)
    table[3, :, 2:] = -torch.inf
    table[4] = torch.nan  # no token is allowed: an empty sequence, and other rows are unchanged
    found = found_by_beam(table, [6] * 6, beam_size=3, n_best=3, forbidden=(0, 4))
    assert all(not {0, 4} & set(tokens) for row in found for tokens, _ in row)
    assert all(tokens == [] for tokens, _ in found[3])
    assert found[4] == [([], -math.inf)]
    keep = [0, 1, 2, 5]
    assert [found[i] for i in keep] == found_by_beam(table[keep], [6] * 4, beam_size=3, n_best=3, forbidden=(0, 4))
    assert all(math.isfinite(score) for row in found[:4] + found[5:] for _, score in row)


@pytest.mark.parametrize(("options", "words"), [({"beam_size": 0}, "beam_size"), ({"beam_size": 2, "n_best": 3}, "n_best")])
def test_bad_sizes_are_refused(options: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        found_by_beam(random_table(1), [3], **options)


@pytest.mark.parametrize(
    "wrong",
    [{"length_penalty": math.nan}, {"length_penalty": 1e300}, {"forbidden": (SIZE,)}, {"forbidden": 3}, {"beam_size": 2**62}],
    ids=",".join,
)
def test_wrong_options_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        found_by_beam(random_table(2), [3, 3], **wrong)


@pytest.mark.parametrize("limits", [[3], [3, 3, 3], [[3, 3]], [3.0, 3.0]], ids=str)
def test_limits_are_a_whole_number_per_row(limits: list[int]) -> None:
    with pytest.raises(ConfigurationError):
        found_by_beam(random_table(2), limits)


def test_the_end_is_a_token() -> None:
    """Otherwise no sequence would ever finish."""

    def step(tokens: Tensor, memory: State, state: State) -> tuple[Tensor, Tensor, State]:
        return torch.zeros(len(tokens), 3), torch.zeros(len(tokens), 1, 1), state

    with pytest.raises(ConfigurationError, match=r"`eos` tokens in 0 .. 2 but got 7"):
        beam_search(step, {}, {}, bos=0, eos=7, limits=torch.tensor([3]))
