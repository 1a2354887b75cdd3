"""
A latent class without sampling
===============================

A semi-supervised VAE of digits decodes each image once for each class that has
a probability above zero. With sparsemax these are ten classes at first, and
about one after a short training run: the expectation over the class stays
exact, and costs little.
"""

import matplotlib.pyplot as plt
import pytorch_lightning as pl
import torch

from lit_sparse.data import DigitsDataModule
from lit_sparse.estimators import Marginalize
from lit_sparse.mappings import Softmax, Sparsemax
from lit_sparse.models import SemiSupervisedVAE


class Calls(pl.Callback):
    """Keep the decoder calls of each epoch."""

    def __init__(self):
        self.means, self.batches = [], []

    def on_train_batch_end(self, trainer, model, outputs, batch, batch_idx):
        self.batches.append(outputs["decoder_calls"].double().mean())

    def on_train_epoch_end(self, trainer, model):
        self.means.append(float(torch.stack(self.batches).mean()))
        self.batches.clear()


# %%
# The same model with two mappings. ``labelled=0.2`` keeps a fifth of the
# labels.
quiet = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
calls, models = {}, {}
for mapping in (Softmax(), Sparsemax()):
    pl.seed_everything(0, verbose=False)
    data = DigitsDataModule(labelled=0.2, binarize=False)
    options = {
        "unlabelled_weight": 1.0,
        "optimizer": lambda p: torch.optim.Adam(p, 4e-3),
    }
    model = SemiSupervisedVAE(mapping, Marginalize(), in_features=64, **options)
    counted = Calls()
    trainer = pl.Trainer(
        max_epochs=50, callbacks=[counted], accelerator="cpu", **quiet
    )
    trainer.fit(model, data)
    (scores,) = trainer.test(model, data, verbose=False)
    name = type(mapping).__name__
    calls[name], models[name] = counted.means, model
    accuracy, mean = scores["test/accuracy"], scores["test/decoder_calls_mean"]
    print(
        f"{name}: accuracy {accuracy:.3f}, {mean:.1f} decoder calls per image"
    )

# %%
# Decoder calls in training, and images that the model draws for each class.
figure, (left, right) = plt.subplots(
    1, 2, figsize=(9, 3.6), layout="constrained", width_ratios=(1, 1.6)
)
for name, means in calls.items():
    left.plot(range(1, 51), means, label=name)
left.set(
    title="Decoder calls per unlabelled image", xlabel="epoch", ylim=(0, 10.5)
)
left.legend()
with torch.no_grad():
    model = models["Sparsemax"]
    styles = torch.randn(4, model.style_features).repeat(10, 1)
    images = model.generate(styles, torch.arange(10).repeat_interleave(4)).view(
        10, 4, 8, 8
    )
right.imshow(images.permute(1, 2, 0, 3).reshape(32, 80), cmap="gray_r")
right.set(
    title="Each class in four styles",
    xticks=range(4, 80, 8),
    xticklabels=range(10),
    yticks=[],
)
plt.show()
