"""SparseMAP (Niculae, Martins, Blondel & Cardie 2018): sparse distributions over structures, and their marginals."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import vjp
from typing_extensions import Self

from lit_sparse.checks import check_count, check_positive
from lit_sparse.errors import ConfigurationError, full_name
from lit_sparse.kernels.active_set import Array, Start, solve_batch, solve_with_oracle
from lit_sparse.mappings.active_set_loop import Oracle, solve_in_torch
from lit_sparse.mappings.base import SparseMapping, envelope, with_slope
from lit_sparse.mappings.rowwise import allowed_scores
from lit_sparse.structures import Budget, CompiledOracle, Structure

__all__ = ["SparseMAP", "SparseMAPOutput", "sparsemap"]


@dataclass(frozen=True)
class SparseMAPOutput:
    """A sparse distribution over structures for each row; unpacks to its first three attributes.

    Attributes:
        marginals: (..., d) its mean, unique.
        probs: (..., S) probabilities, zero beyond a row's own support; S is the largest support. Not unique: other
            distributions may have the same mean.
        structures: (..., S, d) of {0, 1}, zero beyond a row's own support.
        gap: (...) duality gap: by how much the objective can be improved at most. Rounding, unless ``max_iter`` was reached.
        entries: (..., S, D) the structures with all their entries, where the structure shows only some.
    """

    marginals: Tensor
    probs: Tensor
    structures: Tensor
    gap: Tensor
    entries: Tensor

    def __iter__(self) -> Iterator[Tensor]:
        yield from (self.marginals, self.probs, self.structures)


class _Support(torch.autograd.Function):
    """The solution as a function of the scores and the potentials: linear in both as long as the support stays.

    With the structures as rows of A and ``M = A A^T + 1 1^T``, the derivative of the probabilities in their totals is
    ``Q = S - S 1 1^T S / (1^T S 1)`` with ``S = M^-1``.
    """

    @staticmethod
    def forward(x: Tensor, potentials: Tensor | None, problem: _Problem) -> tuple[Tensor, ...]:
        return problem.solve(x.detach(), None if potentials is None else potentials.detach())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, potentials, problem = inputs
        _, _, structures, sizes, gap = output
        ctx.structure = problem.structure
        ctx.mark_non_differentiable(structures, sizes, gap)
        ctx.set_materialize_grads(False)
        kept = (x != -torch.inf, structures, sizes, *(() if potentials is None else (potentials,)))
        ctx.save_for_backward(*kept)
        ctx.save_for_forward(*kept)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        allowed, structures, sizes, *potentials = ctx.saved_tensors
        structures = structures.double()
        total = None
        if grads[0] is not None:
            total = torch.einsum("bsd,bd->bs", structures, torch.where(allowed, grads[0], 0.0))
        if grads[1] is not None:
            total = grads[1] if total is None else total + grads[1]
        pulled: list[Any] = [None, None, None]
        if total is not None:
            change = _on_support(structures, sizes, total)
            pulled[0] = torch.einsum("bs,bsd->bd", change, structures)
            if ctx.needs_input_grad[1]:
                pulled[1] = potential_counts(ctx.structure, structures, potentials[0].detach(), change)
        return tuple(pulled)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        allowed, structures, sizes, *_ = ctx.saved_tensors
        structures = structures.double()
        total = structures.new_zeros(structures.shape[:2])
        if tangents[0] is not None:
            total = total + torch.einsum("bsd,bd->bs", structures, torch.where(allowed, tangents[0], 0.0))
        if tangents[1] is not None:
            total = total + ctx.structure.potential_scores(structures, tangents[1])
        change = _on_support(structures, sizes, total)
        return torch.einsum("bs,bsd->bd", change, structures), change, None, None, None


def _on_support(structures: Tensor, sizes: Tensor, total: Tensor) -> Tensor:
    """Return Q times a change (B, S) of the totals: the change of the probabilities."""
    count = structures.shape[1]
    valid = torch.arange(count, device=sizes.device) < sizes.unsqueeze(-1)
    gram = structures @ structures.mT + 1.0
    eye = torch.eye(count, dtype=gram.dtype, device=gram.device)
    factor = torch.linalg.cholesky(torch.where(valid.unsqueeze(-1) & valid.unsqueeze(1), gram, eye))
    ones = valid.to(gram.dtype)
    right = torch.stack([ones, torch.where(valid, total, 0.0)], -1)
    spread, solved = torch.cholesky_solve(right, factor).unbind(-1)
    share = solved.sum(-1, keepdim=True) / spread.sum(-1, keepdim=True)
    return solved - share * spread


def potential_counts(structure: Structure, structures: Tensor, potentials: Tensor, weights: Tensor) -> Tensor:
    """Return how often each potential counts in the structures (B, S, d), weighted (B, S): a tensor like the potentials.

    Linear in the weights, and differentiable. One leading dimension of potentials is for rows, as they are arranged.
    """
    pull = vjp(lambda values: structure.potential_scores(structures, values), potentials)[1]
    counts: Tensor = pull(weights)[0]
    return counts


def _start_of(start: SparseMAPOutput | Tensor | None, structure: Structure, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return structures (B, n, D) to start from and their probabilities (B, n)."""
    size, d = scores.shape
    if start is None:
        return scores.new_zeros(size, 0, d), scores.new_zeros(size, 0)
    if isinstance(start, SparseMAPOutput):
        entries, probs = start.entries, start.probs
    elif isinstance(start, Tensor):
        entries = start.unsqueeze(-2)
        probs = torch.ones_like(entries[..., 0])
    else:
        raise ConfigurationError(
            f"Expected argument `start` to be a structure for each row or an earlier result but got {full_name(start)}."
        )
    entries, probs = entries.detach().double(), probs.detach().double()
    if entries.shape[-1] != d or entries.shape[:-2].numel() != size:
        raise ConfigurationError(
            f"Expected argument `start` to have a structure of {d} entries for each of {size} rows but got"
            f" {tuple(entries.shape)}."
        )
    entries, probs = entries.reshape(size, -1, d), probs.reshape(size, -1)
    allowed = (scores != -torch.inf).unsqueeze(1)
    bits = ((entries == 0) | (entries == 1)).all(-1)
    fits = bits & structure.fits(entries, allowed)
    known = fits | (bits & structure.fits(entries, torch.ones_like(allowed)))  # but for the mask
    if isinstance(start, Tensor) and not bool(known.all()):
        raise ConfigurationError(f"Expected argument `start` to hold structures of {structure!r}, but some are none.")
    return entries, torch.where(fits & probs.isfinite(), probs, 0.0)


