"""Every model under every precision of Lightning's trainer, as the documentation's table says."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.precision import MixedPrecision

from lit_sparse.callbacks import CountLogger, LanguageLogger, SecondsLogger
from lit_sparse.cli.callbacks import pictures
from lit_sparse.coresets import LogisticLikelihood
from lit_sparse.data import (
    DigitsDataModule,
    EntailmentDataModule,
    ReferentialGameDataModule,
    SyntheticRegressionDataModule,
    TranslationDataModule,
    TransportDataModule,
)
from lit_sparse.errors import ConfigurationError
from lit_sparse.estimators import Marginalize, ScoreFunction, TopKMarginalize
from lit_sparse.mappings import BatchTopK, Entmax, Fusedmax, HoyerProjection, Sparsemax
from lit_sparse.models import (
    BayesianRegression,
    BitVectorVAE,
    EntailmentClassifier,
    EntropicTransport,
    LitSparseModule,
    RobustClassifier,
    RobustRegressor,
    SemiSupervisedVAE,
    Seq2Seq,
    SignalingGame,
    SparseAutoencoder,
    SupervisedOnlineAutoencoder,
)
from lit_sparse.nn import ConvNet, NoiseBases, RecurrentBody, TransformerBody
from lit_sparse.risks import SafeKLDRO, UnbalancedOTDRO
from lit_sparse.testing import concrete_subclasses
from lit_sparse.transport import GaussianMixture, KernelPotentials, MLPPotentials
from tests.data.pairs import WORDS, write_pairs
from tests.docs import log_keys

Pair = tuple[LitSparseModule, pl.LightningDataModule]
#: The rate is so small that a step in half precision does no harm; fused, as in most configs.
ADAM = functools.partial(torch.optim.Adam, lr=1e-3, fused=True)


def digits(**options: object) -> DigitsDataModule:
    return DigitsDataModule(batch_size=50, val_size=60, test_size=60, **options)  # type: ignore[arg-type]


def regression() -> SyntheticRegressionDataModule:
    return SyntheticRegressionDataModule(size=200)


def transport() -> TransportDataModule:
    plain = GaussianMixture([[0.0, 0.0]], [1.0])
    return TransportDataModule(plain, plain, samples=200, val_size=50, test_size=50)


def pairs(folder: Path) -> TranslationDataModule:
    for split in ("train", "val", "test"):
        write_pairs(folder, split, 30)
    return TranslationDataModule(str(folder), source="de", target="en", batch_size=8)


def entailment(folder: Path) -> EntailmentDataModule:
    rows = [{"premise": f"a b {word}", "hypothesis": word, "label": "neutral"} for word in WORDS]
    for split in ("train", "dev", "test"):
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return EntailmentDataModule(str(folder), val="dev", batch_size=8)


MADE: dict[str, Callable[[Path], Pair]] = {
    "BayesianRegression, laplace": lambda _: (
        BayesianRegression(LogisticLikelihood(), in_features=3, optimizer=ADAM),
        regression(),
    ),
    "BayesianRegression, variational": lambda _: (
        BayesianRegression(LogisticLikelihood(), in_features=3, fit="variational", optimizer=ADAM),
        regression(),
    ),
    "BitVectorVAE": lambda _: (
        BitVectorVAE(TopKMarginalize(4), in_features=64, bits=6, levels=17, importance_samples=16, optimizer=ADAM),
        digits(labelled=0, binarize=False),
    ),
    "EntailmentClassifier": lambda folder: (
        EntailmentClassifier(Sparsemax(), vector_size=5, width=4, optimizer=ADAM),
        entailment(folder),
    ),
    "EntropicTransport, MLPPotentials": lambda _: (
        EntropicTransport(MLPPotentials([8]), dim=2, eps=0.5, optimizer=ADAM),
        transport(),
    ),
    "EntropicTransport, KernelPotentials": lambda _: (
        EntropicTransport(KernelPotentials(0.7, 0.3, capacity=1000), dim=2, eps=0.5),
        transport(),
    ),
    "RobustClassifier, SafeKLDRO": lambda _: (
        RobustClassifier(
            network=ConvNet(8, 8, channels=[4], hidden=8), in_features=64, risk=SafeKLDRO(0.5, 0.1), optimizer=ADAM
        ),
        digits(labelled=1.0, binarize=False),
    ),
    "RobustClassifier, UnbalancedOTDRO": lambda _: (
        RobustClassifier(
            network=ConvNet(8, 8, channels=[4], hidden=8), in_features=64, risk=UnbalancedOTDRO(1.0, 1.0, 0.1), optimizer=ADAM
        ),
        digits(labelled=1.0, binarize=False),
    ),
    "RobustRegressor": lambda _: (RobustRegressor(in_features=3, optimizer=ADAM), regression()),
    "SemiSupervisedVAE, Marginalize": lambda _: (
        SemiSupervisedVAE(Sparsemax(), Marginalize(), in_features=64, optimizer=ADAM),
        digits(labelled=0.5),
    ),
    "SemiSupervisedVAE, ScoreFunction": lambda _: (
        SemiSupervisedVAE(Entmax(), ScoreFunction(baseline="learnt"), in_features=64, optimizer=ADAM),
        digits(labelled=0.5),
    ),
    "SparseAutoencoder": lambda _: (
        SparseAutoencoder(BatchTopK(2), in_features=3, width=8, dead_after=20, optimizer=ADAM),
        regression(),
    ),
    "Seq2Seq, RecurrentBody": lambda folder: (
        Seq2Seq(Fusedmax(), RecurrentBody(8, 1, 0.1), max_output=5, optimizer=ADAM),
        pairs(folder),
    ),
    "Seq2Seq, TransformerBody": lambda folder: (
        Seq2Seq(Sparsemax(), TransformerBody(8, 1, heads=2), max_output=5, optimizer=ADAM),
        pairs(folder),
    ),
    "SignalingGame": lambda _: (
        SignalingGame(Sparsemax(), Marginalize(), in_features=64, vocabulary=16, optimizer=ADAM),
        ReferentialGameDataModule(digits(binarize=False), candidates=5),
    ),
    "SupervisedOnlineAutoencoder": lambda _: (
        SupervisedOnlineAutoencoder(HoyerProjection(0.7), in_features=64, width=20, initial_bases=NoiseBases(), optimizer=ADAM),
        digits(labelled=1.0, binarize=False),
    ),
}
TABLE = Path(__file__).parents[2] / "docs" / "reference" / "precision.md"


def table() -> list[tuple[str, str, str]]:
    """Return the documented cells: model, precision, and whether it runs."""
    lines = [line for line in TABLE.read_text().splitlines() if line.startswith("|")]
    (_, *precisions), _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return [(name, precision, cell) for name, *cells in rows for precision, cell in zip(precisions, cells, strict=True)]


def trainer(precision: str, **options: Any) -> pl.Trainer:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    limits = dict.fromkeys(("limit_val_batches", "limit_test_batches", "limit_predict_batches"), 1)
    run = {"max_epochs": 1, "limit_train_batches": 2, "num_sanity_val_steps": 0, "devices": 1}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    how: dict[str, Any] = {"precision": precision}
    if precision == "16-mixed":  # which Lightning itself replaces on a CPU
        how = {"plugins": [MixedPrecision(precision, device, torch.amp.GradScaler(device))]}  # type: ignore[attr-defined]
    return pl.Trainer(accelerator="auto", **how, **{**quiet, **limits, **run, **options})  # type: ignore[arg-type]


def cells() -> list[Any]:
    """Return the cells that run. Cases with bf16-true and with a text model may be quick."""
    found = [(name, precision) for name, precision, cell in table() if cell != "no"]
    return [
        pytest.param(*cell, marks=[] if cell[1] == "bf16-true" or "Recurrent" in cell[0] else [pytest.mark.slow])
        for cell in found
    ]


def test_the_table_is_complete() -> None:
    assert {name for name, _, _ in table()} == set(MADE)
    assert {name.split(",")[0] for name in MADE} == {kind.__name__ for kind in concrete_subclasses(LitSparseModule)}
    assert {cell for _, _, cell in table()} <= {"yes", "GPU", "no"}


@pytest.mark.cases(quick=8)
@pytest.mark.filterwarnings("ignore:You passed `Trainer:UserWarning")
@pytest.mark.parametrize(("name", "precision"), cells())
def test_a_model_takes_a_precision(name: str, precision: str, tmp_path: Path) -> None:
    """Gradients are clipped, as in the configs of text models; the kernel's own optimizer has none to clip."""
    pl.seed_everything(0)
    model, data = MADE[name](tmp_path)
    if precision == "16-mixed":
        model.optimizer = functools.partial(torch.optim.Adam, lr=1e-3)
    clip = None if "Kernel" in name else 1.0
    used = trainer(
        precision, callbacks=[CountLogger(), SecondsLogger(), LanguageLogger(folder=str(tmp_path))], gradient_clip_val=clip
    )
    used.fit(model, data)
    logged = set(used.callback_metrics)
    for stage in (used.validate, used.test):
        (scores,) = stage(model, data, verbose=False)
        logged |= set(scores)
        losses = [value for key, value in scores.items() if key.endswith("/loss")]
        assert losses and all(math.isfinite(value) for value in losses), scores
    log_keys.check(name.split(",")[0], logged, model.count_name)
    outputs = used.predict(model, data)
    assert outputs
    assert all(parameter.isfinite().all() for parameter in model.parameters())


