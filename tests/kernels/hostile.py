"""Hostile rows through every compiled kernel; run as a script, with bounds checks and an empty cache.

Prints how many rows each kernel has seen.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from torch import Tensor

from lit_sparse.kernels.budget_sparsemax import budget_product, map_budget
from lit_sparse.kernels.groups import group_product
from lit_sparse.kernels.kbest import best_bits
from lit_sparse.kernels.simplex import center_on_support, project_simplex
from lit_sparse.mappings import functional as F
from lit_sparse.mappings.capped_softmax.kernel import capped_product, map_capped
from lit_sparse.mappings.entmax.kernel import entmax_product, map_entmax
from lit_sparse.mappings.fusedmax.kernel import map_fused
from lit_sparse.mappings.hard_threshold.kernel import threshold_hard
from lit_sparse.mappings.hoyer.backward import hoyer_product
from lit_sparse.mappings.hoyer.kernel import project_hoyer
from lit_sparse.mappings.norm_max.kernel import map_norm, norm_product
from lit_sparse.mappings.oscarmax.kernel import map_oscar
from lit_sparse.mappings.soft_sort.kernel import rank_product, rank_softly, sort_product, sort_softly
from lit_sparse.mappings.sq_pnorm_max.kernel import map_pnorm, pnorm_product
from lit_sparse.nn.categorical import log_likelihood
from lit_sparse.structures import Assignment, BitVector, Budget, Sequence, Structure, Tree
from lit_sparse.structures.assignment import best_assignments
from lit_sparse.structures.tree import best_trees

ROWS, EXAMPLES = 64, 330
HOSTILE = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1e-45, -1e-45, 3e38, -3e38, 1.0, 1.0, 1e4, 1e-6]
LENGTHS = [1, 2, 3, 7, 16, 31, 33, 64, 65, 130, 300]
seen: Counter[str] = Counter()


@st.composite
def scores(draw: st.DrawFn) -> Tensor:
    """Draw (ROWS, d) scores of any scale, with ties, forbidden entries, NaN, infinities and tiny numbers."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    d = draw(st.sampled_from(LENGTHS))
    x = rng.standard_normal((ROWS, d)) * 10.0 ** draw(st.integers(-6, 7))
    kind = draw(st.sampled_from(["plain", "plain", "rounded", "shifted", "walk", "steps"]))
    if kind == "rounded":
        x = x.round()
    elif kind == "shifted":
        x = x + 1e6
    elif kind == "walk":
        x = x.cumsum(-1)
    elif kind == "steps":
        x = np.repeat(x, 5, -1)[:, :d]
    invalid = rng.random((ROWS, d)) < draw(st.sampled_from([0.0, 0.02, 0.5]))
    x = np.where(invalid, rng.choice(HOSTILE, (ROWS, d)), x)
    return torch.from_numpy(x)


def numbers(*values: float) -> st.SearchStrategy[float]:
    """Draw one of some numbers."""
    return st.sampled_from(values)


GAMMAS = numbers(1e-6, 0.1, 1.0, 1e6)


def check_point(x: Tensor, y: Tensor, on_simplex: bool, what: tuple[Any, ...]) -> None:
    """Check what every result must be: on the simplex, NaN in its own row, zero where nothing is allowed."""
    bad = (x.isnan() | (x == torch.inf)).any(-1)
    some = (x > -torch.inf).any(-1) & ~bad
    assert y.shape == x.shape
    assert bool(y[bad].isnan().any(-1).all()), what
    assert bool((y[~bad & ~some] == 0).all()), what
    assert bool((y[x == -torch.inf] == 0).all()), what
    assert bool(y[~bad].isfinite().all()), (what, x[~y.isfinite().all(-1) & ~bad][:1].tolist())
    if on_simplex:
        assert bool((y[~bad] >= 0).all()), what
        assert bool(((y[some].double().sum(-1) - 1).abs() <= 1e-5).all()), (what, (y[some].double().sum(-1) - 1).abs().max())