def _checked(structure: Structure, found: Any, scores: Tensor) -> Tensor:
    """Return what an oracle found, which must be one structure for each row."""
    name = f"{type(structure).__name__}.maximize"
    if not isinstance(found, Tensor) or found.shape != scores.shape:
        shape = tuple(found.shape) if isinstance(found, Tensor) else full_name(found)
        raise ConfigurationError(
            f"Expected {name} to return a tensor {tuple(scores.shape)}, one structure a row, but got {shape}."
        )
    structures: Tensor = found.to(scores.dtype)
    if not bool(((structures == 0) | (structures == 1)).all()):
        raise ConfigurationError(f"Expected {name} to return zeros and ones but got other values.")
    allowed = scores != -torch.inf
    if bool(((structures == 1) & ~allowed).any()):
        raise ConfigurationError(f"Expected {name} to return zeros at forbidden entries, those with a score of -inf.")
    if not bool(structure.fits(structures, allowed).all()):
        raise ConfigurationError(f"Expected {name} to return structures of {structure!r}, but its `validate` refuses one.")
    return structures


@dataclass(frozen=True)
class _Problem:
    """What to solve beside scores and potentials; arguments of :func:`sparsemap`."""

    structure: Structure
    start: SparseMAPOutput | Tensor | None
    max_iter: int
    tol: float
    warn: Callable[[str], None]

    def solve(self, scores: Tensor, potentials: Tensor | None) -> tuple[Tensor, ...]:
        """Solve rows, compiled where the structure has a compiled oracle for the device.

        Args:
            scores: float64 (B, D), -inf where an entry is forbidden.
            potentials: float64, as the structure arranges them.

        Returns:
            Marginals (B, D), probabilities (B, S), structures (B, S, D) of bytes, sizes of supports (B,), duality gaps (B,).
        """
        first, first_probs = _start_of(self.start, self.structure, scores)
        plan = self.structure.compiled(potentials)
        results = NotImplemented if plan is None else self._compiled(plan, scores, potentials, first, first_probs)
        if results is NotImplemented:
            results = self._by_oracle(scores, potentials, first, first_probs)
        marginals, structures, probs, sizes, gap, done = results
        if not bool(done.all()):
            self.warn(
                f"SparseMAP stopped after max_iter={self.max_iter} structures in {int((~done).sum())} of {len(done)} rows, with"
                f" a duality gap of up to {float(gap[~done].max()):.2g}: their marginals are not exact. Raise max_iter."
            )
        most = int(sizes.max()) if len(sizes) else 0
        valid = torch.arange(most, device=sizes.device) < sizes.unsqueeze(-1)
        structures = torch.where(valid.unsqueeze(-1), structures[:, :most].to(torch.uint8), 0)
        return marginals, torch.where(valid, probs[:, :most], 0.0), structures, sizes, gap

    def _compiled(
        self, plan: CompiledOracle, scores: Tensor, potentials: Tensor | None, first: Tensor, first_probs: Tensor
    ) -> Any:
        """Solve with a compiled oracle; NotImplemented on a device that has none."""
        links = scores.new_zeros(1, 1, plan.tags, plan.tags) if plan.links is None else plan.links
        start = (first, first_probs, self._extra(first, potentials))
        numbers = (plan.kind, min(plan.budget, scores.shape[-1]), plan.tags)
        if scores.is_cuda:
            from lit_sparse.kernels import cuda_active_set  # translates the functions of the other

            results = cuda_active_set.solve_batch(scores, *numbers, links, start, self.max_iter, self.tol)
        elif scores.is_cpu:
            arrays = (scores.contiguous().numpy(), *numbers, links.contiguous().numpy())
            results = [torch.from_numpy(array) for array in solve_batch(*arrays, _as_start(*start), self.max_iter, self.tol)]
        else:
            return NotImplemented
        return results if results is NotImplemented else (*results[:-1], results[-1].bool())

    def _extra(self, structures: Tensor, potentials: Tensor | None) -> Tensor:
        """Return what the potentials add to structures (b, n, D)."""
        if potentials is None or not structures.shape[1]:
            return structures.new_zeros(structures.shape[:2])
        return self.structure.potential_scores(structures, potentials)

    def _by_oracle(self, scores: Tensor, potentials: Tensor | None, first: Tensor, first_probs: Tensor) -> tuple[Tensor, ...]:
        """Solve with :meth:`Structure.maximize`; rows with NaN or +inf are left out and come back as NaN."""
        broken = ~(scores < torch.inf).all(-1)
        if potentials is not None:
            broken = broken | ~potentials.isfinite().flatten(1).all(-1)
        whole = (~broken).nonzero().squeeze(-1)

        def of_rows(index: Tensor) -> Tensor | None:
            return potentials if potentials is None or len(potentials) == 1 else potentials[index]

        def oracle(residual: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
            mine = of_rows(whole[index])
            found = _checked(self.structure, self.structure.maximize(residual, mine), residual)
            return found, self._extra(found.unsqueeze(1), mine).squeeze(1)

        start = (first[whole], first_probs[whole], self._extra(first[whole], of_rows(whole)))
        solver = _on_cpu if scores.is_cpu else solve_in_torch
        results = solver(scores[whole], oracle, *start, self.max_iter, self.tol)
        return results if len(whole) == len(scores) else _with_broken(results, whole, scores)


def _as_start(*tensors: Tensor) -> Start:
    return Start(*[tensor.contiguous().numpy() for tensor in tensors])


def _on_cpu(
    scores: Tensor, oracle: Oracle, first: Tensor, first_probs: Tensor, first_extra: Tensor, max_iter: int, tol: float
) -> tuple[Tensor, ...]:
    """Solve by :func:`~lit_sparse.kernels.active_set.solve_with_oracle`; arguments and results are tensors."""

    def wrapped(residual: Array, index: Array) -> tuple[Array, Array]:
        found, extra = oracle(torch.from_numpy(residual), torch.from_numpy(index))
        return found.numpy(), extra.numpy()

    start = _as_start(first, first_probs, first_extra)
    *results, done = solve_with_oracle(scores.contiguous().numpy(), wrapped, start, max_iter, tol)
    return (*[torch.from_numpy(array) for array in results], torch.from_numpy(done).bool())


def _with_broken(results: tuple[Tensor, ...], whole: Tensor, scores: Tensor) -> tuple[Tensor, ...]:
    """Return results for all rows of the scores, from those of the rows ``whole``; the others are NaN."""
    size, d = scores.shape
    places = max(results[1].shape[1], 1)
    probs = scores.new_zeros(size, places)
    probs[:, 0] = torch.nan
    blank = (
        scores.new_full((), torch.nan).where(scores != -torch.inf, 0.0),
        results[1].new_zeros(size, places, d),
        probs,
        torch.ones(size, dtype=torch.int64, device=scores.device),
        scores.new_full((size,), torch.nan),
        torch.ones(size, dtype=torch.bool, device=scores.device),
    )
    for every, some in zip(blank, results, strict=True):
        if some.dim() > 1 and some.shape[1] < every.shape[1]:
            some = torch.nn.functional.pad(some, (0,) * (2 * some.dim() - 3) + (every.shape[1] - some.shape[1],))
        every[whole] = some.to(every.dtype)
    return blank


def sparsemap(
    scores: Tensor,
    structure: Structure,
    *,
    potentials: Tensor | None = None,
    gamma: float = 1.0,
    mask: Tensor | None = None,
    max_iter: int = 100,
    tol: float = 1e-6,
    start: SparseMAPOutput | Tensor | None = None,
) -> SparseMAPOutput:
    """Return the sparse distribution over structures whose mean is nearest to the scores.

    With the structures a_s and what the potentials add to each, e_s, it solves
    ``max over probabilities xi of <mu, x> + <e, xi> - gamma / 2 ||mu||^2``, ``mu = sum of xi_s a_s``, by the active-set method:
    at most d + 1 structures have a probability above zero, and usually a handful. Differentiable in scores and potentials, to
    any order.

    Args:
        scores: (..., d) floating, one for each entry of a structure.
        structure: a set of structures; see :mod:`lit_sparse.structures`.
        potentials: further scores, for structures that have them, such as those of a tag after another in a ``Sequence``.
        gamma: strength of the regularizer, > 0. The smaller, the fewer structures.
        mask: boolean, broadcastable to ``scores``; True where an entry is allowed. No structure has a one elsewhere.
        max_iter: most structures that are looked for in a row; a warning tells when they were too few.
        tol: error of the marginals to reach, in Euclidean distance.
        start: where to start: an earlier result (a warm start) or one structure a row, (..., D); by default the best
            structure for the scores. The probabilities depend on it, the marginals do not.

    Returns:
        Marginals, probabilities and structures. NaN or +inf at an allowed entry makes its own row NaN and no other; a row with
        nothing allowed has the structure of zeros alone.

    Raises:
        ConfigurationError: if an argument is not as described, or an oracle returns what is no structure.

    Example:
        >>> import torch
        >>> from lit_sparse.structures import Budget
        >>> marginals, probs, structures = sparsemap(torch.tensor([0.9, 0.8, -1.0]), Budget(3, budget=1))
        >>> [round(p, 2) for p in marginals.tolist()], structures.tolist()
        ([0.55, 0.45, 0.0], [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    """
    problem = _Problem(check_structure(structure), start, check_count("max_iter", max_iter), check_positive("tol", tol), _warn)
    return _distribution(allowed_scores(scores, mask), problem, potentials, check_positive("gamma", gamma))  # type: ignore[no-any-return]


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=2)


