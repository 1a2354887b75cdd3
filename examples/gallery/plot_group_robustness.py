"""
Accuracy of the worst group
===========================

In training, nearly all digits below five are red and nearly all others green;
in the test, color says nothing. The mean loss is lowest for a model that
looks at the color. ``GroupDRO`` minimizes the loss of the worst of the
four groups.
"""

import matplotlib.pyplot as plt
import pytorch_lightning as pl
import torch

from lit_sparse.data import ColoredDigitsDataModule
from lit_sparse.models import RobustClassifier
from lit_sparse.nn import MLP
from lit_sparse.risks import CVaR, GroupDRO, Mean

quiet = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
groups = ["red 0-4", "green 0-4", "red 5-9", "green 5-9"]

# %%
# A risk is an argument of the model. Only ``GroupDRO`` needs the groups, which
# are an entry of the batches.
found = {}
for risk in (Mean(), CVaR(0.2), GroupDRO(4, step_size=0.05)):
    pl.seed_everything(0, verbose=False)
    data = ColoredDigitsDataModule(labelled=1.0, binarize=False, batch_size=128)
    model = RobustClassifier(
        network=MLP([128, 64, 2]),
        in_features=128,
        classes=2,
        risk=risk,
        optimizer=lambda p: torch.optim.Adam(p, 2e-3),
    )
    trainer = pl.Trainer(max_epochs=40, accelerator="cpu", **quiet)
    trainer.fit(model, data)
    (scores,) = trainer.test(model, data, verbose=False)
    found[type(risk).__name__] = [
        scores[f"test/accuracy_group_{group}"] for group in range(4)
    ]
    worst, mean = scores["test/worst_group_accuracy"], scores["test/accuracy"]
    print(f"{type(risk).__name__}: worst group {worst:.2f}, mean {mean:.2f}")

# %%
# The middle groups are rare in training.
figure, axis = plt.subplots(figsize=(8, 4), layout="constrained")
for place, (name, accuracies) in enumerate(found.items()):
    axis.bar(
        [group + 0.26 * (place - 1) for group in range(4)],
        accuracies,
        width=0.24,
        label=name,
    )
axis.set(
    title="Test accuracy of each group",
    xticks=range(4),
    xticklabels=groups,
    ylim=(0, 1.25),
)
axis.legend(ncols=3)
plt.show()
