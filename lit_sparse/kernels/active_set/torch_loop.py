"""The active-set method of :mod:`lit_sparse.kernels.active_set.row` in torch operations, for devices other than the CPU.

All rows of a batch advance together, on any device, and leave when they are finished. The Cholesky factor of a row grows by
one line where a structure enters; where one leaves, the factor is computed anew for the rows concerned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from lit_sparse.kernels.active_set.batch import Solution, Start
from lit_sparse.kernels.active_set.row import DEPENDENT, ONE, ROUNDING

__all__ = ["Oracle", "solve_in_torch"]

#: (scores (b, d), which rows of the batch (b,)) -> structures (b, d) and what other potentials add to each (b,).
Oracle = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass
class _Support:
    """The supports of b rows, each packed to the left; the factor of what is beyond a row's size is that of the identity.

    Attributes:
        size: (b,) int64.
        matrix: (b, S, d) structures.
        gain: (b, S) totals of the structures, relative to that of the first.
        extra: (b, S) what other potentials add to each.
        reference: (b, d) the first structure; ``base`` (b,) what other potentials add to it.
        base: see there.
        gram: (b, S, S) ``A A^T + 1 1^T``.
        factor: (b, S, S) its lower Cholesky factor.
        probs: (b, S).
    """

    size: Tensor
    matrix: Tensor
    gain: Tensor
    extra: Tensor
    reference: Tensor
    base: Tensor
    gram: Tensor
    factor: Tensor
    probs: Tensor

    @staticmethod
    def empty(rows: int, like: Tensor) -> _Support:
        d = like.shape[-1]
        zeros = like.new_zeros
        eye = zeros(rows, 0, 0)
        return _Support(
            torch.zeros(rows, dtype=torch.int64, device=like.device),
            zeros(rows, 0, d), zeros(rows, 0), zeros(rows, 0), zeros(rows, d), zeros(rows), eye, eye, zeros(rows, 0),
        )  # fmt: skip

    @property
    def capacity(self) -> int:
        return self.matrix.shape[1]

    def valid(self) -> Tensor:
        """Return boolean (b, S): which places are taken."""
        return torch.arange(self.capacity, device=self.size.device) < self.size.unsqueeze(-1)

    def rows(self, index: Tensor) -> _Support:
        return _Support(**{field.name: getattr(self, field.name)[index] for field in fields(self)})

    def put(self, index: Tensor, part: _Support) -> None:
        for field in fields(self):
            getattr(self, field.name)[index] = getattr(part, field.name)

    def grow(self, capacity: int) -> None:
        """Make room for this many structures a row."""
        more = capacity - self.capacity
        if more <= 0:
            return
        pad = torch.nn.functional.pad
        self.matrix = pad(self.matrix, (0, 0, 0, more))
        for name in ("gain", "extra", "probs"):
            setattr(self, name, pad(getattr(self, name), (0, more)))
        for name in ("gram", "factor"):
            wide = pad(getattr(self, name), (0, more, 0, more))
            wide.diagonal(dim1=1, dim2=2)[:, -more:] = 1.0
            setattr(self, name, wide)

    def shrink(self) -> None:
        """Shorten the supports to the largest number of structures that a row has."""
        n = int(self.size.max()) if len(self.size) else 0
        for name in ("matrix", "gain", "extra", "probs"):
            setattr(self, name, getattr(self, name)[:, :n])
        self.gram, self.factor = self.gram[:, :n, :n], self.factor[:, :n, :n]

    def drop(self, which: Tensor) -> None:
        """Remove structure ``which`` (b,) from the support of each row."""
        b, capacity = self.probs.shape
        places = torch.arange(capacity, device=self.size.device).expand(b, capacity)
        order = torch.where(places >= which.unsqueeze(-1), places + 1, places).clamp_max(capacity - 1)
        self.size = self.size - 1
        valid = self.valid()
        for name in ("gain", "extra", "probs"):
            setattr(self, name, torch.where(valid, getattr(self, name).gather(1, order), 0.0))
        wide = order.unsqueeze(-1)
        self.matrix = torch.where(valid.unsqueeze(-1), self.matrix.gather(1, wide.expand_as(self.matrix)), 0.0)
        gram = self.gram.gather(1, wide.expand_as(self.gram)).gather(2, order.unsqueeze(1).expand_as(self.gram))
        eye = torch.eye(capacity, dtype=gram.dtype, device=gram.device)
        self.gram = torch.where(valid.unsqueeze(-1) & valid.unsqueeze(1), gram, eye)
        self.factor = torch.linalg.cholesky(self.gram)

    def solve(self, right: Tensor) -> Tensor:
        """Solve the system of each row for right-hand sides (b, S, m)."""
        return torch.cholesky_solve(right, self.factor)

    def aim(self) -> Tensor:
        """Return the optimal weights (b, S) that sum to one; they may be negative."""
        valid = self.valid().to(self.gain.dtype)
        ones, gains = self.solve(torch.stack([valid, self.gain], -1)).unbind(-1)
        shift = (gains.sum(-1, keepdim=True) - 1.0) / ones.sum(-1, keepdim=True)
        return (gains - shift * ones) * valid

    def marginals(self) -> Tensor:
        """Return (b, d)."""
        mean = torch.einsum("bs,bsd->bd", self.probs, self.matrix)
        return torch.where(mean > 1.0 - ONE, 1.0, mean)


def _enter(support: _Support, scores: Tensor, found: Tensor, extra: Tensor) -> Tensor:
    """Let one structure a row into the support, with probability zero; see ``enter`` of the kernel.

    Returns:
        boolean (b,): it is new and no affine combination of the others.
    """
    support.grow(int(support.size.max()) + 1)
    plain = torch.ones_like(support.size, dtype=torch.bool)
    todo = torch.arange(len(plain), device=plain.device)
    while len(todo):
        part = support.rows(todo)
        n, structure = part.size, found[todo]
        valid = part.valid()
        column = torch.where(valid, 1.0 + torch.einsum("bsd,bd->bs", part.matrix, structure), 0.0)
        solved = torch.linalg.solve_triangular(part.factor, column.unsqueeze(-1), upper=False).squeeze(-1)
        ones = 1.0 + structure.sum(-1)
        squared = ones - solved.square().sum(-1)
        fits = squared > DEPENDENT * ones
        first = n == 0
        part.reference[first], part.base[first] = structure[first], extra[todo][first]
        index, place = fits.nonzero().squeeze(-1), n[fits]
        part.matrix[index, place] = structure[index]
        gain = ((structure - part.reference) * scores[todo]).sum(-1) + (extra[todo] - part.base)
        part.gain[index, place] = gain[index]
        part.extra[index, place] = extra[todo][index]
        part.gram[index, place], part.gram[index, :, place] = column[index], column[index]
        part.gram[index, place, place] = ones[index]
        part.factor[index, place] = solved[index]
        part.factor[index, place, place] = squared[index].sqrt()
        part.size[index] += 1
        support.put(todo[index], part.rows(index))
        left = (~fits).nonzero().squeeze(-1)
        plain[todo[left]] = False
        if len(left):
            rest = part.rows(left)
            weights = rest.solve(column[left].unsqueeze(-1)).squeeze(-1)
            ratio = torch.where(rest.valid() & (weights > 1e-12), rest.probs / weights, torch.inf)
            step, leaver = ratio.min(-1)
            rest.probs = rest.probs - step.unsqueeze(-1) * weights
            rest.drop(leaver)
            rest.probs[torch.arange(len(left), device=left.device), rest.size] = step  # its place, when it enters
            support.put(todo[left], rest)
        todo = todo[left]
    return plain


def _settle(support: _Support, newest: Tensor) -> Tensor:
    """Move the probabilities to the best ones on the support; see ``settle`` of the kernel.

    Args:
        support: changed in place.
        newest: (b,) the place of a structure that just entered with probability zero, or -1.

    Returns:
        boolean (b,): nothing but rounding could be gained.
    """
    stuck = torch.zeros_like(support.size, dtype=torch.bool)
    todo = torch.arange(len(stuck), device=stuck.device)
    while len(todo):
        part = support.rows(todo)
        aim = part.aim()
        falling = part.valid() & (aim <= 0)
        room = part.probs - aim
        steps = torch.where(falling, torch.where(room > 0, part.probs / torch.where(room > 0, room, 1.0), 0.0), torch.inf)
        step, leaver = steps.min(-1)
        stops = step <= 1.0
        whole = aim / aim.sum(-1, keepdim=True)
        part.probs = torch.where(stops.unsqueeze(-1), part.probs - step.clamp_max(1.0).unsqueeze(-1) * room, whole)
        index = stops.nonzero().squeeze(-1)
        if len(index):
            leaving = part.rows(index)
            leaving.drop(leaver[index])
            part.put(index, leaving)
        support.put(todo, part)
        ended = (leaver[index] == newest[todo[index]]) & (step[index] == 0)
        stuck[todo[index[ended]]] = True
        newest[todo[index]] = -1
        todo = todo[index[~ended]]
    return stuck


def solve_in_torch(scores: Tensor, oracle: Oracle, start: Start, max_iter: int, tol: float) -> Solution:
    """Solve a batch with an oracle.

    Args:
        scores: float64 (B, d), finite, or -inf where an entry is forbidden.
        oracle: the best structures for such scores.
        start: structures to start from.
        max_iter: most structures that may be looked for.
        tol: error of the marginals to reach, in Euclidean distance.
    """
    first, first_probs, first_extra = start
    size, d = scores.shape
    forbidden = scores == -torch.inf
    plain = scores.masked_fill(forbidden, 0.0)
    support = _Support.empty(size, scores)
    alive = torch.arange(size, device=scores.device)
    for i in range(first.shape[1]):
        index = (first_probs[:, i] > 0).nonzero().squeeze(-1)
        if len(index):
            support.grow(int(support.size.max()) + 1)
            part = support.rows(index)
            new = _enter(part, plain[index], first[index, i], first_extra[index, i])
            places = (part.size - 1)[new]
            part.probs[new.nonzero().squeeze(-1), places] = first_probs[index[new], i]
            support.put(index, part)
    index = (support.size == 0).nonzero().squeeze(-1)
    if len(index):
        support.grow(max(support.capacity, 1))
        found, extra = oracle(scores[index], index)
        part = support.rows(index)
        _enter(part, plain[index], found, extra)
        part.probs[:, 0] = 1.0
        support.put(index, part)
    support.probs = support.probs / support.probs.sum(-1, keepdim=True)
    newest = torch.full_like(alive, -1)
    ended: list[tuple[Tensor, _Support, Tensor, Tensor]] = []
    for left in range(max_iter - 1, -1, -1):
        if not len(alive):
            break
        stuck = _settle(support, newest)
        marginals = support.marginals()
        residual = torch.where(forbidden[alive], -torch.inf, plain[alive] - marginals)
        found, extra = oracle(residual, alive)
        inside = (found - marginals) * residual.masked_fill(forbidden[alive], 0.0)
        beside = support.probs * (extra.unsqueeze(-1) - support.extra)
        gap, terms = inside.sum(-1) + beside.sum(-1), inside.abs().sum(-1) + beside.abs().sum(-1)
        done = stuck | (gap <= (ROUNDING * (1.0 + terms)).clamp_min(0.5 * tol * tol))
        leaves = done if left else torch.ones_like(done)
        if leaves.any():
            index = leaves.nonzero().squeeze(-1)
            ended.append((alive[index], support.rows(index), gap[index].clamp_min(0.0), done[index]))
            index = (~leaves).nonzero().squeeze(-1)
            alive, support, found, extra = alive[index], support.rows(index), found[index], extra[index]
            support.shrink()
        if len(alive):
            new = _enter(support, plain[alive], found, extra)
            newest = torch.where(new, support.size - 1, -1)
    return _gather(ended, size, d, scores)


def _gather(ended: list[tuple[Tensor, _Support, Tensor, Tensor]], size: int, d: int, like: Tensor) -> Solution:
    """Put the rows back in order; see :func:`solve_in_torch`."""
    widest = max((part.capacity for _, part, _, _ in ended), default=0)
    found = Solution(
        like.new_zeros(size, d),
        like.new_zeros(size, widest, d, dtype=torch.uint8),
        like.new_zeros(size, widest),
        like.new_zeros(size, dtype=torch.int64),
        like.new_zeros(size),
        like.new_zeros(size, dtype=torch.uint8),
    )
    for rows, part, gap, done in ended:
        found.marginals[rows] = part.marginals()
        found.structures[rows, : part.capacity] = part.matrix.to(torch.uint8)
        found.probs[rows, : part.capacity] = part.probs
        found.sizes[rows], found.gaps[rows], found.done[rows] = part.size, gap, done.to(torch.uint8)
    return found
