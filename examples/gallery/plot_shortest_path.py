"""
Learn the costs of shortest paths
=================================

A solver as a layer: a network predicts the costs of a grid from a picture of
the terrain, and is trained only on the shortest paths of maps, not on their
costs. SparseMAP's loss compares the predicted costs with the path of the map,
and its gradient is the difference between a sparse mean of paths and that path.
"""

import matplotlib.pyplot as plt
import torch

from lit_sparse.mappings import SparseMAP
from lit_sparse.structures import ShortestPath

torch.manual_seed(0)
SIDE = 6

# %%
# A graph: from each cell to the right or down; an edge costs what its end
# costs.
cells = torch.arange(SIDE * SIDE).view(SIDE, SIDE)
edges = [
    *zip(
        cells[:, :-1].flatten().tolist(),
        cells[:, 1:].flatten().tolist(),
        strict=True,
    )
]
edges += [
    *zip(
        cells[:-1].flatten().tolist(), cells[1:].flatten().tolist(), strict=True
    )
]
ends = torch.tensor([end for _, end in edges])
paths = ShortestPath(edges, 0, SIDE * SIDE - 1)


def terrain(number):
    """Return features (N, 36, 3) of maps, and the costs of their cells."""
    kinds = torch.randint(3, (number, SIDE * SIDE))
    costs = torch.tensor([0.2, 1.0, 3.0])[kinds]
    return torch.nn.functional.one_hot(kinds, 3) + 0.3 * torch.randn(
        number, SIDE * SIDE, 3
    ), costs


features, costs = terrain(300)
best = paths.maximize(
    -costs[:, ends]
)  # the shortest path of each map, as zeros and ones of the edges

# %%
# The loss is zero where the path of the map is cheaper than all others by a
# margin.
network = torch.nn.Sequential(
    torch.nn.Linear(3, 16),
    torch.nn.ReLU(),
    torch.nn.Linear(16, 1),
    torch.nn.Softplus(),
)
layer = SparseMAP(paths)
optimizer = torch.optim.Adam(network.parameters(), 0.01)
regrets = []
new, new_costs = terrain(200)
least = (paths.maximize(-new_costs[:, ends]) * new_costs[:, ends]).sum(-1)
for _ in range(60):
    optimizer.zero_grad()
    layer.loss(-network(features).squeeze(2)[:, ends], best).mean().backward()
    optimizer.step()
    with torch.no_grad():
        chosen = paths.maximize(-network(new).squeeze(2)[:, ends])
    regrets.append(
        float(((chosen * new_costs[:, ends]).sum(-1) / least - 1).mean())
    )
first, last = 100 * regrets[0], 100 * regrets[-1]
print(
    f"new paths cost {first:.0f} % too much at first, {last:.1f} % in the end"
)

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
left.plot(torch.tensor(regrets) * 100)
left.set(
    title="Additional cost of the chosen paths on new maps",
    xlabel="step",
    ylabel="%",
    yscale="log",
)
right.imshow(new_costs[0].view(SIDE, SIDE), cmap="YlOrBr")
for (start, end), used in zip(edges, chosen[0].tolist(), strict=True):
    if used:
        right.plot(
            [start % SIDE, end % SIDE],
            [start // SIDE, end // SIDE],
            color="tab:blue",
            linewidth=3,
        )
right.set(title="One of them, over its true costs", xticks=[], yticks=[])
plt.show()
