"""Train a network to order examples rather than to predict numbers: the loss is 1 - Spearman's rank correlation.

It needs `pip install 'lit-sparse[train]'`, and takes a few seconds:

    python examples/spearman_loss.py
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from scipy.stats import spearmanr
from sklearn.datasets import load_diabetes
from torch import Tensor, nn

from lit_sparse.mappings import functional as F


def spearman_loss(predictions: Tensor, targets: Tensor, strength: float = 1.0) -> Tensor:
    """Return 1 - the correlation of the soft ranks of predictions (..., n) with the ranks of targets (..., n)."""
    spread = predictions.std(-1, keepdim=True).clamp_min(1e-6)  # ranks know no scale; the strength would
    ranks = F.soft_rank(predictions / spread, strength / predictions.shape[-1])
    wanted = F.soft_rank(targets, 1e-6 * float(targets.std()))  # where targets are equal, their mean rank
    return 1 - torch.corrcoef(torch.stack([ranks, wanted]))[0, 1]


def train(loss: Callable[[Tensor, Tensor], Tensor], seed: int) -> float:
    """Train on half of the diabetes data; return Spearman's correlation on the other half."""
    torch.manual_seed(seed)
    features, targets = (torch.tensor(part, dtype=torch.float32) for part in load_diabetes(return_X_y=True))
    features, targets = 20 * features, (targets / 50).exp()  # of a few large values and many small ones
    targets = (targets - targets.mean()) / targets.std()
    train_rows, test_rows = torch.randperm(len(targets)).chunk(2)
    model = nn.Sequential(nn.Linear(features.shape[1], 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    for _ in range(100):
        optimizer.zero_grad()
        loss(model(features[train_rows]).squeeze(-1), targets[train_rows]).backward()
        optimizer.step()
    with torch.no_grad():
        predictions = model(features[test_rows]).squeeze(-1)
    return float(spearmanr(predictions.numpy(), targets[test_rows].numpy()).statistic)


def main() -> None:
    """Print the mean test correlation of five splits for both losses."""
    for name, loss in (("squared error", nn.MSELoss()), ("Spearman loss", spearman_loss)):
        scores = torch.tensor([train(loss, seed) for seed in range(5)])
        print(f"{name}: {scores.mean():.3f} ± {scores.std() / 5**0.5:.3f}")


if __name__ == "__main__":
    main()