@torch._dynamo.disable  # type: ignore[misc, untyped-decorator, unused-ignore]
def _distribution(x: Tensor, problem: _Problem, potentials: Tensor | None, gamma: float) -> SparseMAPOutput:
    """See :func:`sparsemap`; scores (..., d) with -inf where they are masked."""
    structure = problem.structure
    structure.check(x.shape[-1])
    wide = structure.widen(x)
    rows = wide.reshape(wide.shape[:-1].numel(), wide.shape[-1]).double() / gamma
    if potentials is not None:
        potentials = structure.arrange(potentials, rows.shape[-1]).double() / gamma
        if len(potentials) not in (1, len(rows)):
            raise ConfigurationError(
                f"Expected potentials for all {len(rows)} rows, or the same for each, but got them for {len(potentials)}."
            )
    marginals, probs, structures, _, gap = _Support.apply(rows, potentials, problem)  # type: ignore[no-untyped-call]
    batch, dtype = x.shape[:-1], x.dtype
    entries = structures.to(dtype).reshape(*batch, *structures.shape[1:])
    return SparseMAPOutput(
        structure.narrow(marginals.to(dtype).reshape(wide.shape)),
        probs.to(dtype).reshape(*batch, probs.shape[-1]),
        structure.narrow(entries),
        (gap * gamma).to(dtype).reshape(batch),
        entries,
    )


