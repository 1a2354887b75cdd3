"""The sparse auto-encoder: against a plain one, its number of active units, dead units, its start and its refusals."""

from __future__ import annotations

import copy
import functools
import itertools
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor

from lit_sparse.cli import main
from lit_sparse.data import SyntheticRegressionDataModule
from lit_sparse.errors import ConfigurationError, DataError
from lit_sparse.mappings import (
    BatchTopK,
    Entmax,
    HardThreshold,
    HoyerProjection,
    JumpReLU,
    SparseMapping,
    Sparsemax,
    TopKEntmax,
)
from lit_sparse.metrics import ExplainedVariance
from lit_sparse.models import SparseAutoencoder
from lit_sparse.models.sparse_autoencoder import geometric_median
from lit_sparse.testing import concrete_subclasses
from tests.conftest import CONFIGS, ROOT, Command, metrics_of

from . import plain_autoencoder

D, WIDTH, K, SIZE = 12, 32, 3, 2000
MAPPINGS = [
    HardThreshold(K, nonneg=True),
    BatchTopK(K),
    JumpReLU(K, shape=(WIDTH,), start=1.5),
    HoyerProjection(0.8, nonneg=True),
    Sparsemax(),
    Entmax(1.5),
    TopKEntmax(K, gamma=4.0),
]


def data(size: int = SIZE, seed: int | None = None) -> Tensor:
    """Return sums of two or three of 32 directions, with an offset; other sums of the same directions with a seed."""
    generator = torch.Generator().manual_seed(0)
    directions = torch.nn.functional.normalize(torch.randn(WIDTH, D, generator=generator), dim=1)
    if seed is not None:
        generator.manual_seed(seed)
    codes = torch.rand(size, WIDTH, generator=generator) * (torch.rand(size, WIDTH, generator=generator) < 0.08)
    return 5 * codes @ directions + torch.arange(D) / 4


def started(mapping: SparseMapping, **options: float) -> SparseAutoencoder:
    torch.manual_seed(0)
    model = SparseAutoencoder(mapping, in_features=D, width=WIDTH, **options)  # type: ignore[arg-type]
    model.start_from(data())
    return model


def train(model: SparseAutoencoder, steps: int, x: Tensor, batch: int = 64, lr: float = 3e-3) -> SparseAutoencoder:
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for step in range(steps):
        rows = x[torch.randint(len(x), (batch,))]
        optimizer.zero_grad()
        model.run_step({"features": rows, "index": torch.arange(batch)}, step, "train")["loss"].backward()
        optimizer.step()
    return model.eval()


def explained(x: Tensor, made: Tensor) -> float:
    return 1 - float((x - made).square().sum() / (x - x.mean(0)).square().sum())


def test_top_k_explains_as_much_as_a_plain_reference() -> None:
    """The median of three seeds, within the spread of the seeds; the metric is the plain formula."""
    x, ours, plain = data(), [], []
    for seed in range(3):
        torch.manual_seed(seed)
        model = SparseAutoencoder(HardThreshold(K, nonneg=True), in_features=D, width=WIDTH)
        model.start_from(x)
        made = train(model, 200, x)(x).detach()
        ours.append(explained(x, made))
        metric = ExplainedVariance(D)
        metric.update(x[:700], made[:700])
        metric.update(x[700:], made[700:])
        assert float(metric.compute()) == pytest.approx(ours[-1], abs=1e-6)
        torch.manual_seed(seed)
        plain.append(explained(x, plain_autoencoder.train(x, WIDTH, K, 200, 64, 3e-3)))
    assert min(plain) > 0.65
    assert sorted(ours)[1] == pytest.approx(sorted(plain)[1], abs=0.03)


