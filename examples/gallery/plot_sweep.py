"""
Sweep over a config, and report the runs
========================================

A sweep trains a config with different values, here two mappings and two
learning rates of the semi-supervised VAE on digits. A report shows all runs
on one page.
"""

import csv
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

folder = Path(tempfile.mkdtemp())
(folder / "space.yaml").write_text("""
model.init_args.mapping: [Sparsemax, Softmax]
model.init_args.optimizer.init_args.lr: [1.0e-3, 5.0e-3]
""")


def lit_sparse(words):
    """Run a command in the folder, and return what it prints."""
    command = [sys.executable, "-m", "lit_sparse", *words.split()]
    run = subprocess.run(
        command, cwd=folder, check=True, capture_output=True, text=True
    )
    return run.stdout


# %%
# The grid of both lists has four trials. What follows ``--`` applies to all.
printed = lit_sparse(
    "sweep -c ssvae/digits -s space.yaml --sampler grid --jobs 2"
    " --metric val/accuracy -- --trainer.max_epochs 6"
)
print(printed[-900:])

# %%
# The report is one HTML file that needs no network.
lit_sparse("report runs/sweep/ssvae/digits -o sweep.html")
size = (folder / "sweep.html").stat().st_size
print(f"sweep.html has {size // 1024} KiB")

# %%
# The trials are also a table.
with (folder / "runs/sweep/ssvae/digits/sweep.csv").open() as file:
    trials = list(csv.DictReader(file))
mapping, rate = (
    "model.init_args.mapping",
    "model.init_args.optimizer.init_args.lr",
)
names = [f"{row[mapping]}, lr {row[rate]}" for row in trials]
values = [float(row["val/accuracy"]) for row in trials]
figure, axis = plt.subplots(figsize=(7, 2.6), layout="constrained")
axis.barh(names, values)
axis.invert_yaxis()
axis.set_xlabel("validation accuracy after six epochs")
plt.show()
