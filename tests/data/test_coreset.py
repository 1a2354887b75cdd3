"""Training on a coreset of any data module: weights, checkpoints, processes, bad input."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from lit_sparse.cli import main
from lit_sparse.coresets import (
    GIGA,
    Coreset,
    Examples,
    LogLikelihoodVectors,
    NonnegativeOMP,
    NormalLikelihood,
    SparseVI,
    Uniform,
)
from lit_sparse.data import CoresetDataModule, DigitsDataModule, SyntheticRegressionDataModule
from lit_sparse.errors import ConfigurationError, DataError
from tests.conftest import CONFIGS, ROOT, Command

CORESET = ("-c", str(ROOT / "tests" / "support" / "coreset.yaml"))
PROXY = (
    *CORESET,
    *("--data.class_path", "DigitsDataModule", "--data.init_args.labelled=1.0", "--data.init_args.binarize=false"),
)


def pixels(examples: Examples) -> Tensor:
    found: Tensor = examples[torch.arange(len(examples))]["pixels"]
    return found


def digits(**options: Any) -> CoresetDataModule:
    base = DigitsDataModule(labelled=1.0, binarize=False, batch_size=16)
    data = CoresetDataModule(
        base, options.pop("selector", GIGA()), options.pop("k", 50), options.pop("vectors", pixels), **options
    )
    data.setup("fit")
    return data


def test_batches_are_those_of_the_other_with_weights() -> None:
    data = digits()
    coreset = data.coreset
    assert coreset.size == 1257
    places = torch.arange(len(coreset))
    batch = data.fetch("train", 0, places)
    expected = data.base.fetch("train", 0, coreset.indices)
    assert torch.equal(batch["index"], coreset.indices)
    for name, value in expected.items():
        assert torch.equal(batch[name], value)
    # the mean of weight times anything estimates the mean over all examples: here of what the vectors are
    whole = pixels(Examples(lambda indices: data.base.fetch("train", 0, indices), 1257))
    estimate = (batch["weight"].unsqueeze(1) * batch["pixels"]).mean(0)
    assert float((estimate - whole.mean(0)).norm()) == pytest.approx(coreset.objective**0.5 / 1257, rel=1e-3)
    assert "weight" not in data.fetch("val", 0, torch.arange(3))


def test_an_epoch_goes_once_through_the_coreset() -> None:
    data = digits()
    seen = torch.cat([batch["index"] for batch in data.train_dataloader()])
    assert sorted(seen.tolist()) == data.coreset.indices.tolist()
    assert data.size("val") == 180
    assert len(next(iter(data.val_dataloader()))["label"]) == 180
    assert data.shape == (8, 8)  # other attributes too


def test_shares_classes_and_normalized_weights() -> None:
    data = digits(selector=Uniform(), k=0.1, stratify="label", normalize=True)
    assert len(data.coreset) == 126
    batch = data.fetch("train", 0, torch.arange(126))
    assert float(batch["weight"].mean()) == pytest.approx(1)
    labels = data.base.fetch("train", 0, torch.arange(1257))["label"]
    counts, wanted = (torch.bincount(some, minlength=10) for some in (batch["label"], labels))
    assert bool(((counts - 0.1 * wanted).abs() <= 1).all())


def test_candidates_are_what_the_other_trains_on() -> None:
    base = DigitsDataModule(labelled=100.0, labelled_only=True, binarize=False)
    data = CoresetDataModule(base, Uniform(), 50, lambda examples: torch.randn(len(examples), 2))
    data.setup("fit")
    assert data.coreset.size == 100
    assert bool((data.fetch("train", 0, torch.arange(50))["label"] >= 0).all())
    partly = CoresetDataModule(DigitsDataModule(labelled=100.0), Uniform(), 50, pixels, stratify="label")
    partly.setup("fit")
    with pytest.raises(DataError, match="got 1157 unlabelled"):
        partly.size("train")


def test_names_of_the_other_are_its_own() -> None:
    """An argument of ours hides nothing that a model asks of the data."""

    class Named(DigitsDataModule):
        vectors = classes = "its own"

    data = CoresetDataModule(Named(labelled=1.0), Uniform(), 5, pixels)
    assert data.vectors == data.classes == "its own"


def test_a_coreset_of_weighted_examples_is_refused() -> None:
    data = CoresetDataModule(digits(), Uniform(), 5, pixels)
    data.setup("fit")
    with pytest.raises(ConfigurationError, match="`base` without weights"):
        data.fetch("train", 0, torch.arange(2))


def test_an_error_within_a_selection_is_told() -> None:
    with pytest.raises(RuntimeError, match="no_such_thing"):
        digits(vectors=lambda examples: pixels(examples).no_such_thing).size("train")  # type: ignore[attr-defined]


def test_streamed_vectors_select_the_same() -> None:
    base = SyntheticRegressionDataModule("normal", size=400, coefficients=(1.0, 2.0, 0.5))
    found = []
    for stream in (False, True):
        data = CoresetDataModule(
            base, NonnegativeOMP(), 8, LogLikelihoodVectors(NormalLikelihood(), num_samples=30), stream=stream
        )
        data.setup("fit")
        found.append(data.coreset)
    assert torch.equal(found[0].indices, found[1].indices)
    torch.testing.assert_close(found[0].weights, found[1].weights)


def test_sparse_vi_gets_what_it_draws_from() -> None:
    base = SyntheticRegressionDataModule("normal", size=60, coefficients=(1.0, 2.0))
    vectors = LogLikelihoodVectors(NormalLikelihood(), num_samples=20)
    shared, found = SparseVI(updates=5), []
    for selector in (shared, SparseVI(updates=5), SparseVI(lambda *asked: vectors(_examples(base)), updates=5)):
        data = CoresetDataModule(base, selector, 3, vectors)
        data.setup("fit")
        found.append(data.coreset)
    assert shared.resample is None, "it may serve other data next"
    assert torch.equal(found[0].weights, found[1].weights)
    assert not torch.equal(found[0].weights, found[2].weights), "the same vectors throughout give other weights"
    data = CoresetDataModule(DigitsDataModule(labelled=1.0), SparseVI(updates=2), 12, LogLikelihoodVectors(
        NormalLikelihood(), num_samples=5, features="pixels", target="label"), stratify="label")  # fmt: skip
    data.setup("fit")
    assert len(data.coreset) <= 12
    with pytest.raises(ConfigurationError, match="SparseVI"):
        CoresetDataModule.coreset.fget(digits(selector=SparseVI(), vectors=_Pixels()))  # type: ignore[attr-defined]


def _projection() -> type:
    from lit_sparse.coresets import FunctionVectors

    return FunctionVectors


def _examples(base: SyntheticRegressionDataModule) -> Examples:
    return Examples(lambda indices: base.fetch("train", 0, indices), base.size("train"))


class _Pixels(_projection()):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(lambda batch: batch["pixels"])


class Pairs(pl.LightningDataModule):
    """A data module that does not use this package."""

    def __init__(self, as_dict: bool) -> None:
        super().__init__()
        self.as_dict = as_dict
        self.rows = TensorDataset(torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2)

    def train_dataloader(self) -> DataLoader[Any]:
        def collate(rows: list[tuple[Tensor, Tensor]]) -> Any:
            x, y = (torch.stack(some) for some in zip(*rows, strict=True))
            return {"x": x, "y": y} if self.as_dict else [x, y]

        return DataLoader(self.rows, batch_size=8, shuffle=True, collate_fn=collate)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.rows, batch_size=8)


@pytest.mark.parametrize("as_dict", [False, True])
def test_any_data_module_with_a_loader_of_rows_serves(as_dict: bool) -> None:
    def vectors(examples: Examples) -> Tensor:
        batch = examples[torch.arange(len(examples))]
        return batch["x"] if as_dict else batch[0]

    data = CoresetDataModule(Pairs(as_dict), NonnegativeOMP(), 3, vectors)
    data.setup("fit")
    batch = next(iter(data.train_dataloader()))
    assert data.batch_size == 8
    weights, x = (batch["weight"], batch["x"]) if as_dict else (batch[2], batch[0])
    assert len(weights) == len(x) == len(data.coreset)
    data.batch_size = 2  # as `Tuner.scale_batch_size` does
    batch = next(iter(data.train_dataloader()))
    assert data.batch_size == len(batch["weight"] if as_dict else batch[2]) == 2 < len(data.coreset)
    assert len(list(data.val_dataloader())) == 5


def test_a_loader_of_something_else_is_refused() -> None:
    class Other(pl.LightningDataModule):
        def train_dataloader(self) -> list[int]:
            return [1, 2]

    data = CoresetDataModule(Other(), Uniform(), 1, pixels)
    data.setup("fit")
    with pytest.raises(ConfigurationError, match="ResumableDataModule"):
        data.size("train")


def test_a_saved_coreset_is_taken_in_place_of_a_selection(tmp_path: Path) -> None:
    coreset = digits().coreset
    coreset.save(tmp_path / "coreset.npz")
    base = DigitsDataModule(labelled=1.0, binarize=False)
    data = CoresetDataModule(base, coreset=str(tmp_path / "coreset.npz"))
    data.setup("fit")
    assert torch.equal(data.coreset.weights, coreset.weights)
    Coreset(coreset.indices, coreset.weights, 0.0, size=5000).save(tmp_path / "other.npz")
    other = CoresetDataModule(base, coreset=str(tmp_path / "other.npz"))
    other.setup("fit")
    with pytest.raises(DataError, match=r"5000 training examples, .* but got 1257"):
        other.size("train")
    Coreset(torch.arange(2), torch.zeros(2), 0.0, size=1257).save(tmp_path / "nothing.npz")
    nothing = CoresetDataModule(base, coreset=str(tmp_path / "nothing.npz"))
    nothing.setup("fit")
    with pytest.raises(DataError, match=r"a positive, finite sum but got 0\.0"):
        nothing.size("train")


def test_bad_arguments() -> None:
    base = DigitsDataModule(labelled=1.0)
    with pytest.raises(ConfigurationError, match="selector"):
        CoresetDataModule(base, None, 5, pixels, coreset="x.npz")
    for arguments in ((), (Uniform(),), (Uniform(), 5), (None, 5, pixels)):
        with pytest.raises(ConfigurationError, match="selector"):
            CoresetDataModule(base, *arguments)
    with pytest.raises(ConfigurationError, match="selector"):
        CoresetDataModule(base, Uniform(), 5, pixels, coreset="x.npz")
    for k in (0, -1, 2.5, True):
        with pytest.raises(ConfigurationError, match="`k`"):
            CoresetDataModule(base, Uniform(), k, pixels)
    with pytest.raises(ConfigurationError, match="at most 1257"):
        digits(k=1258).size("train")
    with pytest.raises(DataError, match="a vector for each of the 1257"):
        digits(vectors=lambda examples: torch.ones(3, 2)).size("train")
    with pytest.raises(DataError, match="example 4"):
        digits(vectors=lambda examples: pixels(examples).index_fill(0, torch.tensor([4]), torch.nan)).size("train")
    with pytest.raises(DataError, match="empty"):
        digits(vectors=lambda examples: torch.arange(1257.0).sub(628).unsqueeze(1)).size("train")


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network trained for an epoch, whose gradients tell the digits apart."""
    folder = tmp_path_factory.mktemp("proxy")
    common = ["--trainer.max_epochs=1", "--trainer.limit_train_batches=20", "--output_dir", str(folder), "--name=proxy"]
    yaml = folder / "proxy.yaml"
    lines = (ROOT / "tests" / "support" / "soae.yaml").read_text().splitlines()
    cut = lines.index("  callbacks:")
    text = "\n".join(lines[:cut]).replace("HoyerProjection, init_args: {sparseness: 0.7}", "torch.nn.Tanh")
    yaml.write_text(text.replace("supervision_epochs: 2", "supervision_epochs: 0"))
    assert main(["fit", "-c", str(yaml), *common]) == 0
    return folder / "proxy" / "0" / "checkpoints" / "last.ckpt"


