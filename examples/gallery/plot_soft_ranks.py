"""
Train on ranks
==============

Ranks of predictions have no gradient. Soft ranks have one, and equal the ranks
once scores are far enough apart. Here a linear model is trained to put
examples in order, although a few targets are far off: the squared error chases
these outliers, while a loss on ranks ignores them.
"""

import matplotlib.pyplot as plt
import torch

from lit_sparse.mappings import functional as F

torch.manual_seed(0)

# %%
# Soft ranks of four scores. Scores that are closer than ``strength`` share
# ranks.
scores = torch.tensor([0.3, 1.2, -0.5, 1.1])
for strength in (0.01, 0.5, 2.0):
    print(strength, F.soft_rank(scores, strength))

# %%
# Targets with outliers: one in twenty is a hundred times too large.
inputs = torch.randn(400, 5)
clean = inputs @ torch.tensor([2.0, -1.0, 0.5, 0.0, 0.0]) + 0.3 * torch.randn(
    400
)
targets = torch.where(torch.rand(400) < 0.05, 100 * clean.abs(), clean)


def rank_loss(predictions, targets):
    """Return 1 - Spearman's correlation."""
    ranks = torch.stack(
        [F.soft_rank(predictions, 0.05), F.soft_rank(targets, 1e-6)]
    )
    return 1 - torch.corrcoef(ranks)[0, 1]


def train(loss_fn):
    model = torch.nn.Linear(5, 1)
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    for _ in range(300):
        optimizer.zero_grad()
        loss_fn(model(inputs).squeeze(1), targets).backward()
        optimizer.step()
    return model(inputs).squeeze(1).detach()


losses = {
    "squared error": torch.nn.functional.mse_loss,
    "loss of ranks": rank_loss,
}
predictions = {name: train(loss_fn) for name, loss_fn in losses.items()}

# %%
# The ranks of the predictions against those without outliers: only the model
# that was trained on ranks puts them in order.
figure, axes = plt.subplots(
    1, 2, figsize=(8, 4), sharey=True, layout="constrained"
)
for axis, (name, found) in zip(axes, predictions.items(), strict=True):
    ranks = torch.stack(
        [found.argsort().argsort(), clean.argsort().argsort()]
    ).float()
    axis.scatter(ranks[1], ranks[0], s=8)
    axis.set(
        title=f"{name}: correlation {torch.corrcoef(ranks)[0, 1]:.2f}",
        xlabel="true rank",
    )
axes[0].set_ylabel("predicted rank")
plt.show()
