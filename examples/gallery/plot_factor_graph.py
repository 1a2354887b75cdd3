"""
Choose regions with a factor graph
==================================

LP-SparseMAP maps scores of binary variables to sparse marginals that obey
rules: here, at most a third of the positions may be chosen, and neighbours
should agree. The answer is contiguous, and most marginals are exactly 0 or 1.
"""

import matplotlib.pyplot as plt
import torch

from lit_sparse.mappings import LPSparseMAP
from lit_sparse.structures import Budget, Factor, FactorGraph, Pair

torch.manual_seed(0)

# %%
# Noisy scores of 60 positions, of which two regions matter.
truth = torch.zeros(60)
truth[12:20] = truth[38:50] = 1
scores = 2 * truth - 1 + torch.randn(60)

# %%
# A pair of neighbours that are both chosen gets an additional score, the
# potential.
graph = FactorGraph(
    None, [Factor(Pair(), "neighbours"), Factor(Budget(None, 20))]
)
found = {
    "threshold at 0": (scores > 0).float(),
    "budget alone": LPSparseMAP(FactorGraph(None, [Factor(Budget(None, 20))]))(
        scores
    ),
    "budget and pairs": LPSparseMAP(graph, potentials=[1.5])(scores),
}
for name, marginals in found.items():
    wrong = (marginals - truth).abs().mean()
    between = ((marginals > 0) & (marginals < 1)).sum()
    print(
        f"{name}: error {wrong:.3f}, {int(between)} marginals between 0 and 1"
    )

# %%
# Shaded positions are the true regions.
figure, axes = plt.subplots(
    4, 1, figsize=(8, 6), sharex=True, layout="constrained"
)
axes[0].bar(range(60), scores, color="0.5")
axes[0].set_title("scores")
for axis, (name, marginals) in zip(axes[1:], found.items(), strict=True):
    axis.bar(range(60), marginals)
    axis.set(title=name, ylim=(0, 1.05))
for axis in axes:
    axis.fill_between(
        range(60),
        *axis.get_ylim(),
        where=truth > 0,
        color="tab:orange",
        alpha=0.15,
        step="mid",
    )
axes[-1].set_xlabel("position")
plt.show()
