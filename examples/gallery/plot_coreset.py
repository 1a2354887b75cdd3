"""
A coreset for a posterior
=========================

Thirty weighted rows stand for 3,000 in Bayesian logistic regression. A row's
vector is its log-likelihood under parameters that are drawn from a rough
posterior, and the selector makes the weighted sum of a few vectors nearly
equal to the sum of all.
"""

import matplotlib.pyplot as plt
import torch

from lit_sparse.coresets import (
    AcceleratedIHT,
    Examples,
    LogisticLikelihood,
    LogLikelihoodVectors,
    Uniform,
)
from lit_sparse.coresets.posteriors import laplace_posterior, reverse_kl

torch.manual_seed(0)
features = torch.randn(3000, 2, dtype=torch.float64) @ torch.tensor(
    [[1.0, 0.8], [0.0, 0.6]], dtype=torch.float64
)
target = torch.bernoulli((2 * features[:, 0] - features[:, 1]).sigmoid())

# %%
# Vectors, then two selections of at most thirty rows.
likelihood = LogisticLikelihood()
vectors = LogLikelihoodVectors(likelihood, num_samples=300)(
    Examples.of(features=features, target=target)
)
chosen = {
    "random rows": Uniform()(vectors, 30),
    "A-IHT": AcceleratedIHT()(vectors, 30),
}

# %%
# Posteriors of both, by Laplace's approximation, and their divergence from
# that of all rows.
full = laplace_posterior(likelihood, features, target)
found = {
    name: laplace_posterior(
        likelihood, features[it.indices], target[it.indices], it.weights
    )
    for name, it in chosen.items()
}
for name, posterior in found.items():
    nats = float(reverse_kl(full, posterior))
    print(f"{name}: {nats:.3g} nats from the posterior of all rows")


# %%
# Contours of one and two standard deviations. The coreset's are nearly those
# of all rows.
def contour(posterior, deviations):
    angles = torch.linspace(0, 2 * torch.pi, 100, dtype=torch.float64)
    circle = torch.stack([angles.cos(), angles.sin()])
    return (
        posterior.mean[:, None]
        + deviations * torch.linalg.cholesky(posterior.covariance) @ circle
    )


figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
left.scatter(*features.T, c=target, cmap="coolwarm", s=3, alpha=0.25)
it = chosen["A-IHT"]
rows, labels = features[it.indices], target[it.indices]
left.scatter(
    *rows.T, c=labels, cmap="coolwarm", s=it.weights / 2, edgecolors="black"
)
left.set(
    title="Rows, and the coreset by weight",
    xlabel="feature 1",
    ylabel="feature 2",
)
lines = zip(
    ("0.8", "tab:orange", "tab:blue"),
    (6, 1.5, 1.5),
    {"all rows": full, **found}.items(),
    strict=True,
)
for color, width, (name, posterior) in lines:
    for deviations in (1, 2):
        label = name if deviations == 1 else None
        right.plot(
            *contour(posterior, deviations),
            color=color,
            linewidth=width,
            label=label,
        )
right.set(
    title="Posteriors of the coefficients",
    xlabel="of feature 1",
    ylabel="of feature 2",
)
right.legend()
plt.show()
