"""
Images from sixteen bits
========================

The latent variable of this VAE is a vector of sixteen bits, which has 65,536
values. SparseMAP gives only a few of them a probability above zero, so the
expected loss is an exact sum over these few.
"""

import matplotlib.pyplot as plt
import pytorch_lightning as pl
import torch

from lit_sparse.data import DigitsDataModule
from lit_sparse.estimators import SparseMAPMarginalize
from lit_sparse.models import BitVectorVAE
from lit_sparse.structures import BitVector

quiet = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
pl.seed_everything(0, verbose=False)
data = DigitsDataModule(labelled=0, binarize=False)
model = BitVectorVAE(
    SparseMAPMarginalize(BitVector(16)),
    in_features=64,
    bits=16,
    levels=17,
    optimizer=lambda p: torch.optim.Adam(p, 3e-3),
)
trainer = pl.Trainer(max_epochs=30, accelerator="cpu", **quiet)
trainer.fit(model, data)
(scores,) = trainer.test(model, data, verbose=False)
calls = scores["test/decoder_calls_mean"]
print(f"{calls:.2f} of 65,536 bit vectors are decoded for an image")
print(f"{scores['test/bits_per_dim']:.2f} bits per pixel")

# %%
# The most probable bits of some test images, what the decoder makes of them,
# and what it makes of them with the first bit changed.
images = data.fetch("test", 0, torch.arange(12))["pixels"]
with torch.no_grad():
    bits = (model(images) > 0).float()
    flipped = bits.clone()
    flipped[:, 0] = 1 - flipped[:, 0]
    rows = {
        "image": images,
        "from its bits": model.generate(bits),
        "first bit flipped": model.generate(flipped),
    }
figure, axes = plt.subplots(
    len(rows), 12, figsize=(9, 2.6), layout="constrained"
)
for line, (name, pixels) in zip(axes, rows.items(), strict=True):
    for axis, picture in zip(line, pixels, strict=True):
        axis.imshow(picture.view(8, 8), cmap="gray_r", vmin=0, vmax=1)
        axis.set(xticks=[], yticks=[])
    line[0].set_ylabel(name, rotation=0, ha="right", va="center")
plt.show()
