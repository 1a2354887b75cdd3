"""The bit-vector VAE, as a plain module and under a Trainer in Python."""

from __future__ import annotations

import functools
import itertools
import math
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor

from lit_sparse.callbacks import CountLogger
from lit_sparse.data import DigitsDataModule
from lit_sparse.errors import ConfigurationError
from lit_sparse.estimators import (
    Estimator,
    GumbelSoftmax,
    LatentBatch,
    LeaveOneOut,
    Marginalize,
    ScoreFunction,
    SumAndSample,
    TopKMarginalize,
)
from lit_sparse.mappings import functional as F
from lit_sparse.models import BitVectorVAE

ALL = torch.tensor(list(itertools.product((0.0, 1.0), repeat=8)), dtype=torch.float64)


def small(k: int = 10, **options: object) -> BitVectorVAE:
    torch.manual_seed(0)
    sizes = {"in_features": 64, "bits": 8, "levels": 17, "encoder_hidden": (32,), "decoder_hidden": (16,)}
    return BitVectorVAE(TopKMarginalize(k), **{**sizes, **options})  # type: ignore[arg-type]


def digits(**options: object) -> DigitsDataModule:
    data = DigitsDataModule(binarize=False, labelled=0, **{"test_size": 20, "val_size": 20, **options})  # type: ignore[arg-type]
    data.setup()
    return data


def batch(size: int = 12) -> dict[str, Tensor]:
    return {name: values.double() if name == "pixels" else values for name, values in
            digits().fetch("test", 0, torch.arange(size)).items()}  # fmt: skip


def trainer(folder: Path, **options: object) -> pl.Trainer:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    return pl.Trainer(default_root_dir=folder, **{**quiet, "enable_checkpointing": False, **options})  # type: ignore[arg-type]


def log_likelihoods(model: BitVectorVAE, pixels: Tensor, values: Tensor = ALL) -> Tensor:
    """log p(x|z) of all images and all values, (B, V), from the layers themselves."""
    features = model.decoder(values.to(pixels.dtype)).reshape(len(values), model.in_features, model.pixel_features)
    logs = torch.nn.functional.linear(features, model.likelihood.weight, model.likelihood.bias).log_softmax(-1)
    grey = (pixels * (model.levels - 1)).round().long()
    return torch.stack([logs.gather(-1, x.expand(len(values), -1).unsqueeze(-1)).sum((-1, -2)) for x in grey])


def test_published_architecture_is_the_default() -> None:
    model = BitVectorVAE(TopKMarginalize(10))
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters() if name.endswith("weight")}
    assert list(shapes.values()) == [(128, 784), (32, 128), (128, 32), (3920, 128), (256, 5)]
    assert model.importance_samples == 1024


@pytest.mark.parametrize("k", [1, 10, 1000])
def test_negative_elbo_and_its_gradient_equal_those_over_all_vectors(k: int) -> None:
    model, images = small(k).double(), batch()
    pixels = images["pixels"]
    output = model.run_step(images, 0, "train")
    probs = F.topk_sparsemax(model.encoder(pixels) @ ALL.t(), k)
    distortion = -(probs * log_likelihoods(model, pixels)).sum(-1)
    rate = 8 * math.log(2) + torch.special.xlogy(probs, probs).sum(-1)
    torch.testing.assert_close(output["per_example"]["distortion"], distortion.detach())
    torch.testing.assert_close(output["per_example"]["rate"], rate.detach())
    torch.testing.assert_close(output["per_example"]["nelbo"], (distortion + rate).detach())
    assert torch.equal(output["decoder_calls"], (probs > 0).sum(-1))
    parameters = [parameter for parameter in model.parameters() if k > 1 or parameter.shape[0] != 8]
    got = torch.autograd.grad(output["loss"], parameters, allow_unused=True)
    # The entropy's slope at a probability of 0 is infinite; outside the support there is none.
    inside = torch.where(probs > 0, probs, 1.0)
    loss = (distortion + 8 * math.log(2) + (inside * inside.log()).sum(-1)).mean()
    for ours, theirs in zip(got, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True):
        if ours is None or theirs is None:
            assert k == 1
            assert (ours is None or not ours.any()) and (theirs is None or not theirs.any())
        else:
            torch.testing.assert_close(ours, theirs)


def exact_bits_per_dim(model: BitVectorVAE, pixels: Tensor) -> float:
    logs = log_likelihoods(model, pixels).detach().logsumexp(-1) - 8 * math.log(2)
    return float(-logs.mean()) / 64 / math.log(2)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> BitVectorVAE:
    """A model after some epochs, so that its posterior says something."""
    model = small(optimizer=functools.partial(torch.optim.Adam, lr=5e-3))
    trainer(tmp_path_factory.mktemp("trained"), max_epochs=3).fit(model, digits(batch_size=32))
    return model.eval()