def _as_tensor(values: Tensor | Sequence[Any]) -> Tensor:
    """Return potentials as a floating tensor.

    Raises:
        ConfigurationError: if they are none.
    """
    try:
        tensor = values if isinstance(values, Tensor) else torch.tensor(values, dtype=torch.get_default_dtype())
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"Expected argument `potentials` to hold numbers but got {values!r}.") from error
    if not tensor.is_floating_point():
        raise ConfigurationError(f"Expected argument `potentials` to be floating but got {tensor.dtype}.")
    return tensor


def check_structure(structure: Any) -> Structure:
    """Return a structure.

    Raises:
        ConfigurationError: if it is none.
    """
    if isinstance(structure, Structure):
        return structure
    hint = f" Did you mean {structure.__name__}(...)?" if isinstance(structure, type) else ""
    raise ConfigurationError(f"Expected a structure, such as BitVector(32), but got {structure!r}.{hint}")


class SparseMAP(SparseMapping):
    """Marginals of a sparse distribution over structures, as a layer: the nearest point of their convex hull.

    Args:
        structure: a set of structures; see :mod:`lit_sparse.structures`.
        potentials: further scores for structures that have them, a tensor or nested lists; see the structure.
        learn_potentials: make the potentials a parameter, which starts from ``potentials`` or zeros.
        gamma: strength of the regularizer, > 0.
        dim: dimension along which to map.
        max_iter: most structures that are looked for in a row; one warning tells when they were too few.
        tol: error of the marginals to reach, in Euclidean distance.

    Raises:
        ConfigurationError: if an argument is not as described.

    Source: Niculae, Martins, Blondel & Cardie (2018), SparseMAP: Differentiable Sparse Structured Inference.

    Example:
        >>> import torch
        >>> from lit_sparse.structures import Assignment
        >>> scores = torch.tensor([[1.2, 1.0], [0.9, 0.1]])  # two queries, two keys
        >>> weights = SparseMAP(Assignment())(scores.flatten()).reshape(2, 2)  # rows and columns sum to one
        >>> [[round(w, 2) for w in row] for row in weights.tolist()]
        [[0.35, 0.65], [0.65, 0.35]]
    """

    on_simplex = False
    shift_invariant = False
    iterative = True

    potentials: Tensor | None

    def __init__(
        self,
        structure: Structure,
        *,
        potentials: Tensor | Sequence[Any] | None = None,
        learn_potentials: bool = False,
        gamma: float = 1.0,
        dim: int = -1,
        max_iter: int = 100,
        tol: float = 1e-6,
    ) -> None:
        super().__init__(gamma=gamma, dim=dim)
        self.structure = check_structure(structure)
        self.ordered = structure.ordered
        self.learn_potentials = learn_potentials
        self.max_iter = check_count("max_iter", max_iter)
        self.tol = check_positive("tol", tol)
        self._warned = False
        values = None if potentials is None else structure.check_potentials(_as_tensor(potentials))
        if learn_potentials:
            initial = structure.initial_potentials() if values is None else values.detach().clone()
            self.potentials = torch.nn.Parameter(initial)
        else:
            self.register_buffer("potentials", values, persistent=False)

    @classmethod
    def examples(cls) -> list[Self]:
        """Return one for each structure that the package has, and for each strength."""
        known: list[Structure] = [example for kind in _derived(Structure) for example in kind.examples()]
        links = torch.tensor([[0.3, -0.2], [0.0, 0.4]], dtype=torch.float64)
        chain = next(example for example in known if example.has_potentials)
        return [cls(example) for example in known] + [cls(Budget(None, 2), gamma=0.5), cls(chain, potentials=links)]

    def map(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        """Return the marginals; see :func:`sparsemap`."""
        x = allowed_scores(scores, mask).movedim(dim, -1)
        self.structure.check(x.shape[-1])
        if x.is_meta or x.numel() == 0:
            return torch.zeros_like(x).movedim(-1, dim)
        return self._marginals(x).movedim(-1, dim)

    @property
    def couples_queries(self) -> bool:
        """Whether the structure spans all queries of attention."""
        return self.structure.couples_queries

    def map_block(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map scores of attention (..., queries, keys), all of them together where the structure couples the queries."""
        x = allowed_scores(scores, mask)
        block = self.structure.of_block(*x.shape[-2:]) if x.dim() > 1 else None
        if block is None or x.is_meta or x.numel() == 0:
            return super().map_block(scores, mask)
        return self.solve(x.flatten(-2), structure=block).marginals.reshape(x.shape)

    def _marginals(self, x: Tensor) -> Tensor:
        allowed = x != -torch.inf
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        point = self.structure.project(torch.where(allowed, wide, 0.0) / self.gamma) if self.potentials is None else None
        if point is None:
            return self.solve(x).marginals
        broken = ~(x < torch.inf).all(-1, keepdim=True) & allowed
        return torch.where(broken, torch.nan, torch.where(allowed, point, 0.0)).to(x.dtype)

    def solve(
        self,
        scores: Tensor,
        mask: Tensor | None = None,
        *,
        structure: Structure | None = None,
        start: SparseMAPOutput | Tensor | None = None,
    ) -> SparseMAPOutput:
        """Return the distribution over structures along the last dimension; see :func:`sparsemap`.

        Args:
            scores: (..., d).
            mask: boolean, broadcastable to ``scores``; True where an entry is allowed.
            structure: in place of the layer's own.
            start: where to start.
        """
        problem = _Problem(structure or self.structure, start, self.max_iter, self.tol, self._warn_once)
        return _distribution(allowed_scores(scores, mask), problem, self.potentials, self.gamma)  # type: ignore[no-any-return]

    def _warn_once(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            _warn(text)

    def regularizer(self, y: Tensor, dim: int = -1, allowed: Tensor | None = None) -> Tensor:
        """Return half the squared norm of y, with the entries that the structure does not show.

        Raises:
            ConfigurationError: if there are potentials: Omega depends on more than y then.
        """
        if self.potentials is not None:
            raise ConfigurationError("Expected no potentials: with them Omega depends on the structures, not on y alone.")
        y = y.movedim(dim, -1)
        allowed = torch.ones_like(y, dtype=torch.bool) if allowed is None else allowed.movedim(dim, -1)
        return 0.5 * self.structure.squared_norm(y, allowed)

    def value_along(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        """Return the maximum along ``dim``; its gradient is the marginals, and in the potentials the expected counts."""
        if self.potentials is None:
            return super().value_along(scores, mask, dim)
        given = allowed_scores(scores, mask).movedim(dim, -1)
        x = given.double()  # autocast leaves it alone
        if x.shape[-1] == 0:
            return given.sum(-1).fill_(-torch.inf)
        out = self.solve(x)
        links = self.structure.arrange(self.potentials, out.entries.shape[-1]).double()
        entries = out.entries.reshape(-1, *out.entries.shape[-2:])
        probs = out.probs.reshape(entries.shape[:2])
        counts = potential_counts(self.structure, entries, links.detach().expand(len(entries), *links.shape[1:]), probs)
        gain = (counts * links).detach().flatten(1).sum(-1).reshape(x.shape[:-1])
        point = out.marginals
        whole = torch.einsum("...s,...sd->...d", out.probs, out.entries).detach()
        inner = torch.where(point != 0, point * x, 0.0).sum(-1).detach()
        maximum = inner + gain - 0.5 * self.gamma * whole.square().sum(-1)
        maximum = torch.where((x != -torch.inf).any(-1), maximum, -torch.inf)
        slope = with_slope(links.expand_as(counts), counts).flatten(1).sum(-1).reshape(x.shape[:-1])
        return (envelope(x, point, maximum, -1) + slope).to(given.dtype)

    def loss(self, scores: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the SparseMAP loss: the Fenchel-Young loss of this mapping for structures as targets.

        Not negative, and zero where the target is the whole distribution. Its gradient is the marginals less the target, and
        in the potentials the expected counts less the target's.

        Args:
            scores: (..., d).
            target: (..., D) of {0, 1}, one structure a row with all its entries.
            mask: boolean, broadcastable to ``scores``; True where an entry is allowed.

        Returns:
            Tensor (...): inf where the target has a one at a forbidden entry.

        Raises:
            ConfigurationError: if the target does not hold structures of that shape.
        """
        x = allowed_scores(scores, mask)
        wide = self.structure.widen(x.detach())
        if not isinstance(target, Tensor) or target.shape != wide.shape:
            shape = tuple(target.shape) if isinstance(target, Tensor) else full_name(target)
            raise ConfigurationError(f"Expected structures of shape {tuple(wide.shape)} as target but got {shape}.")
        target = target.to(x.dtype)
        whole = self.structure.fits(target, torch.ones_like(target, dtype=torch.bool)) | self.structure.fits(
            target, wide > -torch.inf
        )
        if not bool((whole & ((target == 0) | (target == 1)).all(-1)).all()):
            raise ConfigurationError(f"Expected structures of {self.structure!r} as target, but some are none.")
        total = torch.where(self.structure.narrow(target) > 0, x, 0.0).sum(-1) - 0.5 * self.gamma * target.square().sum(-1)
        if self.potentials is not None:
            links = self.structure.arrange(self.potentials, target.shape[-1]).to(x.dtype)
            single = target.reshape(-1, 1, target.shape[-1])
            total = total + self.structure.potential_scores(single, links).reshape(total.shape)
        return self.value_along(scores, mask, -1) - total


def _derived(kind: Any) -> list[type[Structure]]:
    """Return the classes of this package that derive from a class, in the order of their names."""
    found = [sub for child in kind.__subclasses__() for sub in (child, *_derived(child))]
    return sorted({sub for sub in found if sub.__module__.startswith("lit_sparse.")}, key=lambda sub: sub.__name__)
