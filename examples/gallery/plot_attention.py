"""
Attention that you can read
===========================

A small translation model writes each word backwards, and the words of a
sentence in reverse order. Its attention is sparsemax in one run and softmax in
the other: sparsemax gives nearly all words a weight of exactly zero.
"""

import random
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import pytorch_lightning as pl
import torch

from lit_sparse.data import TranslationDataModule
from lit_sparse.mappings import Softmax, Sparsemax
from lit_sparse.models import Seq2Seq
from lit_sparse.nn import RecurrentBody

# %%
# Two files per split, a sentence in each line.
words = "red blue green dog cat runs sleeps house tree old new sees".split()
rng = random.Random(0)
folder = Path(tempfile.mkdtemp())
for split, number in (("train", 2000), ("val", 100), ("test", 100)):
    source = [
        " ".join(rng.sample(words, rng.randint(3, 7))) for _ in range(number)
    ]
    target = [
        " ".join(word[::-1] for word in line.split()[::-1]) for line in source
    ]
    (folder / f"{split}.en").write_text("\n".join(source) + "\n")
    (folder / f"{split}.ne").write_text("\n".join(target) + "\n")

# %%
# The mapping is an argument of the model.
quiet = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
found = {}
for mapping in (Softmax(), Sparsemax()):
    pl.seed_everything(0, verbose=False)
    data = TranslationDataModule(
        str(folder), source="en", target="ne", batch_size=64
    )
    model = Seq2Seq(
        mapping,
        RecurrentBody(48, 1, 0.0),
        max_output=12,
        optimizer=lambda p: torch.optim.Adam(p, 5e-3),
    )
    trainer = pl.Trainer(
        max_epochs=12,
        accelerator="cpu",
        gradient_clip_val=1.0,
        limit_val_batches=0,
        **quiet,
    )
    trainer.fit(model, data)
    (scores,) = trainer.test(model, data, verbose=False)
    batch = data.fetch("test", 0, torch.arange(1))
    with torch.inference_mode():
        output = model.eval().run_step(batch, 0, "test")
    found[type(mapping).__name__] = output["artifacts"]
    accuracy = scores["test/accuracy"]
    print(f"{type(mapping).__name__}: accuracy of the next word {accuracy:.3f}")

# %%
# A row for each word that is written, a column for each word that is read.
# Crosses are exact zeros.
figure, axes = plt.subplots(
    1, 2, figsize=(9, 4), sharey=True, layout="constrained"
)
for axis, (name, artifacts) in zip(axes, found.items(), strict=True):
    weights, read, written = (
        artifacts["attention"][0],
        artifacts["source_tokens"][0],
        artifacts["output_tokens"][0],
    )
    image = axis.imshow(weights, cmap="Blues", vmin=0, vmax=1)
    rows, columns = (weights == 0).nonzero(as_tuple=True)
    axis.plot(columns, rows, "x", color="0.75", markersize=5)
    axis.set_xticks(range(len(read)), read, rotation=45, ha="right")
    axis.set_yticks(range(len(written)), written)
    axis.set_title(f"{name}: {100 * (weights == 0).float().mean():.0f} % zeros")
figure.colorbar(image, ax=axes, label="weight")
plt.show()