@pytest.mark.gate
def test_training_improves_all_it_should(tmp_path: Path) -> None:
    model = small(optimizer=functools.partial(torch.optim.Adam, lr=5e-3))
    fitting = trainer(tmp_path, max_epochs=8, callbacks=[CountLogger()])
    fitting.validate(model, digits(), verbose=False)
    before = dict(fitting.callback_metrics)
    fitting.fit(model, digits(batch_size=32))
    after = fitting.callback_metrics
    assert float(after["val/nelbo"]) < 0.75 * float(before["val/nelbo"])
    assert float(after["val/decoder_calls_mean"]) < float(before["val/decoder_calls_mean"])
    assert float(after["val/nelbo"]) == pytest.approx(float(after["val/rate"] + after["val/distortion"]))


@pytest.mark.gate
def test_bits_per_dimension_agree_with_the_exact_sum(trained: BitVectorVAE, tmp_path: Path) -> None:
    """For the sparse posterior of a trained model; however the images are batched."""
    runs = [trainer(tmp_path).test(trained, digits(eval_batch_size=size), verbose=False)[0] for size in (20, 3)]
    for name, value in runs[0].items():
        assert runs[1][name] == pytest.approx(value, rel=1e-5), name
    value, error = (runs[0][f"test/bits_per_dim{end}"] for end in ("", "_standard_error"))
    expected = exact_bits_per_dim(trained, digits().fetch("test", 0, torch.arange(20))["pixels"])
    assert 0 < error < 0.01
    assert abs(value - expected) <= 3 * error
    assert expected * 64 * math.log(2) < runs[0]["test/nelbo"], "it is a bound"


@pytest.mark.gate
def test_bits_per_dimension_of_a_posterior_over_all_vectors_are_exact(trained: BitVectorVAE, tmp_path: Path) -> None:
    model = small(256)
    model.load_state_dict(trained.state_dict())
    with torch.no_grad():
        model.encoder[-1].weight.zero_()
        model.encoder[-1].bias.zero_()
    (found,) = trainer(tmp_path, callbacks=[CountLogger()]).test(model, digits(), verbose=False)
    assert found["test/support_size_p10"] == 256
    expected = exact_bits_per_dim(model, digits().fetch("test", 0, torch.arange(20))["pixels"])
    assert found["test/bits_per_dim"] == pytest.approx(expected, rel=1e-6)
    assert found["test/bits_per_dim_standard_error"] == 0
    assert found["test/rate"] == pytest.approx(0, abs=1e-5)


def test_scores_do_not_depend_on_the_batch() -> None:
    model, images = small().double(), batch()
    whole = model.run_step(images, 0, "val")["per_example"]["nelbo"]
    parts = [model.run_step({k: v[i : i + 5] for k, v in images.items()}, 1, "val")["per_example"]["nelbo"] for i in (0, 5, 10)]
    torch.testing.assert_close(torch.cat(parts), whole)


def test_a_broken_image_harms_no_other() -> None:
    model, images = small().double(), batch()
    whole = model.run_step(images, 1, "val")["per_example"]["nelbo"]
    with torch.no_grad():
        logits = model.encoder(images["pixels"])
        logits[3] = torch.nan
    model.encoder.forward = lambda pixels: logits  # type: ignore[method-assign]
    broken = model.run_step(images, 1, "val")["per_example"]["nelbo"]
    assert broken.isnan().nonzero().tolist() == [[3]]
    torch.testing.assert_close(broken[4:], whole[4:])


def test_scores_pass_through_the_estimators_scale() -> None:
    class Halved(TopKMarginalize):
        def scores_from_logits(self, logits: Tensor) -> Tensor:
            return (logits + 1) / 2

    model = small()
    pixels = batch()["pixels"].float()
    plain = model(pixels)
    model.estimator = Halved(10)
    assert torch.equal(model(pixels), (plain + 1) / 2)


def test_what_is_drawn_is_the_posterior_mean() -> None:
    model, images = small().double(), batch()
    artifacts = model.run_step(images, 0, "val")["artifacts"]
    assert artifacts["images"].shape == artifacts["reconstructions"].shape == (12, 64)
    probs = F.topk_sparsemax(model.encoder(images["pixels"]) @ ALL.t(), 10)
    torch.testing.assert_close(artifacts["reconstructions"], (probs @ model.generate(ALL)).detach())
    grey = model.likelihood.weight.new_tensor(range(17))
    features = model.decoder(ALL).reshape(256, 64, 5)
    torch.testing.assert_close(model.generate(ALL), torch.nn.functional.linear(
        features, model.likelihood.weight, model.likelihood.bias).softmax(-1) @ grey / 16)  # fmt: skip
    assert model.run_step(images, 1, "val")["artifacts"] == {}
    assert model.run_step(images, 0, "train")["artifacts"] == {}


