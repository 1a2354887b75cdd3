"""
A language of 32 symbols
========================

A sender sees an image and sends one symbol, and a receiver picks that image
out of eight. The symbol is a latent variable that is summed out over the few
symbols with a probability above zero, so both learn by exact gradients and
without sampling.
"""

import matplotlib.pyplot as plt
import pytorch_lightning as pl
import torch

from lit_sparse.data import DigitsDataModule, ReferentialGameDataModule
from lit_sparse.estimators import Marginalize
from lit_sparse.mappings import Sparsemax
from lit_sparse.models import SignalingGame
from lit_sparse.nn import MLP

quiet = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
pl.seed_everything(0, verbose=False)
data = ReferentialGameDataModule(DigitsDataModule(binarize=False), candidates=8)
model = SignalingGame(
    Sparsemax(),
    Marginalize(),
    in_features=64,
    vocabulary=32,
    sender=MLP([64, 128, 32]),
    entropy_weight=0.03,
    optimizer=lambda p: torch.optim.Adam(p, 3e-3),
)
trainer = pl.Trainer(max_epochs=25, accelerator="cpu", **quiet)
trainer.fit(model, data)
(scores,) = trainer.test(model, data, verbose=False)
success, calls = 100 * scores["test/success"], scores["test/decoder_calls_mean"]
print(f"the receiver picks the right image in {success:.0f} % of the games")
print(f"it is asked about {calls:.1f} of 32 symbols for an image")

# %%
# How often each symbol is sent for the images of a class. The classes are not
# known in training: they emerge as groups that help to tell images apart.
batch = data.fetch("test", 0, torch.arange(data.size("test")))
with torch.no_grad():
    symbols = model(batch["target"]).argmax(-1)
counts = torch.zeros(10, 32).index_put_(
    (batch["label"], symbols), torch.tensor(1.0), accumulate=True
)
used = counts.sum(0) > 0
order = counts[:, used].argmax(0).sort().indices
figure, axis = plt.subplots(figsize=(8, 3.2), layout="constrained")
image = axis.imshow(
    (counts / counts.sum(1, keepdim=True))[:, used][:, order],
    cmap="Blues",
    vmin=0,
)
axis.set(
    title="Symbols for the images of each digit",
    xlabel="symbol",
    ylabel="digit",
    yticks=range(10),
    xticks=[],
)
figure.colorbar(image, label="share of the digit's images")
plt.show()
