"""A top-k sparse auto-encoder in a loop of its own: the reference of :class:`lit_sparse.models.SparseAutoencoder`."""

from __future__ import annotations

import torch
from torch import Tensor


def train(x: Tensor, width: int, k: int, steps: int, batch: int, lr: float) -> Tensor:
    """Return the reconstructions (N, D) of x after training, with directions normalized after each step."""
    bias = x.mean(0).clone().requires_grad_()
    scale = (x - x.mean(0)).square().mean().sqrt()
    decoder = torch.nn.functional.normalize(torch.randn(width, x.shape[1]), dim=1).requires_grad_()
    encoder, offset = decoder.detach().clone().requires_grad_(), torch.zeros(width, requires_grad=True)
    optimizer = torch.optim.Adam([bias, decoder, encoder, offset], lr=lr)

    def reconstruct(x: Tensor) -> Tensor:
        scores = (x - bias) / scale @ encoder.T + offset
        values, places = scores.topk(k, dim=1)
        return scale * torch.zeros_like(scores).scatter(1, places, values.relu()) @ decoder + bias

    for _ in range(steps):
        rows = x[torch.randint(len(x), (batch,))]
        optimizer.zero_grad()
        ((reconstruct(rows) - rows) / scale).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            decoder /= decoder.norm(dim=1, keepdim=True)
    return reconstruct(x).detach()
