"""The distribution over structures of SparseMAP, its derivatives, and its solver, which runs on the CPU or by numba-cuda."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vjp

from lit_sparse.checks import check_tensor
from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.torch_internals import on_values
from lit_sparse.kernels.cpu.threads import Array
from lit_sparse.kernels.oracles import CompiledOracle
from lit_sparse.mappings.row_function import constant_in
from lit_sparse.mappings.sparsemap.active_set.batch import Solution, Start, solve_batch, solve_with_oracle
from lit_sparse.structures import Structure

__all__ = ["StructureProblem", "on_support", "potential_counts"]


class _Distribution(torch.autograd.Function):
    """The solution as a function of the scores and the potentials: linear in both as long as the support stays.

    With the structures as rows of A and ``M = A A^T + 1 1^T``, the derivative of the probabilities in their totals is
    ``Q = S - S 1 1^T S / (1^T S 1)`` with ``S = M^-1``.
    """

    @staticmethod
    def forward(x: Tensor, potentials: Tensor | None, problem: StructureProblem) -> tuple[Tensor, ...]:
        return problem.solve(x.detach(), None if potentials is None else potentials.detach())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, potentials, problem = inputs
        marginals, _, structures, sizes, gap = output
        ctx.structure = problem.structure
        ctx.mark_non_differentiable(structures, sizes, gap)
        ctx.set_materialize_grads(False)
        kept = (x != -torch.inf, structures, sizes, marginals, *(() if potentials is None else (potentials,)))
        ctx.save_for_backward(*kept)
        ctx.save_for_forward(*kept)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        if grads[0] is None and grads[1] is None:
            return None, None, None
        _, structures, _, marginals, *potentials = ctx.saved_tensors
        pull, probs = _derivative(ctx.saved_tensors, grads[0], grads[1])
        counts = None
        if ctx.needs_input_grad[1]:
            counts = potential_counts(ctx.structure, structures.double(), potentials[0].detach(), probs)
            counts = constant_in(potentials[0], counts)
        return constant_in(marginals, pull), counts, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        structures, totals = ctx.saved_tensors[1].double(), None
        if tangents[1] is not None:
            totals = ctx.structure.potential_scores(structures, tangents[1])
        return *_derivative(ctx.saved_tensors, tangents[0], totals), None, None, None


def _derivative(saved: tuple[Tensor, ...], x: Tensor | None, totals: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return changes of marginals (B, d) and probabilities (B, S) for changed scores (B, d) and totals (B, S) of structures."""
    allowed, structures, sizes, marginals, *_ = saved
    structures = structures.double()
    if x is not None:
        of_x = torch.einsum("bsd,bd->bs", structures, torch.where(allowed, x, 0.0))
        totals = of_x if totals is None else of_x + totals
    assert totals is not None
    change = on_support(structures, sizes, totals.unsqueeze(-1)).squeeze(-1)
    change = torch.where(marginals.isnan().any(-1, keepdim=True), torch.nan, change)
    return torch.where(allowed, torch.einsum("bs,bsd->bd", change, structures), 0.0), change


def on_support(structures: Tensor, sizes: Tensor, total: Tensor) -> Tensor:
    """Return the changes (B, S, n) of the probabilities on the support for changes of the structures' totals."""
    count = structures.shape[1]
    valid = torch.arange(count, device=sizes.device) < sizes.unsqueeze(-1)
    gram = structures @ structures.mT + 1.0
    eye = torch.eye(count, dtype=gram.dtype, device=gram.device)
    factor = torch.linalg.cholesky(torch.where(valid.unsqueeze(-1) & valid.unsqueeze(1), gram, eye))
    ones = valid.to(gram.dtype).unsqueeze(-1)
    right = torch.cat([ones, torch.where(valid.unsqueeze(-1), total, 0.0)], -1)
    both = torch.cholesky_solve(right, factor)
    spread, solved = both[..., :1], both[..., 1:]
    return solved - spread * (solved.sum(1, keepdim=True) / spread.sum(1, keepdim=True))


