"""
Align two sequences with SparseMAP
==================================

An alignment gives each row one column and each column one row. SparseMAP over
alignments maps scores to a weighted mean of a few of them: a sparse, doubly
stochastic matrix that gradients flow through. Softmax of each row lets several
rows choose the same column.
"""

import matplotlib.pyplot as plt
import torch

from lit_sparse.mappings import SparseMAP, Sparsemax
from lit_sparse.structures import Assignment

torch.manual_seed(0)

# %%
# Scores of eight points in the plane and noisy copies of them, in another
# order.
points = torch.randn(8, 2)
order = torch.randperm(8)
copies = points[order] + 0.25 * torch.randn(8, 2)
scores = -torch.cdist(points, copies).square()

# %%
# ``Assignment`` is the set of alignments. The layer takes the scores of all
# pairs as one vector.
layer = SparseMAP(Assignment(8, 8))
found = {
    "softmax": scores.softmax(-1),
    "sparsemax": Sparsemax()(scores),
    "SparseMAP": layer(scores.flatten()).view(8, 8),
}
for name, weights in found.items():
    columns = weights.sum(0)
    count, low, high = int((weights > 0).sum()), columns.min(), columns.max()
    print(f"{name}: {count} weights, columns sum to {low:.2f} .. {high:.2f}")

# %%
# Crosses are exact zeros. Only SparseMAP gives the columns the same total
# weight as the rows.
figure, axes = plt.subplots(1, 3, figsize=(9, 3.2), layout="constrained")
for axis, (name, weights) in zip(axes, found.items(), strict=True):
    image = axis.imshow(weights, cmap="Blues", vmin=0, vmax=1)
    rows, columns = (weights == 0).nonzero(as_tuple=True)
    axis.plot(columns, rows, "x", color="0.8", markersize=4)
    axis.plot(
        order.argsort(),
        range(8),
        "o",
        markerfacecolor="none",
        color="tab:orange",
        markersize=13,
    )
    axis.set(title=name, xlabel="copy", xticks=[], yticks=[])
axes[0].set_ylabel("point")
figure.colorbar(image, ax=axes, label="weight (a ring is the true copy)")
plt.show()