@pytest.mark.slow
def test_killed_and_resumed_goes_on_with_its_coreset(lit_sparse: Command, proxy: Path, tmp_path: Path) -> None:
    """Even when what it was chosen by is gone; and both runs write it down."""
    shutil.copy(proxy, tmp_path / "proxy.ckpt")
    train = ("fit", *CORESET, "--checkpoint_every_n_steps=5")
    done = lit_sparse(*train, "--name=whole")
    assert done.returncode == 0, done.stderr
    (size,) = re.findall(r"coreset: (\d+) of 1595 examples", done.stderr + done.stdout)
    assert 100 < int(size) <= 120  # polishing may leave some without weight
    killer = ("--trainer.callbacks=interruptions.KillAtStep", "--trainer.callbacks.step=17")
    assert lit_sparse(*train, "--name=cut", *killer).returncode != 0
    (tmp_path / "proxy.ckpt").unlink()
    done = lit_sparse(*train, "--name=cut", "--ckpt_path", "last")
    assert done.returncode == 0, done.stderr
    whole, cut = (tmp_path / "runs" / name / "0" for name in ("whole", "cut"))
    expected, got = (torch.load(run / "checkpoints" / "last.ckpt", weights_only=True) for run in (whole, cut))
    for name, tensor in expected["state_dict"].items():
        assert torch.equal(got["state_dict"][name], tensor), name
    one, two = (Coreset.load(run / "coreset.npz") for run in (whole, cut))
    assert torch.equal(one.indices, two.indices)
    assert torch.equal(one.weights, two.weights)
    done = lit_sparse("test", *CORESET, "--name=cut", "--ckpt_path", "last")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.gate
def test_two_processes_train_on_the_coreset_of_one(lit_sparse: Command, proxy: Path, tmp_path: Path) -> None:
    shutil.copy(proxy, tmp_path / "proxy.ckpt")
    two = ("-c", str(CONFIGS / "trainer" / "ddp_cpu.yaml"), "--trainer.accelerator=cpu")
    for name, overlay, options in (
        ("one", (), ()),
        ("two", two, ("--data.init_args.base.init_args.batch_size=5",)),
        ("classes", two, ("--data.init_args.stratify=label",)),
    ):
        done = lit_sparse("fit", *CORESET, *overlay, *options, "--name", name, "--trainer.max_epochs=1")
        assert done.returncode == 0, done.stderr
    one, other, classes = (Coreset.load(tmp_path / "runs" / name / "0" / "coreset.npz") for name in ("one", "two", "classes"))
    assert torch.equal(one.indices, other.indices)
    torch.testing.assert_close(one.weights, other.weights, rtol=1e-4, atol=1e-4)
    assert len(classes) <= 120