def test_predictions() -> None:
    model, images = small().double(), batch()
    with torch.no_grad():
        found = model.predict_step(images, 0)
    probs = F.topk_sparsemax(model.encoder(images["pixels"]) @ ALL.t(), 10)
    torch.testing.assert_close(found["marginals"], (probs @ ALL).detach())
    torch.testing.assert_close(found["nelbo"], model.run_step(images, 0, "val")["per_example"]["nelbo"])


def test_a_checkpoint_reloads(trained: BitVectorVAE, tmp_path: Path) -> None:
    fitting = trainer(tmp_path, max_epochs=0)
    fitting.fit(trained, digits())
    fitting.save_checkpoint(tmp_path / "model.ckpt")
    model = BitVectorVAE.load_from_checkpoint(tmp_path / "model.ckpt", weights_only=True)
    assert repr(model.estimator) == "TopKMarginalize(k=10)"
    assert (model.bits, model.levels) == (8, 17)
    pixels = digits().fetch("test", 0, torch.arange(9))["pixels"]
    assert torch.equal(model(pixels), trained(pixels))


def test_every_grey_level_is_its_own() -> None:
    model = small(in_features=256, levels=256)
    latent = LatentBatch(ALL[:1].float(), torch.zeros(1, dtype=torch.int64))
    features = model.decoder(latent.values).reshape(1, 256, 5)
    expected = -model.likelihood(features, torch.arange(256).unsqueeze(0))
    torch.testing.assert_close(model.distortion(torch.arange(256.0).unsqueeze(0) / 255, latent), expected)


def test_draws_of_the_test_depend_on_the_index() -> None:
    model, images, found = small(importance_samples=50), batch(1), []
    images["pixels"] = images["pixels"].float()
    for index in (0, 1, 0):
        model.stage_metrics("test").reset()
        model.run_step({**images, "index": torch.tensor([index])}, 0, "test")
        found.append(float(model.stage_metrics("test")["bits_per_dim"].compute()["bits_per_dim"]))
    assert found[0] != found[1]
    assert found[0] == found[2]


@pytest.mark.parametrize("stage", ["train", "val", "test"])
def test_images_of_another_size(stage: str) -> None:
    with pytest.raises(ConfigurationError, match="in_features=64"):
        small().run_step({"pixels": torch.zeros(3, 784), "index": torch.arange(3)}, 0, stage)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: BitVectorVAE(Marginalize()), "an estimator over bit vectors but got Marginalize"),
        (lambda: small(bits=0), "`bits`"),
        (lambda: small(levels=1), "`levels`"),
        (lambda: small(importance_samples=1), "`importance_samples`"),
    ],
)
def test_bad_arguments(call: object, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        call()  # type: ignore[operator]


def test_distortion_is_that_of_a_categorical_distribution() -> None:
    model, images = small().double(), batch()
    latent = LatentBatch(ALL[:12], torch.arange(12))
    expected = -log_likelihoods(model, images["pixels"])[torch.arange(12), torch.arange(12)]
    torch.testing.assert_close(model.distortion(images["pixels"], latent), expected)


SAMPLERS = [
    ScoreFunction(latent="bits"),
    ScoreFunction("self_critic", "bits"),
    ScoreFunction("learnt", "bits"),
    LeaveOneOut(2, "bits", evaluation="sample"),
    SumAndSample(2, "bits"),
    GumbelSoftmax(latent="bits"),
    GumbelSoftmax(straight_through=True, latent="bits"),
]


@pytest.mark.cases(quick=2)
@pytest.mark.parametrize("estimator", SAMPLERS, ids=repr)
def test_samplers_train_test_and_predict(estimator: Estimator, tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"in_features": 64, "bits": 8, "levels": 17, "encoder_hidden": (32,), "decoder_hidden": (16,)}
    model = BitVectorVAE(estimator, optimizer=functools.partial(torch.optim.Adam, lr=5e-3), **sizes)  # type: ignore[arg-type]
    fitting = trainer(tmp_path, max_epochs=2)
    fitting.validate(model, digits(), verbose=False)
    before = float(fitting.callback_metrics["val/distortion"])
    fitting.fit(model, digits(batch_size=32))
    assert float(fitting.callback_metrics["val/distortion"]) < before
    (tested,) = fitting.test(model, digits(), verbose=False)
    pixels = torch.cat([images["pixels"] for images in digits().test_dataloader()])
    off = abs(tested["test/bits_per_dim"] - exact_bits_per_dim(model, pixels))
    assert off < 4 * tested["test/bits_per_dim_standard_error"]
    predicted = model.predict_step(digits().fetch("test", 0, torch.arange(5)), 0)
    torch.testing.assert_close(predicted["marginals"], model.encoder(pixels[:5]).sigmoid())
    images = model.run_step(digits().fetch("test", 0, torch.arange(5)), 0, "val")["artifacts"]["reconstructions"]
    assert 0.5 < float(images.mean() / pixels[:5].mean()) < 2, "as bright as the images"