@pytest.mark.parametrize("mapping", MAPPINGS, ids=repr)
def test_active_units(mapping: SparseMapping) -> None:
    """Exactly k by top-k, k on average by BatchTopK and JumpReLU, at most k by top-k entmax; the others report theirs."""
    x = data()
    before = explained(x, started(mapping)(x).detach())
    model = train(started(mapping), 250, x, batch=256)
    with torch.no_grad():
        activity = model.encode(x)
        output = model.run_step({"features": x, "index": torch.arange(SIZE)}, 0, "val")
        assert explained(x, model(x).detach()) > max(0.3, before)
    l0 = (activity != 0).sum(1)
    assert output["support_size"].tolist() == l0.tolist()
    assert bool((activity >= 0).all())
    if isinstance(mapping, HardThreshold):
        assert set(l0.tolist()) == {K}
    elif isinstance(mapping, BatchTopK):
        assert float(l0.float().mean()) == pytest.approx(K, rel=0.01)
    elif isinstance(mapping, JumpReLU):
        assert float(l0.float().mean()) == pytest.approx(K, rel=0.2)
    elif isinstance(mapping, TopKEntmax):
        assert int(l0.max()) <= K
    assert float(model.dictionary.detach().norm(dim=1).sub(1).abs().max()) < 1e-6


@pytest.mark.gate
def test_batch_topk_keeps_k_of_fresh_examples() -> None:
    """After trainings at a constant learning rate, within 1 % on average."""
    fresh, l0 = data(20_000, seed=1), []
    for seed, batch in itertools.product(range(4), (64, 256)):
        model = started(BatchTopK(K))
        torch.manual_seed(seed)
        l0.append(float((train(model, 250, data(20_000, seed + 2), batch).encode(fresh) != 0).sum(1).double().mean()))
    assert sum(l0) / len(l0) == pytest.approx(K, rel=0.01)


@pytest.mark.parametrize(
    "mapping", [kind.examples()[0] for kind in concrete_subclasses(SparseMapping) if not kind.iterative], ids=repr
)
def test_the_activity_is_the_nearest_point_on_a_ray(mapping: SparseMapping) -> None:
    """Also for mappings that keep scores, whose result it then is."""
    scores = torch.randn(20, WIDTH, generator=torch.Generator().manual_seed(1)).double()
    p, y = mapping(scores), started(mapping)._activity(scores)
    share = (scores * p).sum(1).clamp_min(0) / p.square().sum(1).clamp_min(1e-300)
    torch.testing.assert_close(y, share.unsqueeze(1) * p)


def test_dead_units_come_back() -> None:
    """Units without activity for some examples get a gradient, by what the others leave; others do not get one."""
    model = started(HardThreshold(K, nonneg=True), dead_after=64)
    with torch.no_grad():
        model.encoder.bias[:20] = -3.0
    dead = torch.arange(WIDTH) < 20
    batch = {"features": data()[:64], "index": torch.arange(64)}
    for revived in (False, True):
        model.zero_grad()
        model.run_step(batch, 0, "train")["loss"].backward()
        assert model.encoder.weight.grad is not None
        assert bool((model.encoder.weight.grad[dead].norm(dim=1) > 0).any()) == revived
    assert bool((model.idle[dead] == 128).all()) and int(model.idle[~dead].min()) == 0
    x, off = data(), []
    for weight in (1.0, 0.0):
        model.auxiliary_weight = weight
        off.append(float((train(copy.deepcopy(model), 200, x).encode(x) == 0).all(0).float().mean()))
    assert off[0] < 0.7 * off[1]


def test_the_decoder_begins_at_the_geometric_median() -> None:
    x = torch.cat([data(), torch.full((40, D), 1e4)]).double()
    median = geometric_median(x)
    pull = torch.nn.functional.normalize(x - median, dim=1).sum(0)
    assert float(pull.norm()) < 1e-4 * len(x)
    assert float((median - data().mean(0)).norm()) < 2 < float((x.mean(0) - data().mean(0)).norm())


