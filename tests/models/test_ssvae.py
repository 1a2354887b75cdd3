"""The semi-supervised VAE, as a plain module and under a Trainer in Python."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor

from lit_sparse.callbacks import CountLogger
from lit_sparse.cli import build_cli
from lit_sparse.data import DigitsDataModule
from lit_sparse.errors import CheckpointError, ConfigurationError
from lit_sparse.estimators import Marginalize
from lit_sparse.mappings import Softmax, SparseMapping, Sparsemax, TopKSparsemax
from lit_sparse.models import SemiSupervisedVAE
from lit_sparse.models.loaded_weights import load_initial_weights
from lit_sparse.random import seeded_normal
from tests.conftest import CONFIGS

DIGITS = CONFIGS / "ssvae" / "digits.yaml"


def small(mapping: SparseMapping, **options: object) -> SemiSupervisedVAE:
    torch.manual_seed(0)
    widths = {"classifier_hidden": (32,), "inference_hidden": (16,), "generator_hidden": (16,)}
    return SemiSupervisedVAE(mapping, Marginalize(), in_features=64, **{**widths, **options})  # type: ignore[arg-type]


def batch(split: str = "test", size: int = 12) -> dict[str, Tensor]:
    data = DigitsDataModule()
    data.setup()
    return data.fetch(split, 0, torch.arange(size))  # type: ignore[arg-type]


def trainer(folder: Path, **options: object) -> pl.Trainer:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    return pl.Trainer(default_root_dir=folder, **{**quiet, **options})  # type: ignore[arg-type]


def test_published_architecture_is_the_default() -> None:
    model = SemiSupervisedVAE(Sparsemax(), Marginalize())
    widths = [[layer.out_features for layer in part if hasattr(layer, "out_features")] for part in
              (model.classifier, model.inference, model.generator)]  # fmt: skip
    assert widths == [[256, 256, 256, 10], [128, 128, 16], [128, 128, 784]]
    assert [part[0].in_features for part in (model.classifier, model.inference, model.generator)] == [784, 794, 18]
    assert model.unlabelled_weight == 9


@pytest.mark.parametrize("mapping", [Sparsemax(), Softmax(), TopKSparsemax(2)], ids=repr)
def test_negative_elbo_equals_a_loop_over_classes(mapping: SparseMapping) -> None:
    model, images = small(mapping).double(), batch()
    pixels = images["pixels"].double()
    images["pixels"] = pixels
    noise = seeded_normal(0, images["index"], (10, 8)).double()
    probabilities = model.class_probabilities(pixels)
    expected = torch.zeros(12, dtype=torch.float64)
    for b in range(12):
        for z in range(10):
            q = probabilities[b, z]
            if q == 0:
                continue
            value = torch.nn.functional.one_hot(torch.tensor(z), 10).double()
            mean, log_variance = model.inference(torch.cat([pixels[b], value])).chunk(2)
            style = mean + (0.5 * log_variance).exp() * noise[b, z]
            logits = model.generator(torch.cat([style, value]))
            likelihood = torch.distributions.Bernoulli(logits=logits).log_prob(pixels[b]).sum()
            normal = torch.distributions.Normal(mean, (0.5 * log_variance).exp())
            divergence = torch.distributions.kl_divergence(normal, torch.distributions.Normal(0.0, 1.0)).sum()
            expected[b] += q * (-likelihood + divergence + math.log(10) + q.log())
    output = model.run_step(images, 0, "test")
    torch.testing.assert_close(output["per_example"]["nelbo"], expected.detach())
    assert torch.equal(output["decoder_calls"], (probabilities > 0).sum(-1))
    assert output["num_allowed"].tolist() == [10] * 12


def test_scores_do_not_depend_on_the_batch() -> None:
    model, images = small(Sparsemax()), batch(size=12)
    whole = model.run_step(images, 0, "test")["per_example"]["nelbo"]
    parts = [
        model.run_step({k: v[i : i + 5] for k, v in images.items()}, 1, "test")["per_example"]["nelbo"] for i in (0, 5, 10)
    ]
    torch.testing.assert_close(torch.cat(parts), whole)


def test_images_without_labels_are_not_scored() -> None:
    """Their classes are unknown, so they are neither wrong nor of zero loss; nothing is logged if none has a label."""
    model, images = small(Sparsemax()), batch(size=12)
    images["label"] = model(images["pixels"]).argmax(-1)
    images["label"][[1, 4]] = -100
    labelled = {name: values[[0, 2, 3, *range(5, 12)]] for name, values in images.items()}
    some, found = (model.run_step(each, 0, "val")["per_example"] for each in (images, labelled))
    assert some["accuracy"].tolist() == [1.0] * 10
    torch.testing.assert_close(some["classification"], found["classification"])
    assert len(some["nelbo"]) == 12
    images["label"][:] = -100
    assert not len(model.run_step(images, 0, "val")["per_example"]["accuracy"])


def test_training_loss_weighs_its_parts() -> None:
    model = small(Sparsemax(), unlabelled_weight=3.0)
    images = batch("train", 40)
    torch.manual_seed(1)
    both = model.run_step(images, 0, "train")
    is_labelled = images["label"] >= 0
    assert 0 < int(is_labelled.sum()) < 40
    only = {name: values[is_labelled] for name, values in images.items()}
    torch.manual_seed(1)
    labelled = model.run_step(only, 0, "train")
    assert labelled["decoder_calls"] is None
    assert len(both["decoder_calls"]) == int((~is_labelled).sum())
    expected = labelled["loss"] + 3 * both["per_example"]["nelbo"].mean()
    torch.testing.assert_close(both["loss"], expected)
    both["loss"].backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_two_mappings_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="Give the mapping only to the model"):
        SemiSupervisedVAE(Sparsemax(), Marginalize(Softmax()))


def test_generated_images_are_means() -> None:
    model = small(Sparsemax())
    images = model.generate(torch.randn(5, 8), torch.arange(5))
    assert images.shape == (5, 64)
    assert 0 <= float(images.min().detach()) <= float(images.max().detach()) <= 1


@pytest.fixture(scope="module")
def python_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Written by ``Trainer.fit`` in Python, with a mapping that is not the default."""
    folder = tmp_path_factory.mktemp("python")
    optimizer = functools.partial(torch.optim.Adam, lr=2e-3)
    model = small(TopKSparsemax(2, gamma=1.5), optimizer=optimizer)
    fitting = trainer(folder, max_epochs=1, callbacks=[CountLogger()])
    fitting.fit(model, DigitsDataModule())
    path = folder / "model.ckpt"
    fitting.save_checkpoint(path)
    return path


