"""Batched beam search with a step function."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lit_sparse.checks import INTEGERS, MOST_FEATURES, check_count, check_number, check_tensor
from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.arguments import checked
from lit_sparse.ground.tensors import shown
from lit_sparse.nn.encoder_decoder.base import State

__all__ = ["Hypothesis", "Step", "beam_search"]

#: Function from the last tokens (R,), the memory and a state to log-probabilities (R, V), attention (R, heads, S), next state.
Step = Callable[[Tensor, State, State], tuple[Tensor, Tensor, State]]


@dataclass(frozen=True)
class Hypothesis:
    """Output sequence of a beam search, with its score and attention.

    Attributes:
        tokens: token ids, without ``bos`` and ``eos``.
        score: log-probability divided by the length penalty.
        attention: (heads, T, S) attention weights of each token, including ``eos``.
    """

    tokens: list[int]
    score: float
    attention: Tensor


@torch.no_grad()
@checked
def beam_search(
    step: Step,
    memory: State,
    state: State,
    *,
    bos: int,
    eos: int,
    limits: Tensor,
    beam_size: int = 5,
    n_best: int = 1,
    length_penalty: float = 0.0,
    forbidden: tuple[int, ...] = (),
) -> list[list[Hypothesis]]:
    """Return the most probable sequences of each row, found by beam search with a step function.

    Each step extends the ``beam_size`` best open sequences of a row by every token. An extension by ``eos`` that is among
    the ``beam_size`` best is finished. A row ends when ``beam_size`` sequences are finished, or when its limit is reached;
    open sequences then count as finished. They also do if no token is allowed and no sequence is finished. A row without
    any allowed first token gets an empty sequence of score -inf. Rows are independent. A beam of size 1 is greedy search.
    Which of several equally probable tokens is chosen is unspecified.

    Args:
        step: see :data:`Step`; tokens of log-probability -inf or NaN are never chosen.
        memory: tensors (B, ...) that are the same in all steps.
        state: tensors (B, ...) before the first token.
        bos: id of the token that begins every sequence.
        eos: id of the token that ends every sequence.
        limits: (B,) maximum number of tokens per row; a row with 0 gets an empty sequence.
        beam_size: number of open sequences per row.
        n_best: maximum number of returned sequences per row, at most ``beam_size``.
        length_penalty: alpha; log-probabilities are compared after division by ``((5 + length) / 6) ** alpha``.
        forbidden: ids of tokens that are never chosen.

    Returns:
        Sequences of each row, best first.

    Raises:
        ConfigurationError: for a beam size below 1, ``n_best`` above it, a token or penalty outside its range, or a memory
            or state without a row for each limit.

    Source: Wu et al. (2016), Google's Neural Machine Translation System, section 7 (the penalty).
    """
    check_count("beam_size", beam_size, most=MOST_FEATURES)
    for name, token in (("bos", bos), ("eos", eos), *(("forbidden", token) for token in forbidden)):
        check_count(name, token, 0)
    check_number("length_penalty", length_penalty, -100.0, 100.0)
    check_tensor(limits, "the limit of each row, whole numbers (B,),", shape=(None,), dtypes=INTEGERS)
    for name, tensor in {**memory, **state}.items():
        if not isinstance(tensor, Tensor) or tensor.shape[:1] != limits.shape:
            raise ConfigurationError(f"Expected {len(limits)} rows of {name!r}, one per limit, but got {shown(tensor)}.")
    if not 1 <= check_count("n_best", n_best) <= beam_size:
        raise ConfigurationError(f"Expected `n_best` to be at most `beam_size`={beam_size} but got {n_best}.")
    device, rows = limits.device, len(limits)
    finished: list[list[Hypothesis]] = [[] for _ in range(rows)]
    open_rows = (limits > 0).nonzero().squeeze(-1)  # rows that are not finished
    memory, state = _repeated(memory, open_rows, beam_size), _repeated(state, open_rows, beam_size)
    scores = torch.full((len(open_rows), beam_size), -torch.inf, device=device)
    scores[:, 0] = 0.0  # all beams are equal at first, so only one counts
    tokens = torch.full((len(open_rows), beam_size, 1), bos, dtype=torch.int64, device=device)
    attention: Tensor | None = None
    length = 0
    while len(open_rows):
        length += 1
        log_probs, weights, state = step(tokens[:, :, -1].flatten(), memory, state)
        log_probs = log_probs.masked_fill(log_probs.isnan(), -torch.inf)
        for name, token in (("eos", eos), ("forbidden", max(forbidden, default=0))):
            if token >= log_probs.shape[-1]:
                raise ConfigurationError(f"Expected `{name}` tokens in 0 .. {log_probs.shape[-1] - 1} but got {token}.")
        if forbidden:
            log_probs[:, list(forbidden)] = -torch.inf
        size = log_probs.shape[-1]
        totals = (scores.unsqueeze(-1) + log_probs.view(len(open_rows), beam_size, size)).flatten(1)
        best, places = totals.topk(min(2 * beam_size, totals.shape[1]), -1)
        beams, chosen = places // size, places % size
        weights = weights.view(len(open_rows), beam_size, weights.shape[1], 1, -1)
        attention = weights if attention is None else torch.cat([attention, weights], 3)

        for row in (best[:, 0] == -torch.inf).nonzero().flatten().tolist():
            if not finished[int(open_rows[row])]:
                so_far = zip(tokens[row, :, 1:].tolist(), scores[row].tolist(), attention[row, :, :, :-1].cpu(), strict=True)
                finished[int(open_rows[row])] = _stopped(list(so_far), ((4 + length) / 6) ** length_penalty)

        last = length >= limits[open_rows]
        # At the limit what is best is finished as it stands.
        ends = ((chosen == eos) | last.unsqueeze(-1)) & (best > -torch.inf)
        ends[:, beam_size:] = False
        divisor = ((5 + length) / 6) ** length_penalty
        for row, rank in ends.nonzero().tolist():
            found = finished[int(open_rows[row])]
            if len(found) < beam_size:
                beam, token = int(beams[row, rank]), int(chosen[row, rank])
                written = tokens[row, beam, 1:].tolist() + ([] if token == eos else [token])
                found.append(Hypothesis(written, float(best[row, rank]) / divisor, attention[row, beam].to("cpu", copy=True)))

        # The best extensions that go on, in their order; those that ended stand behind them.
        scores, order = torch.where(chosen == eos, -torch.inf, best).topk(beam_size, -1)
        beams, chosen = beams.gather(1, order), chosen.gather(1, order)
        complete = [len(finished[int(row)]) >= beam_size for row in open_rows.tolist()]
        done = last | torch.tensor(complete, device=device) | (scores[:, 0] == -torch.inf)
        going = (~done).nonzero().squeeze(-1)
        flat = (going.unsqueeze(-1) * beam_size + beams[going]).flatten()
        if len(going) < len(open_rows):
            stay = (going.unsqueeze(-1) * beam_size + torch.arange(beam_size, device=device)).flatten()
            memory = {name: tensor[stay] for name, tensor in memory.items()}
        state = {name: tensor[flat] for name, tensor in state.items()}
        tokens = tokens.flatten(0, 1)[flat].view(len(going), beam_size, length)
        tokens = torch.cat([tokens, chosen[going].unsqueeze(-1)], -1)
        attention = attention.flatten(0, 1)[flat].view(len(going), beam_size, *attention.shape[2:])
        scores, open_rows = scores[going], open_rows[going]
    nothing = [Hypothesis([], 0.0, torch.zeros(1, 0, 0))]
    return [sorted(found, key=lambda one: -one.score)[:n_best] or nothing for found in finished]


def _stopped(sequences: list[tuple[list[int], float, Tensor]], divisor: float) -> list[Hypothesis]:
    """Return the open sequences of a row that no token can extend: as they stand, or the empty one of score -inf."""
    found = [Hypothesis(tokens, score / divisor, attention.clone()) for tokens, score, attention in sequences if tokens]
    found = [one for one in found if one.score > -math.inf]
    return found or [Hypothesis([], -math.inf, torch.zeros(1, 0, 0))]


def _repeated(tensors: State, rows: Tensor, times: int) -> State:
    return {name: tensor[rows].repeat_interleave(times, 0) for name, tensor in tensors.items()}