def potential_counts(structure: Structure, structures: Tensor, potentials: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted counts of each potential in structures (B, S, d) with weights (B, S): a tensor like the potentials.

    Linear in the weights, and differentiable. If potentials differ by row, their first dimension is the batch.
    """
    pull = vjp(lambda values: structure.potential_scores(structures, values), potentials)[1]
    counts: Tensor = pull(weights)[0]
    return counts


def _start_of(given: tuple[Tensor, Tensor] | Tensor | None, structure: Structure, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return structures (B, n, D) to start from and their probabilities (B, n)."""
    size, d = scores.shape
    if given is None:
        return scores.new_zeros(size, 0, d), scores.new_zeros(size, 0)
    entries, probs = (given.unsqueeze(-2), torch.ones_like(given[..., :1])) if isinstance(given, Tensor) else given
    entries, probs = entries.detach().double(), probs.detach().double()
    if entries.shape[-1] != d or entries.shape[:-2].numel() != size:
        raise ConfigurationError(
            f"Expected argument `start` to have a structure of {d} entries for each of {size} rows but got"
            f" {tuple(entries.shape)}."
        )
    entries, probs = entries.reshape(size, -1, d), probs.reshape(size, -1)
    allowed = (scores != -torch.inf).unsqueeze(1)
    everything = torch.ones_like(allowed)
    fits = structure.fits(entries, allowed)
    if isinstance(given, Tensor) and not bool((fits | structure.fits(entries, everything)).all()):  # except for the mask
        raise ConfigurationError(
            f"Expected argument `start` to contain structures of {structure!r} but some are not. Start from structures."
        )
    return entries, torch.where(fits & probs.isfinite(), probs, 0.0)


def _checked(structure: Structure, found: Any, scores: Tensor) -> Tensor:
    """Return what an oracle found, which must be one structure for each row."""
    name = f"{type(structure).__name__}.maximize"
    expected = f"{name} to return a tensor {tuple(scores.shape)} of real numbers, one structure per row,"
    structures = check_tensor(found, expected, shape=scores.shape).to(scores.dtype)
    if not bool(((structures == 0) | (structures == 1)).all()):
        raise ConfigurationError(f"Expected {name} to return zeros and ones but got other values.")
    allowed = scores != -torch.inf
    if bool(((structures == 1) & ~allowed).any()):
        raise ConfigurationError(f"Expected {name} to return zeros at forbidden entries, those with a score of -inf.")
    if not bool(structure.fits(structures, allowed).all()):
        raise ConfigurationError(f"Expected {name} to return structures of {structure!r}, but its `validate` refuses one.")
    return structures


@dataclass(frozen=True)
class StructureProblem:
    """A SparseMAP problem: a structure and the solver's options, to be called with scores and potentials.

    Attributes:
        structure: a set of structures.
        start: structures (..., S, D) to start from with their probabilities (..., S), or one for each row (..., D);
            None for the best one for the scores.
        max_iter: maximum number of structures searched for a row.
        tol: error of the marginals to reach, in Euclidean distance.
        warn: function that is called with a message if ``max_iter`` was too small.
    """

    structure: Structure
    start: tuple[Tensor, Tensor] | Tensor | None
    max_iter: int
    tol: float
    warn: Callable[[str], None]

    def __call__(self, scores: Tensor, potentials: Tensor | None) -> tuple[Tensor, ...]:
        """Solve rows, differentiable in scores and potentials; arguments and results as for :meth:`solve`."""
        return _Distribution.apply(scores, potentials, self)  # type: ignore[no-any-return, no-untyped-call]

    @on_values
    def solve(self, scores: Tensor, potentials: Tensor | None) -> tuple[Tensor, ...]:
        """Solve SparseMAP for a batch, by a compiled oracle if the structure has one, else by :meth:`Structure.maximize`.

        Args:
            scores: float64 (B, D), -inf where an entry is forbidden.
            potentials: float64, as the structure arranges them.

        Returns:
            Marginals (B, D), probabilities (B, S), structures (B, S, D) of bytes, sizes of supports (B,), duality gaps
            (B,).
        """
        first, probs = _start_of(self.start, self.structure, scores)
        start = Start(first, probs, self._extra(first, potentials))
        oracle = self.structure.compiled(potentials)
        found = self._by_oracle(scores, potentials, start) if oracle is None else self._compiled(oracle, scores, start)
        left = found.done == 0
        if bool(left.any()):
            self.warn(
                f"SparseMAP stopped after max_iter={self.max_iter} structures in {int(left.sum())} of {len(left)} rows, with a"
                f" duality gap of up to {float(found.gaps[left].max()):.2g}: their marginals are not exact. Raise max_iter."
            )
        most = int(found.sizes.max()) if len(found.sizes) else 0
        valid = torch.arange(most, device=scores.device) < found.sizes.unsqueeze(-1)
        structures = torch.where(valid.unsqueeze(-1), found.structures[:, :most], 0)
        return found.marginals, torch.where(valid, found.probs[:, :most], 0.0), structures, found.sizes, found.gaps

    def _compiled(self, oracle: CompiledOracle, scores: Tensor, start: Start) -> Solution:
        """Solve with a compiled oracle, on the CPU unless there is a program for the GPU."""
        links = scores.new_zeros(1, 1, oracle.tags, oracle.tags) if oracle.links is None else oracle.links
        if scores.is_cuda:
            from lit_sparse.mappings.sparsemap.active_set import cuda  # translates the functions of the other

            found = cuda.solve_batch(scores, oracle._replace(links=links), start, self.max_iter, self.tol)
            if found is not NotImplemented:
                return found  # type: ignore[no-any-return]
        oracle = oracle._replace(links=_array(links))
        return _on_device(scores, solve_batch(_array(scores), oracle, _arrays(start), self.max_iter, self.tol))

    def _extra(self, structures: Tensor, potentials: Tensor | None) -> Tensor:
        """Return what the potentials add to structures (b, n, D)."""
        if potentials is None or not structures.shape[1]:
            return structures.new_zeros(structures.shape[:2])
        return self.structure.potential_scores(structures, potentials)

    def _by_oracle(self, scores: Tensor, potentials: Tensor | None, start: Start) -> Solution:
        """Solve with :meth:`Structure.maximize`.

        Rows with NaN or +inf are left out and come back as NaN, those in which everything is forbidden as zeros.
        """
        broken = ~(scores < torch.inf).all(-1)
        if potentials is not None:
            broken = broken | ~potentials.isfinite().flatten(1).all(-1)
        usable = ~broken & (scores != -torch.inf).any(-1)

        def oracle(residual: Array, index: Array) -> tuple[Array, Array]:
            rows, places = (torch.from_numpy(array).to(scores.device) for array in (residual, index))
            shared = potentials is None or len(potentials) == 1
            mine = potentials if shared else potentials[places]  # type: ignore[index]
            found = _checked(self.structure, self.structure.maximize(rows, mine), rows)
            return found.cpu().numpy(), self._extra(found.unsqueeze(1), mine).squeeze(1).cpu().numpy()

        def guess(residual: Array) -> tuple[Array, Array] | None:
            rows = torch.from_numpy(residual).to(scores.device)
            known = None if potentials is not None or not len(rows) else self.structure.recall(rows)
            return None if known is None else (_checked(self.structure, known, rows).cpu().numpy(), np.zeros(len(rows)))

        given = _array(scores), oracle, guess, _arrays(start), _array(usable)
        found = _on_device(scores, solve_with_oracle(*given, self.max_iter, self.tol))
        others = ~usable
        invalid = torch.where(broken, torch.nan, 0.0).to(scores)[others]
        found.sizes[others], found.done[others] = 1, 1
        found.gaps[others], found.probs[others, 0] = invalid, 1.0 + invalid
        found.marginals[others] = torch.where(scores[others] != -torch.inf, invalid.unsqueeze(-1), 0.0)
        return found


def _array(tensor: Tensor) -> Array:
    return tensor.cpu().contiguous().numpy()


def _arrays(start: Start) -> Start:
    return Start(*[_array(tensor) for tensor in start])


def _on_device(like: Tensor, solution: Solution) -> Solution:
    return Solution(*[torch.from_numpy(array).to(like.device) for array in solution])
