"""
Bases of a sparse auto-encoder
==============================

A supervised online auto-encoder reconstructs digits and classifies them. A
projection keeps the activity at a Hoyer sparseness, 0 for equal activity of
all units and 1 for a single active unit, and each basis is sparse in the same
sense.
"""

import matplotlib.pyplot as plt
import pytorch_lightning as pl
import torch

from lit_sparse.callbacks import SparseConnectivity
from lit_sparse.data import DigitsDataModule
from lit_sparse.mappings import HoyerProjection
from lit_sparse.models import SupervisedOnlineAutoencoder

# %%
# The same model without and with sparse bases.
quiet = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
models = {}
for name, callbacks in {
    "dense bases": [],
    "sparse bases": [SparseConnectivity("encoder", 0.75)],
}.items():
    pl.seed_everything(0, verbose=False)
    data = DigitsDataModule(labelled=1.0, binarize=False, batch_size=16)
    model = SupervisedOnlineAutoencoder(
        HoyerProjection(0.7),
        in_features=64,
        width=60,
        optimizer=lambda p: torch.optim.SGD(p, 0.2, momentum=0.9),
    )
    trainer = pl.Trainer(
        max_epochs=15, callbacks=callbacks, accelerator="cpu", **quiet
    )
    trainer.fit(model, data)
    (scores,) = trainer.test(model, data, verbose=False)
    models[name] = model
    print(f"{name}: accuracy {scores['test/accuracy']:.3f}")

# %%
# The bases as images: blue is negative, red positive, and white exactly zero
# with sparse bases.
figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
for axis, (name, model) in zip(axes, models.items(), strict=True):
    bases = model.bases.detach()
    sheet = torch.nn.functional.pad(
        (bases / bases.abs().amax(1, keepdim=True)).view(-1, 8, 8), (0, 1, 0, 1)
    )
    axis.imshow(
        sheet.view(6, 10, 9, 9).permute(0, 2, 1, 3).reshape(54, 90),
        cmap="RdBu_r",
        vmin=-1,
        vmax=1,
    )
    zeros = (bases == 0).float().mean()
    axis.set(title=f"{name}: {100 * zeros:.0f} % zeros", xticks=[], yticks=[])
plt.show()
