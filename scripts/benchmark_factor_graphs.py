"""Time LP-SparseMAP: milliseconds a problem by graph and batch, its steps, and its accuracy.

Usage:
    python scripts/benchmark_factor_graphs.py [--threads 1] [--rounds 9] [--quick] [--problems FILE]

Scores and potentials are drawn from N(0, 1). Times are medians over rounds in which all cases take turns; with one thread, of
the processor, which other processes do not lengthen. Prints a markdown table. ``--problems`` writes the problems of pairs,
budgets and logic with their marginals to a JSON file, for ``scripts/time_lp_sparsemap.py``.
"""

from __future__ import annotations

from timing import medians  # isort: skip

import argparse
import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lit_sparse.mappings import LPSparseMAPOutput
from lit_sparse.mappings import functional as F
from lit_sparse.structures import Budget, Factor, FactorGraph, Or, Pair, Sequence, Tree, Xor

#: Structures of the problems that are written.
SIMPLE = (Pair, Budget, Xor, Or)


class Case(NamedTuple):
    """A graph, its number of variables, and the batch."""

    name: str
    graph: FactorGraph
    d: int
    batch: int


def cases(quick: bool) -> list[Case]:
    """Return the graphs: the first belongs to the documentation's claim."""
    chain = FactorGraph(None, [Factor(Pair(), "neighbours"), Factor(Budget(None, 10))])
    agree = [[row * 10 + column, (row + 1) * 10 + column + 1] for row in range(9) for column in range(9)]
    rows = [[row * 10 + column for column in range(10)] for row in range(10)]
    columns = [[row * 10 + column for row in range(10)] for column in range(10)]
    alignment = FactorGraph(100, [Factor(Xor(), rows), Factor(Budget(None, 1), columns), Factor(Pair(), agree)])
    clauses = [[(7 * i + 3 * j) % 50 for j in range(3)] for i in range(50)]
    logic = FactorGraph(50, [Factor(Or(), clauses, [1]), Factor(Budget(None, 10))])
    heads = [[node * 10 + head for node in range(10)] for head in range(10)]
    tree = FactorGraph(100, [Factor(Tree(10)), Factor(Budget(None, 2), heads)])
    tags = FactorGraph(60, [Factor(Sequence(tags=3)), Factor(Budget(None, 4), list(range(0, 60, 3)))])
    every = [
        Case("chain of 50 pairs, budget of 10", chain, 50, 64),
        Case("the same, one problem", chain, 50, 1),
        Case("50 clauses of 3, budget of 10", logic, 50, 64),
        Case("alignment 10 x 10, diagonal pairs", alignment, 100, 64),
        Case("20 tags of 3, budget of the first tag", tags, 60, 64),
        Case("tree of 10 words, budget of modifiers", tree, 100, 64),
    ]
    return every[:1] if quick else every


def problems_of(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scores and potentials."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(case.batch, case.d, generator=generator)
    return x, torch.randn(case.batch, case.graph.potential_counts(case.d)[0], generator=generator)


def described(case: Case) -> dict[str, Any]:
    """Return the factors by name and variables, the problems, and their marginals."""
    x, potentials = problems_of(case)
    factors = [
        [type(factor.structure).__name__, list(group), list(factor.negated), getattr(factor.structure, "budget", None)]
        for factor in case.graph.factors
        for group in factor.groups(case.d)
    ]
    marginals = F.lp_sparsemap(x.double(), case.graph, potentials=potentials.double()).marginals
    found = {"scores": x, "potentials": potentials, "marginals": marginals}
    return {"name": case.name, "factors": factors, **{name: value.tolist() for name, value in found.items()}}


def call_of(case: Case, backward: bool) -> Callable[[], object]:
    """Return a call of the mapping, or of the mapping and its gradient."""
    x, potentials = problems_of(case)
    x = x.requires_grad_(backward)

    def call() -> object:
        out = F.lp_sparsemap(x, case.graph, potentials=potentials)
        return torch.autograd.grad(out.marginals.square().sum(), x) if backward else out

    return call


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="the first case alone")
    parser.add_argument("--problems", type=Path, help="write the problems to a file, and time nothing")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    threads = f"{options.threads} thread{'s' * (options.threads > 1)}"
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}, {threads}\n")
    every = cases(options.quick)
    if options.problems:
        simple = [case for case in every if all(factor.structure.__class__ in SIMPLE for factor in case.graph.factors)]
        options.problems.write_text(json.dumps([described(case) for case in simple]))
        return
    calls = {f"{backward} {case.name}": call_of(case, backward) for case in every for backward in (False, True)}
    for call in calls.values():
        call()  # compiles
    times = medians(calls, options.rounds)
    print("| graph | batch | ms a problem | with backward | largest residual | largest gap |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for case in every:
        names = [f"{backward} {case.name}" for backward in (False, True)]
        numbers = " | ".join(f"{1e3 * times[name] / case.batch:.2f}" for name in names)
        out = calls[names[0]]()
        assert isinstance(out, LPSparseMAPOutput)
        print(f"| {case.name} | {case.batch} | {numbers} | {float(out.residual.max()):.0e} | {float(out.gap.max()):.0e} |")


if __name__ == "__main__":
    main()
