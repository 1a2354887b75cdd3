"""Packages from the index that have a sparsemax of their own work the same with this package's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .support.processes import ROOT, run_python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PACKAGES = ("entmax==1.3", "pytorch-tabnet==4.1.0", "pytorch_tabular==1.2.0", "einops", "omegaconf", "scikit-base")
LIKEWISE = ("antlr4-python3-runtime==4.9.3",)  # that omegaconf reads its texts with
#: Trains with theirs and with ours in turn; prints accuracies, seconds of the processor, and the largest error of an export.
DATA = """
import statistics, sys, time, warnings
warnings.simplefilter("ignore")
import numpy as np, onnxruntime, torch
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from lit_sparse.export import export_onnx
from lit_sparse.mappings import Entmax, Sparsemax, functional as F

torch.set_num_threads(1)
kind, x = sys.argv[1], load_breast_cancer().data
x = ((x - x.mean(0)) / x.std(0)).astype(np.float32)
train, test, labels, truth = train_test_split(x, load_breast_cancer().target, random_state=0, test_size=0.4)

def compare(choose, fit):
    accuracies, seconds = {False: [], True: []}, {False: [], True: []}
    for seed in range(-1, 5):  # the first compiles
        for ours in (False, True):
            choose(ours)
            began = time.process_time()
            predict, network = fit(seed + 1)
            if seed >= 0:
                seconds[ours].append(time.process_time() - began)
                accuracies[ours].append(float((predict(test) == truth).mean()))
    export_onnx(network.eval(), (torch.from_numpy(test[:16]),), sys.argv[2], input_names=["x"])
    found = onnxruntime.InferenceSession(sys.argv[2]).run(None, {"x": test[:16]})[0]
    with torch.no_grad():
        expected = network(torch.from_numpy(test[:16]))
    expected = expected[0] if isinstance(expected, tuple) else expected
    mean, median = (lambda values: statistics.mean(values)), statistics.median
    print(mean(accuracies[False]), mean(accuracies[True]), median(seconds[True]) / median(seconds[False]))
    print(float(np.abs(found - expected.numpy()).max()))
"""
TABNET = """
from pytorch_tabnet import sparsemax
from pytorch_tabnet.tab_model import TabNetClassifier

own = sparsemax.Sparsemax, sparsemax.Entmax15

def choose(ours):
    sparsemax.Sparsemax, sparsemax.Entmax15 = (Sparsemax, Entmax) if ours else own

def fit(seed):
    model = TabNetClassifier(mask_type=kind, seed=seed, verbose=0, device_name="cpu")
    model.fit(train, labels, max_epochs=30, batch_size=128, virtual_batch_size=64, patience=0)
    return model.predict, model.network

compare(choose, fit)
"""
GATE = """
import random
from pytorch_tabular.models.gate.gate_model import GatedAdditiveTreesBackbone as Trees

own = dict(Trees.ACTIVATION_MAP)

class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.trees = Trees([], 30, 2, 3, 2, feature_mask_function=kind, binning_activation="sigmoid")
        self.head = torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.trees(x).transpose(1, 2)).mean(1)

def choose(ours):
    Trees.ACTIVATION_MAP = {**own, "sparsemax": F.sparsemax, "entmax": F.entmax} if ours else own

def fit(seed):
    random.seed(seed), torch.manual_seed(seed)
    network = Network()
    optimizer = torch.optim.Adam(network.parameters(), 0.01)
    for epoch in range(20):
        for rows in torch.randperm(len(train)).split(64):
            loss = torch.nn.functional.cross_entropy(network(torch.from_numpy(train[rows])), torch.from_numpy(labels[rows]))
            optimizer.zero_grad(), loss.backward(), optimizer.step()
    network.eval()
    return lambda x: network(torch.from_numpy(x)).argmax(-1).numpy(), network

compare(choose, fit)
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Paths of this package and of the others, in a folder of their own; what they need further is installed."""
    folder = tmp_path_factory.mktemp("packages")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *PACKAGES, *LIKEWISE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        pytest.skip(f"the packages cannot be installed: {done.stderr[-300:]}")
    return os.pathsep.join([str(ROOT), str(folder)])


@pytest.mark.parametrize("kind", ["sparsemax", "entmax"])
@pytest.mark.parametrize("program", [TABNET, GATE], ids=["pytorch-tabnet", "pytorch_tabular"])
def test_they_train_alike(program: str, kind: str, path: str, tmp_path: Path) -> None:
    printed = run_python("-c", DATA + program, kind, str(tmp_path / "model.onnx"), timeout=800, PYTHONPATH=path)
    accuracies, error = ([float(word) for word in line.split()] for line in printed.splitlines()[-2:])
    theirs, ours, ratio = accuracies
    assert min(theirs, ours) > 0.9
    assert abs(theirs - ours) < 0.03  # five seeds of 228 examples
    assert ratio < 1.1
    assert error[0] < 1e-4


def test_the_page_of_replacements(path: str) -> None:
    tests = ["tests/docs/test_coming_from.py", "tests/docs/test_snippets.py", "-k", "coming_from"]
    options = ["-q", "-p", "no:cacheprovider", "--override-ini", "filterwarnings=default"]  # the others use former names
    printed = run_python("-m", "pytest", *options, *tests, PYTHONPATH=path)
    assert " passed" in printed
    assert "skipped" not in printed
