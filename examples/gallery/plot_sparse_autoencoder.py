"""
Sparse auto-encoders at equal sparsity
======================================

A dictionary of 128 units explains each vector with a few units. The mapping
decides which: the largest k of each vector, the largest of a batch, or a
sparse projection. Here the vectors are sums of a few of 100 true directions,
so that a good dictionary exists.
"""

import matplotlib.pyplot as plt
import torch

from lit_sparse.mappings import BatchTopK, HardThreshold, HoyerProjection
from lit_sparse.models import SparseAutoencoder

torch.manual_seed(0)
directions = torch.nn.functional.normalize(torch.randn(100, 32), dim=1)


def vectors(number):
    """Return sums (N, 32) of about five directions with positive weights."""
    active = torch.rand(number, 100) < 0.05
    return (active * torch.rand(number, 100)) @ directions


# %%
# Models are plain modules, too: this loop needs no trainer.
def train(mapping):
    torch.manual_seed(0)
    model = SparseAutoencoder(mapping, in_features=32, width=128)
    model.start_from(vectors(1000))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for step in range(600):
        rows = vectors(256)
        optimizer.zero_grad()
        model.run_step(
            {"features": rows, "index": torch.arange(256)}, step, "train"
        )["loss"].backward()
        optimizer.step()
    new = vectors(2000)
    with torch.no_grad():
        codes = model.eval().encode(new)
        error = (model.decode(codes) - new).square().sum() / (
            new - new.mean(0)
        ).square().sum()
    return float((codes != 0).float().sum(1).mean()), 1 - float(error)


fronts = {
    "largest k of each vector": [
        train(HardThreshold(k, nonneg=True)) for k in (4, 8, 16)
    ],
    "largest of the batch": [train(BatchTopK(k)) for k in (4, 8, 16)],
    "Hoyer projection": [
        train(HoyerProjection(s, nonneg=True)) for s in (0.97, 0.94, 0.9)
    ],
}

# %%
# Up and left is better. The Hoyer projection fixes how uneven the activity is,
# not how many units are active.
figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
for name, points in fronts.items():
    axis.plot(*zip(*points, strict=True), "o-", label=name)
axis.set(
    title="Explained variance of new vectors",
    xlabel="active units per vector",
    ylabel="explained variance",
    ylim=(None, 1),
)
axis.legend()
plt.show()