def test_a_fit_starts_from_its_data_and_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    """A run that is stopped and continued equals one that was not, to the last bit; the scale is not set again."""

    def fit(steps: int, checkpoint: str | None = None) -> tuple[SparseAutoencoder, pl.Trainer]:
        torch.manual_seed(0)
        adam = functools.partial(torch.optim.Adam, lr=1e-2)
        model = SparseAutoencoder(BatchTopK(2), in_features=5, width=16, dead_after=100, optimizer=adam)
        module = SyntheticRegressionDataModule(size=300, coefficients=(1.0, 2.0, 0.5, 3.0, 0.0), batch_size=16)
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "enable_checkpointing": False}
        trainer = pl.Trainer(max_steps=steps, accelerator="cpu", **quiet)  # type: ignore[arg-type]
        pl.seed_everything(3, verbose=False)
        trainer.fit(model, module, ckpt_path=checkpoint, weights_only=checkpoint and True)
        return model, trainer

    whole, trainer = fit(20)
    assert {"val/explained_variance", "val/dead_fraction", "val/l0", "train/l0"} <= set(trainer.callback_metrics)
    _, first = fit(7)
    first.save_checkpoint(tmp_path / "a.ckpt")
    again, _ = fit(20, str(tmp_path / "a.ckpt"))
    for name, value in whole.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    loaded = SparseAutoencoder.load_from_checkpoint(tmp_path / "a.ckpt", weights_only=True)
    assert loaded.started and float(loaded.scale) == float(whole.scale) != 1


@pytest.mark.gate
def test_killed_and_resumed_and_two_processes(lit_sparse: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that the system kills goes on as if it had not been, and two processes with half of each batch equal one."""
    fit = ("fit", "-c", str(ROOT / "tests" / "support" / "sae.yaml"), "--checkpoint_every_n_steps=4")
    killer = ("--trainer.callbacks=interruptions.KillAtStep", "--trainer.callbacks.step=31")  # 20 batches an epoch
    killed = lit_sparse(*fit, *killer, "--name=cut")
    assert killed.returncode == -9, killed.stderr
    two = lit_sparse(*fit, "-c", str(CONFIGS / "trainer" / "ddp_cpu.yaml"), "--data.init_args.batch_size=6", "--name=two")
    assert two.returncode == 0, two.stderr
    monkeypatch.chdir(tmp_path)
    for arguments in ([*fit, "--name=cut", "--ckpt_path", "last"], [*fit, "--name=whole"]):
        assert main(list(arguments)) == 0

    def state(name: str) -> dict[str, Tensor]:
        return torch.load(tmp_path / "runs" / name / "0" / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]  # type: ignore[no-any-return]

    whole = state("whole")
    assert int(whole["idle"].max()) >= 60, "some units were dead"
    for name, tolerance in (("cut", 1e-6), ("two", 1e-4)):
        assert state(name).keys() == whole.keys()
        for key, value in whole.items():
            torch.testing.assert_close(state(name)[key], value, atol=tolerance, rtol=tolerance)
        expected, got = (metrics_of(tmp_path / "runs" / run / "0") for run in ("whole", name))
        for key in ("val/explained_variance", "val/dead_fraction", "val/l0", "train/loss"):
            assert got[key][-1] == pytest.approx(expected[key][-1], rel=1e-3 if name == "two" else 1e-6), key


def test_refusals() -> None:
    with pytest.raises(ConfigurationError, match="over the last dimension"):
        SparseAutoencoder(Sparsemax(dim=0), in_features=D, width=WIDTH)
    with pytest.raises(ConfigurationError, match="SparseMapping"):
        SparseAutoencoder(torch.nn.ReLU(), in_features=D, width=WIDTH)  # type: ignore[arg-type]
    model = started(Sparsemax())
    for wrong in (torch.ones(9, D), data().index_fill(0, torch.tensor([3]), torch.nan)):
        with pytest.raises(DataError, match="finite activations that differ"):
            model.start_from(wrong)
    with pytest.raises(ConfigurationError, match="in_features=12"):
        model.run_step({"features": torch.ones(2, 3), "index": torch.arange(2)}, 0, "val")
    with pytest.raises(ConfigurationError, match="ActivationDataModule"):
        model.run_step({"pixels": torch.ones(2, 3), "index": torch.arange(2)}, 0, "val")
    with pytest.raises(ConfigurationError, match="start_from"):
        SparseAutoencoder(Sparsemax(), in_features=D, width=WIDTH).initialize(None)
