"""
A plan between two distributions
================================

Entropic optimal transport from samples: two networks are trained on pairs of
points, and give a plan, its density and a map for any points, even new ones.
"""

import matplotlib.pyplot as plt
import pytorch_lightning as pl
import torch

from lit_sparse.data import TransportDataModule
from lit_sparse.models import EntropicTransport
from lit_sparse.transport import GaussianMixture, MLPPotentials

# %%
# From a normal distribution to a mixture of four. ``eps`` is the strength of
# the entropy, in units of the squared distance.
quiet = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
pl.seed_everything(0, verbose=False)
source = GaussianMixture([[0.0, 0.0]], [1.0])
target = GaussianMixture(
    [[2.0, 0.0], [-2.0, 0.0], [0.0, 2.0], [0.0, -2.0]], [0.1] * 4
)
data = TransportDataModule(source, target, samples=20000, batch_size=200)
model = EntropicTransport(
    MLPPotentials([64, 64]),
    dim=2,
    eps=0.5,
    rho=0.05,
    optimizer=lambda p: torch.optim.Adam(p, 3e-3),
)
trainer = pl.Trainer(max_epochs=8, accelerator="cpu", **quiet)
trainer.fit(model, data)

# %%
# The map sends a point to the mean of its conditional plan; samples of the
# plan are points of the target.
generator = torch.Generator().manual_seed(0)
starts, pool = (
    torch.randn(150, 2, generator=generator),
    data.fetch("test", 0, torch.arange(1000))["target"],
)
with torch.no_grad():
    means, ends = (
        model.barycentric_map(starts, pool),
        model.sample_plan(starts, pool, generator),
    )
figure, axes = plt.subplots(
    1, 2, figsize=(9, 4.2), sharex=True, sharey=True, layout="constrained"
)
for axis, arrows, title in zip(
    axes, (means, ends), ("Map", "A sample of the plan"), strict=True
):
    axis.scatter(*pool.T, s=2, color="0.8")
    axis.quiver(
        *starts.T,
        *(arrows - starts).T,
        angles="xy",
        scale_units="xy",
        scale=1,
        width=0.002,
        color="tab:blue",
    )
    axis.scatter(*starts.T, s=4, color="tab:orange")
    axis.set(title=title, aspect="equal")
plt.show()
