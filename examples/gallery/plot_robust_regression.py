"""
A risk in place of the mean
===========================

One row in ten follows a different rule from the rest. The mean loss ignores
these rows; a robust risk balances them against the others, to a degree that its
parameter controls.
"""

import matplotlib.pyplot as plt
import torch

from lit_sparse.risks import CVaR, Mean, SafeKLDRO

torch.manual_seed(0)
x = torch.randn(1000, 1)
group = torch.arange(1000) % 10 == 0
y = x[:, 0] + 3 * group + 0.1 * torch.randn(1000)

# %%
# A risk maps the losses of a batch to a scalar. ``SafeKLDRO`` remembers the
# level of the losses in a dual variable, which the optimizer learns too.


def train(risk):
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    groups = [
        {"params": model.parameters()},
        {"params": risk.dual_parameters(), "lr": 0.02},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.01)
    for _ in range(1500):
        rows = torch.randint(1000, (64,))
        optimizer.zero_grad()
        risk((model(x[rows])[:, 0] - y[rows]).square()).backward()
        optimizer.step()
    return model.requires_grad_(False)


risks = [
    Mean(),
    SafeKLDRO(lam=4.0, rho=0.1),
    SafeKLDRO(lam=2.0, rho=0.1),
    SafeKLDRO(lam=1.0, rho=0.1),
    CVaR(0.2),
]
models = [train(risk) for risk in risks]
losses = torch.stack([(model(x)[:, 0] - y).square() for model in models])
means, worst = losses.mean(1), losses[:, group].mean(1)

# %%
# With a smaller ``lam``, the group counts more, at the expense of the others.
names = ["mean", "lam = 4", "lam = 2", "lam = 1", "CVaR(0.2)"]
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
left.scatter(x[~group], y[~group], s=3, color="0.6")
left.scatter(x[group], y[group], s=6, color="tab:orange", label="the group")
line = torch.tensor([[-3.0], [3.0]])
for name, model in zip(names, models, strict=True):
    left.plot(line, model(line), label=name)
left.set(title="Fitted lines", xlabel="x", ylabel="y")
left.legend()
right.plot(means, worst, "o-", color="0.3")
for name, mean, loss in zip(names, means.tolist(), worst.tolist(), strict=True):
    right.annotate(
        name, (mean, loss), xytext=(6, 4), textcoords="offset points"
    )
right.set(
    title="Two losses, one choice",
    xlabel="mean loss",
    ylabel="mean loss of the group",
    xlim=(0.7, 2.3),
)
plt.show()