@pytest.mark.cases(gate=1)
@pytest.mark.parametrize("precision", ["64-true", "bf16-true"])
@pytest.mark.parametrize(
    "name",
    [
        "SemiSupervisedVAE, Marginalize",
        *(pytest.param(name, marks=pytest.mark.slow) for name in MADE if name.startswith(("Bit", "Ent", "Seq", "Sig", "Sup"))),
    ],
)
def test_pictures_are_drawn_in_a_precision(name: str, precision: str, tmp_path: Path) -> None:
    model, data = MADE[name](tmp_path)
    used = trainer(precision, callbacks=[CountLogger(), SecondsLogger(), *pictures(str(tmp_path / "run"))])
    used.fit(model, data)
    used.test(model, data, verbose=False)
    used.predict(model, data)
    assert list((tmp_path / "run").rglob("*.png"))


def test_without_a_gpu_lightning_replaces_16_mixed() -> None:
    with pytest.warns(UserWarning, match="Using `precision='bf16-mixed'` instead"):
        replaced = pl.Trainer(accelerator="cpu", precision="16-mixed", logger=False)
    assert replaced.precision == "bf16-mixed"


@pytest.mark.gate
@pytest.mark.parametrize("algorithm", ["norm", "value"])
def test_a_fused_optimizer_clips_in_bf16_mixed_as_another_does(algorithm: str, tmp_path: Path) -> None:
    weights = []
    for fused in (True, False):
        pl.seed_everything(0)
        model, data = MADE["RobustClassifier, SafeKLDRO"](tmp_path)
        model.optimizer = functools.partial(torch.optim.SGD, lr=1.0, fused=fused)
        trainer("bf16-mixed", gradient_clip_val=1e-3, gradient_clip_algorithm=algorithm).fit(model, data)
        weights.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    torch.testing.assert_close(*weights)


def test_a_fused_optimizer_with_a_loss_scale_is_refused(tmp_path: Path) -> None:
    """The loss scale of 16-mixed is taken out in a fused step only, after gradients were clipped."""
    model, data = MADE["RobustClassifier, SafeKLDRO"](tmp_path)
    used = trainer("16-mixed", gradient_clip_val=1.0)
    with pytest.raises(ConfigurationError, match=r"clipping in 16-mixed but got Adam\(fused=True\). Use .*fused false, or"):
        used.fit(model, data)


def test_kernel_potentials_refuse_a_loss_scale(tmp_path: Path) -> None:
    model, data = MADE["EntropicTransport, KernelPotentials"](tmp_path)
    with pytest.raises(ConfigurationError, match="without a loss scale for kernel potentials"):
        trainer("16-mixed").fit(model, data)