def fuzz(name: str, body: Callable[..., None], **strategies: st.SearchStrategy[Any]) -> None:
    """Run a body on drawn arguments, in both float types."""

    @seed(0)
    @settings(max_examples=EXAMPLES, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(x=scores(), **strategies)
    def run(x: Tensor, **arguments: Any) -> None:
        seen[name] += len(x)
        for dtype in (torch.float32, torch.float64):
            body(x.to(dtype), **arguments)

    run()


def simplex(x: Tensor, gamma: float, k: int) -> None:
    y = project_simplex(x, gamma, k)
    check_point(x, y, True, ("simplex", gamma, k))
    assert center_on_support(x, y, gamma).shape == y.shape


def entmax(x: Tensor, gamma: float, alpha: float) -> None:
    y = map_entmax(x, alpha, gamma)
    check_point(x, y, True, ("entmax", gamma, alpha))
    assert entmax_product(x, y, alpha, gamma).shape == y.shape
    column = torch.linspace(-0.1, 3.0, len(x), dtype=torch.float64).unsqueeze(-1)
    assert map_entmax(x, column, gamma).shape == y.shape


def pnorm(x: Tensor, gamma: float, p: float) -> None:
    y = map_pnorm(x, p, gamma)
    check_point(x, y, True, ("pnorm", gamma, p))
    assert pnorm_product(x, y, p, gamma).shape == y.shape


def norm(x: Tensor, gamma: float, alpha: float) -> None:
    y = map_norm(x, alpha, gamma)
    check_point(x, y, True, ("norm", gamma, alpha))
    assert norm_product(x, y, alpha, gamma).shape == y.shape
    column = torch.linspace(0.9, 3.0, len(x), dtype=torch.float64).unsqueeze(-1)
    assert map_norm(x, column, gamma).shape == y.shape


def budget(x: Tensor, gamma: float, k: float) -> None:
    y, labels = map_budget(x, k, gamma)
    check_point(x, y, False, ("budget", gamma, k))
    whole = y[~y.isnan().any(-1)].double()
    assert bool(((whole >= 0) & (whole <= 1)).all()), ("budget", gamma, k)
    assert bool((whole.sum(-1) <= k * (1 + 1e-6)).all()), ("budget", gamma, k)
    assert budget_product(x, y, labels, gamma).shape == y.shape


def soft_order(x: Tensor, strength: float, entropic: bool) -> None:
    y, labels = rank_softly(x, strength, entropic)
    check_point(x, y, False, ("rank", strength, entropic))
    sizes = (x > -torch.inf).sum(-1)
    sums, right = y.double().sum(-1), sizes * (sizes + 1) / 2
    assert bool((sums.isnan() | ((sums - right).abs() <= 1e-5 * right)).all()), ("rank", strength, entropic)
    assert bool((labels < x.shape[-1]).all())
    assert rank_product(x, y, labels, strength, entropic).shape == y.shape
    y, order, labels = sort_softly(x, strength, entropic)
    check_point(x, y, False, ("sort", strength, entropic))
    assert bool(((order < x.shape[-1]) & (labels < x.shape[-1])).all())
    assert sort_product(x, x, order, labels, entropic).shape == y.shape


def capped(x: Tensor, gamma: float, rho: float) -> None:
    y = map_capped(x, rho, gamma)
    check_point(x, y, True, ("capped", gamma, rho))
    assert capped_product(x, y, x, rho, gamma).shape == y.shape


def fused(x: Tensor, gamma: float, lam: float) -> None:
    y, labels = map_fused(x, lam, gamma)
    check_point(x, y, True, ("fused", gamma, lam))
    assert bool((labels < 8 * x.shape[-1]).all())
    assert group_product(x, y, labels, gamma, False).shape == y.shape


def oscar(x: Tensor, gamma: float, lam: float, exact: bool) -> None:
    y, labels = map_oscar(x, lam, gamma, exact)
    check_point(x, y, True, ("oscar", gamma, lam, exact))
    assert bool((labels < 8 * x.shape[-1]).all())
    assert group_product(x, y, labels, gamma, not exact).shape == y.shape


def hoyer(x: Tensor, sparseness: float, nonneg: bool) -> None:
    y = project_hoyer(x, sparseness, 1.0, nonneg)
    check_point(x, y, False, ("hoyer", sparseness, nonneg))
    ordinary = (x > -torch.inf).any(-1) & ~(x.isnan() | (x == torch.inf)).any(-1)
    norms = y[ordinary].double().norm(dim=-1)
    wrong = (norms - 1).abs() > 1e-3  # 1e4 together with -3e38 leaves float32 few digits
    assert not bool(wrong.any()), ("hoyer", sparseness, nonneg, norms[wrong][0], x[ordinary][wrong][0].tolist())
    assert hoyer_product(x, y, x, nonneg).shape == y.shape


def hard(x: Tensor, k: int, nonneg: bool) -> None:
    y, chosen = threshold_hard(x, k, nonneg)
    check_point(x, y, False, ("hard", k, nonneg))
    assert bool(((y != 0) <= (chosen != 0)).all())
    assert bool(((chosen != 0).sum(-1)[~y.isnan().any(-1) & ~x.isnan().any(-1) & (x < torch.inf).all(-1)] <= k).all())


def active_set(x: Tensor, gamma: float, structure: Structure, linked: bool) -> None:
    x = x[:, : 3 * max(1, min(x.shape[-1], 66) // 3)]
    if x.shape[-1] % 3:
        return
    links = None
    if linked and structure.has_potentials:
        links = torch.linspace(-3.0, 3.0, 9, dtype=x.dtype).reshape(3, 3) if structure.tags == 3 else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of too few iterations
        out = F.sparsemap(x, structure, gamma=gamma, potentials=links, max_iter=60)
    check_point(x, out.marginals, False, ("active_set", gamma, structure))
    good = ~(x.isnan() | (x == torch.inf)).any(-1)
    probs = out.probs[good].double()
    assert bool((probs >= 0).all()), ("active_set", gamma, structure)
    assert bool(((probs.sum(-1) - 1).abs() < 1e-5).all()), (
        "active_set",
        gamma,
        structure,
        x[good][(probs.sum(-1) - 1).abs() > 1e-5],
    )
    assert bool((out.marginals[good] <= 1 + 1e-5).all()), ("active_set", gamma, structure)
    assert bool(structure.validate(out.structures).all()), ("active_set", gamma, structure)


def bits(x: Tensor, k: int) -> None:
    found, counts = best_bits(x, k)
    broken, forbidden = (x.isnan() | (x == torch.inf)).any(-1), x == -torch.inf
    assert bool((counts[broken] == 1).all())
    assert torch.equal(found[:, 0].isnan(), broken.unsqueeze(-1) & ~forbidden)
    whole = found[~broken]
    assert bool(((whole == 0) | (whole == 1)).all()), ("bits", k)
    assert not bool((whole.sum(1) > 0)[forbidden[~broken]].any()), ("bits", k)
    assert torch.equal(whole[:, 0] > 0, x[~broken] > 0)
    allowed = (~forbidden).sum(-1)[~broken].clamp_max(30)
    assert torch.equal(counts[~broken], (2**allowed).clamp_max(k)), ("bits", k)


def categorical(x: Tensor, width: int, values: int) -> None:
    width = min(width, x.shape[-1])
    h = x[:, : x.shape[-1] // width * width].reshape(len(x), -1, width)
    layer = x.flatten().repeat(values).nan_to_num(0.0, 1e4, -1e30)
    weight, bias = layer[: values * width].reshape(values, width), layer[:values]
    chosen = torch.arange(h.shape[0] * h.shape[1]).reshape(h.shape[:2]) % values
    for slopes in (False, True):
        likelihood = log_likelihood(h, weight, bias, chosen, slopes=slopes).values
        assert bool((likelihood.isnan() | (likelihood <= 1e-3)).all()), ("categorical", width, values)
        assert bool(likelihood.isnan()[(h.isnan() | (h == torch.inf)).any(-1).any(-1)].all()), ("categorical", width, values)


def trees(x: Tensor, single_root: bool) -> None:
    nodes = min(int(x.shape[-1] ** 0.5), 17)
    x = x[:, : nodes * nodes].double().nan_to_num(0.0, 1e6, -np.inf)
    chosen, found = best_trees(x.reshape(-1, nodes, nodes).numpy(), single_root)
    whole = torch.from_numpy(found) > 0
    assert bool(whole[(x > -np.inf).all(-1)].all()), ("trees", single_root)
    structure = Tree(nodes, single_root)
    heads = torch.from_numpy(chosen).flatten(1).double()[whole]
    assert bool(structure.fits(heads, x[whole] > -np.inf).all()), ("trees", single_root)


def assignments(x: Tensor, rows: int) -> None:
    columns = min(x.shape[-1] // rows, 40)
    x = x[:, : rows * columns].double().nan_to_num(0.0, 1e6, -np.inf)
    chosen, found = best_assignments(x.reshape(ROWS, rows, columns).numpy())
    whole = torch.from_numpy(found) > 0
    assert columns < rows or bool(whole[(x > -np.inf).all(-1)].all()), ("assignments", rows)
    if columns >= rows:
        fits = Assignment(rows, columns).fits(torch.from_numpy(chosen).flatten(1).double()[whole], x[whole] > -np.inf)
        assert bool(fits.all()), ("assignments", rows)


def main() -> None:
    """Fuzz all kernels."""
    fuzz("simplex", simplex, gamma=GAMMAS, k=st.sampled_from([0, 1, 3, 70]))
    fuzz("entmax", entmax, gamma=GAMMAS, alpha=numbers(0.01, 0.5, 1.0, 1.0000001, 1.25, 1.5, 2.0, 3.0, 50.0))
    fuzz("pnorm", pnorm, gamma=GAMMAS, p=numbers(1.001, 1.2, 1.5, 1.9, 2.0))
    fuzz("norm", norm, gamma=GAMMAS, alpha=numbers(1.001, 1.5, 2.0, 3.0, 50.0, 1000.0))
    fuzz("budget", budget, gamma=GAMMAS, k=numbers(0.0, 1e-9, 1.0, 2.5, 70.0))
    fuzz("soft order", soft_order, strength=GAMMAS, entropic=st.booleans())
    fuzz("capped", capped, gamma=GAMMAS, rho=numbers(1e-6, 0.1, 0.5, 0.999))
    fuzz("fused", fused, gamma=GAMMAS, lam=numbers(0.0, 1e-9, 0.1, 2.0, 1e6))
    fuzz("oscar", oscar, gamma=GAMMAS, lam=numbers(0.0, 1e-9, 0.01, 2.0, 1e6), exact=st.booleans())
    fuzz("hoyer", hoyer, sparseness=numbers(0.0, 1e-6, 0.3, 0.75, 0.99, 1.0), nonneg=st.booleans())
    fuzz("hard", hard, k=st.sampled_from([1, 2, 30, 1000]), nonneg=st.booleans())
    structures = [BitVector(), Budget(None, 0), Budget(None, 5), Sequence(tags=3), Sequence(tags=1)]
    fuzz("active_set", active_set, gamma=GAMMAS, structure=st.sampled_from(structures), linked=st.booleans())
    fuzz("bits", bits, k=st.sampled_from([1, 2, 10, 70]))
    fuzz("categorical", categorical, width=st.sampled_from([1, 2, 5]), values=st.sampled_from([1, 2, 33]))
    fuzz("trees", trees, single_root=st.booleans())
    fuzz("assignments", assignments, rows=st.sampled_from([1, 2, 5, 9]))
    for name, rows in seen.items():
        assert rows >= 20_000, (name, rows)
        print(name, rows)


if __name__ == "__main__":
    main()
