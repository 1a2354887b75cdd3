"""Time the package lp-sparsemap on problems of ``benchmark_factor_graphs.py``, and compare its marginals with ours.

Usage:
    python scripts/benchmark_factor_graphs.py --problems problems.json
    PYTHON scripts/time_lp_sparsemap.py problems.json [--tol 1e-6]

PYTHON has numpy and lp-sparsemap 1.0, whose wheels are for Python 3.8 and 3.9. Neither torch nor lit_sparse is needed there.
Times are processor times of one thread, without the construction of the graphs. Prints a markdown table.
"""

import argparse
import json
import statistics
import time
import warnings
from pathlib import Path

import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it warns that torch is not installed
    from lpsmap.ad3qp.factor_graph import PFactorGraph


def graph_of(problem, row, tol, max_iter):
    """Return the factor graph of a row of a problem."""
    graph = PFactorGraph()
    variables = [graph.create_binary_variable() for _ in problem["scores"][row]]
    potentials = iter(problem["potentials"][row])
    links = []
    for kind, members, negated, budget in problem["factors"]:
        chosen, flips = [variables[i] for i in members], [place in negated for place in range(len(members))]
        if kind == "Pair":
            links.append(next(potentials))
            graph.create_factor_pair(chosen, links[-1])
        elif kind == "Budget":
            graph.create_factor_budget(chosen, budget, flips)
        else:
            graph.create_factor_logic(kind.upper(), chosen, flips)
    graph.set_log_potentials(np.array(problem["scores"][row]))
    graph.set_residual_threshold_ad3(tol)
    graph.set_max_iterations_ad3(max_iter)
    graph.set_eta_ad3(0.1)
    graph.adapt_eta_ad3(True)
    graph.set_verbosity(0)
    return graph


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems")
    parser.add_argument("--tol", type=float, default=1e-6, help="of both residuals; the package's default")
    parser.add_argument("--max_iter", type=int, default=1000, help="steps of ADMM; the package's default")
    options = parser.parse_args()
    print("| graph | batch | ms a problem, median | mean | with backward, mean | largest difference of marginals |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for problem in json.loads(Path(options.problems).read_text()):
        forward, both, differences = [], [], []
        for row, expected in enumerate(problem["marginals"]):
            graph = graph_of(problem, row, options.tol, options.max_iter)
            begin = time.process_time()
            _, found, _, _ = graph.solve_qp_ad3()
            forward.append(1e3 * (time.process_time() - begin))
            differences.append(np.abs(np.array(found) - expected).max())
            graph.jacobian_vec(2 * np.array(found), np.empty(len(expected)))
            both.append(1e3 * (time.process_time() - begin))
        numbers = [statistics.median(forward), statistics.mean(forward), statistics.mean(both)]
        shown = " | ".join(f"{number:.2f}" for number in numbers)
        print(f"| {problem['name']} | {len(forward)} | {shown} | {max(differences):.0e} |")


if __name__ == "__main__":
    main()