@pytest.fixture(scope="module")
def cli_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Written by the command line, with the same mapping."""
    folder = tmp_path_factory.mktemp("cli")
    mapping = ["--model.init_args.mapping=TopKSparsemax", "--model.init_args.mapping.init_args.k=2"]
    options = ["--trainer.max_epochs=1", "--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu"]
    arguments = [*mapping, "--model.init_args.mapping.init_args.gamma=1.5", *options, "--output_dir", str(folder)]
    build_cli(["fit", "-c", str(DIGITS), *arguments], run=True)
    return folder / "ssvae" / "digits" / "0" / "checkpoints" / "last.ckpt"


@pytest.mark.gate
@pytest.mark.parametrize("origin", ["python_checkpoint", "cli_checkpoint"])
def test_checkpoints_load_from_everywhere(origin: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    path: Path = request.getfixturevalue(origin)
    saved = torch.load(path, weights_only=True)
    models = [
        SemiSupervisedVAE.load_from_checkpoint(path, weights_only=True),
        build_cli(["test", "-c", str(DIGITS), "--ckpt_path", str(path), "--output_dir", str(tmp_path)], run=True).model,
    ]
    for model in models:
        assert isinstance(model, SemiSupervisedVAE)
        assert repr(model.mapping) == "TopKSparsemax(k=2, gamma=1.5, dim=-1)"
        assert model.estimator.mapping is model.mapping
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor.cpu(), saved["state_dict"][name])
        support = (model.class_probabilities(batch()["pixels"]) > 0).sum(-1)
        assert int(support.max()) <= 2, "exact zeros, as trained"


def test_a_python_checkpoint_keeps_its_optimizer(python_checkpoint: Path) -> None:
    model = SemiSupervisedVAE.load_from_checkpoint(python_checkpoint, weights_only=True)
    optimizer = model.configure_optimizers()
    assert isinstance(optimizer, torch.optim.Adam)
    assert optimizer.param_groups[0]["lr"] == 2e-3


def test_a_warm_start_reads_weights_once(python_checkpoint: Path, tmp_path: Path) -> None:
    model = small(TopKSparsemax(2), initial_weights=str(python_checkpoint))
    torch.manual_seed(5)
    fitting = trainer(tmp_path, max_epochs=0)
    fitting.fit(model, DigitsDataModule())
    saved = torch.load(python_checkpoint, weights_only=True)["state_dict"]
    assert all(torch.equal(tensor, saved[name]) for name, tensor in model.state_dict().items())
    fitting.save_checkpoint(tmp_path / "warm.ckpt")
    assert SemiSupervisedVAE.load_from_checkpoint(tmp_path / "warm.ckpt").initial_weights is None, "a file named by a file"
    assert SemiSupervisedVAE.load_from_checkpoint(tmp_path / "warm.ckpt", initial_weights="own").initial_weights == "own"


@pytest.mark.parametrize("kind", [torch.complex64, torch.int64])
def test_initial_weights_of_another_kind_of_numbers_are_refused(
    kind: torch.dtype, python_checkpoint: Path, tmp_path: Path
) -> None:
    checkpoint = torch.load(python_checkpoint, weights_only=True)
    checkpoint["state_dict"]["classifier.0.weight"] = checkpoint["state_dict"]["classifier.0.weight"].to(kind)
    torch.save(checkpoint, tmp_path / "other.ckpt")
    with pytest.raises(CheckpointError, match=r"values of type .* in `state_dict\.classifier\.0\.weight`"):
        load_initial_weights(small(Sparsemax()), str(tmp_path / "other.ckpt"))


class Derived(SemiSupervisedVAE):
    """A user's model that hands most arguments on."""

    def __init__(self, mapping: SparseMapping, estimator: Marginalize, *, extra: int = 3, **options: object) -> None:
        super().__init__(mapping, estimator, **options)  # type: ignore[arg-type]
        self.extra = extra


def test_a_derived_model_with_open_arguments_reloads(tmp_path: Path) -> None:
    fitting = trainer(tmp_path, max_epochs=0)
    fitting.fit(Derived(Sparsemax(gamma=0.5), Marginalize(), extra=5, in_features=64, classes=10), DigitsDataModule())
    fitting.save_checkpoint(tmp_path / "derived.ckpt")
    model = Derived.load_from_checkpoint(tmp_path / "derived.ckpt", weights_only=True)
    assert (model.extra, model.in_features, model.mapping.gamma) == (5, 64, 0.5)
