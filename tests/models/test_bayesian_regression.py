"""Bayesian regression: its loss over minibatches and weights, its posteriors against exact ones, and its checkpoints."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor

from lit_sparse.coresets import (
    Coreset,
    GaussianPosterior,
    Likelihood,
    LogisticLikelihood,
    NormalLikelihood,
    PoissonLikelihood,
)
from lit_sparse.coresets.posteriors import forward_kl, laplace_posterior, linear_posterior
from lit_sparse.data.coreset import CoresetDataModule
from lit_sparse.data.regression.synthetic import SyntheticRegressionDataModule
from lit_sparse.errors import ConfigurationError, DataError
from lit_sparse.models import BayesianRegression

LIKELIHOODS: list[tuple[str, Likelihood]] = [
    ("normal", NormalLikelihood(0.5)),
    ("logistic", LogisticLikelihood()),
    ("poisson", PoissonLikelihood()),
]
SGD = functools.partial(torch.optim.SGD, lr=0.3)


def rows(family: Any = "logistic", size: int = 400, **options: Any) -> SyntheticRegressionDataModule:
    coefficients = (1.0, -0.7, 0.3)
    options = {"val_size": 20, "test_size": 20, "batch_size": 90, "coefficients": coefficients, "noise": 0.5, **options}
    return SyntheticRegressionDataModule(family, size=size, **options)


def trainer(**options: Any) -> pl.Trainer:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    return pl.Trainer(accelerator="cpu", **{**quiet, **options})


def train_rows(data: SyntheticRegressionDataModule) -> tuple[Tensor, Tensor]:
    data.setup("fit")
    batch = data.fetch("train", 0, torch.arange(data.size("train")))
    return batch["features"].double(), batch["target"].double()


def drawn(family: str, size: int = 24) -> dict[str, Tensor]:
    features, target = train_rows(rows(family, size + 40))
    return {"features": features, "target": target, "index": torch.arange(size)}


def part(batch: dict[str, Tensor], which: Tensor) -> dict[str, Tensor]:
    return {name: values[which] for name, values in batch.items()}


def at(likelihood: Likelihood, **options: Any) -> BayesianRegression:
    """Return a float64 model somewhere else than where it starts."""
    torch.manual_seed(3)
    model = BayesianRegression(likelihood, in_features=3, **{"prior_variance": 2.0, "prior_mean": 0.5, **options}).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize(("family", "likelihood"), LIKELIHOODS)
@pytest.mark.parametrize("fit", ["map", "laplace"])
def test_the_loss_is_the_log_posterior_an_example(family: str, likelihood: Likelihood, fit: Any) -> None:
    """Up to the constant of the prior's density; minibatches of any sizes give it on average."""
    model, batch = at(likelihood, fit=fit, examples=24), drawn(family)
    prior = torch.distributions.Normal(torch.tensor(0.5).double(), math.sqrt(2.0))
    at_best = prior.log_prob(prior.mean)
    expected = -likelihood.log_prob(batch["features"] @ model.mean, batch["target"]).sum()
    expected = (expected - (prior.log_prob(model.mean) - at_best).sum()) / 24
    whole = model.run_step(batch, 0, "train")["loss"]
    torch.testing.assert_close(whole, expected)
    order = torch.randperm(24)
    losses = [model.run_step(part(batch, some), 1, "train")["loss"] for some in order.split(6)]
    torch.testing.assert_close(torch.stack(losses).mean(), whole)
    uneven = [(len(some), model.run_step(part(batch, some), 1, "train")["loss"]) for some in order.split(7)]
    torch.testing.assert_close(sum(n * loss for n, loss in uneven) / 24, whole)
    (slope,) = torch.autograd.grad(whole, [model.mean])
    (same,) = torch.autograd.grad(torch.stack(losses).mean(), [model.mean])
    torch.testing.assert_close(slope, same)


@pytest.mark.parametrize(("family", "likelihood"), LIKELIHOODS)
@pytest.mark.parametrize("fit", ["map", "laplace"])
def test_weights_are_repeated_rows(family: str, likelihood: Likelihood, fit: Any) -> None:
    """Weights in units in which the mean over the batch of weight times loss estimates the mean loss of all N examples."""
    batch, times = drawn(family), torch.randint(4, (24,), generator=torch.Generator().manual_seed(0))
    total = int(times.sum())
    model = at(likelihood, fit=fit, examples=total)
    repeated = model.run_step(part(batch, torch.arange(24).repeat_interleave(times)), 0, "train")["loss"]
    weighted = model.run_step({**batch, "weight": times * 24 / total}, 0, "train")["loss"]
    torch.testing.assert_close(weighted, repeated)
    slopes = [torch.autograd.grad(loss, [model.mean])[0] for loss in (weighted, repeated)]
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize(("family", "likelihood"), LIKELIHOODS)
def test_the_variational_loss_is_the_negative_evidence_bound(family: str, likelihood: Likelihood) -> None:
    """KL by torch, and the expected log-likelihood by draws of all coefficients at once."""
    model, batch = at(likelihood, fit="variational", examples=24, num_samples=40_000), drawn(family)
    posterior = model.posterior()
    q = torch.distributions.MultivariateNormal(posterior.mean, posterior.covariance)
    prior = torch.distributions.MultivariateNormal(model.prior.mean, model.prior.covariance)
    thetas = posterior.sample(40_000, torch.Generator().manual_seed(0))
    expected = -likelihood.log_prob(thetas @ batch["features"].T, batch["target"]).mean(0).sum()
    expected = (expected + torch.distributions.kl_divergence(q, prior)) / 24
    found = model.run_step(batch, 0, "train")["loss"]
    torch.testing.assert_close(found.detach(), expected, rtol=0.02, atol=0.02)
    penalty = model._penalty().detach()
    torch.testing.assert_close(penalty, torch.distributions.kl_divergence(q, prior))
    assert float(penalty) == pytest.approx(forward_kl(posterior, model.prior), rel=1e-9)
    fresh = BayesianRegression(likelihood, in_features=3, fit="variational", prior_variance=3.0, prior_mean=1.0)
    assert float(fresh._penalty().detach()) == pytest.approx(0.0, abs=1e-6), "it begins at the prior"


@pytest.mark.parametrize(("family", "likelihood"), LIKELIHOODS)
@pytest.mark.parametrize("fit", ["map", "laplace", "variational"])
def test_the_scores_of_validation(family: str, likelihood: Likelihood, fit: Any) -> None:
    """The density equals a mean over draws of coefficients. Errors of the predicted mean do not depend on the batch."""
    model, batch = at(likelihood, fit=fit, num_samples=20_000), drawn(family)
    if fit == "laplace":
        model.covariance.copy_(torch.diag(torch.tensor([0.2, 0.1, 0.3])))
    thetas = model.mean.detach().unsqueeze(0)
    if fit != "map":
        thetas = model.posterior().sample(20_000, torch.Generator().manual_seed(0))
    values = likelihood.log_prob(thetas @ batch["features"].T, batch["target"])
    expected = math.log(len(thetas)) - values.logsumexp(0)
    examples = model.run_step(batch, 0, "val")["per_example"]
    torch.testing.assert_close(examples["nll"], expected, rtol=0.02, atol=0.02)
    mean = likelihood.mean(batch["features"] @ model.mean.detach())
    torch.testing.assert_close(examples["squared_error"], (mean - batch["target"]).square())
    few = model.run_step(part(batch, torch.tensor([20, 4, 9])), 1, "val")["per_example"]
    for name, found in few.items():
        torch.testing.assert_close(found, examples[name][[20, 4, 9]])
    if family == "logistic":
        assert torch.equal(examples["accuracy"], ((mean > 0.5).double() == batch["target"]).double())
        signed = model.run_step({**batch, "target": 2 * batch["target"] - 1}, 0, "val")["per_example"]
        for name, found in signed.items():
            torch.testing.assert_close(found, examples[name])
    else:
        assert "accuracy" not in examples
    predicted = model.predict_step(batch, 0)
    torch.testing.assert_close(predicted["mean"].detach(), mean)
    spread = torch.zeros(24).double()
    if fit != "map":
        spread = (batch["features"] @ model.posterior().covariance * batch["features"]).sum(1).sqrt()
    torch.testing.assert_close(predicted["eta_std"].detach(), spread)
    assert torch.equal(predicted["index"], batch["index"])


def exact(family: str, likelihood: Likelihood, data: SyntheticRegressionDataModule, variance: float = 1.0) -> GaussianPosterior:
    features, target = train_rows(data)
    return laplace_posterior(likelihood, features, target, prior=GaussianPosterior.isotropic(3, variance))


@pytest.mark.cases(gate=1)
@pytest.mark.parametrize(("family", "likelihood"), LIKELIHOODS)
def test_laplace_by_minibatches_is_laplace(family: str, likelihood: Likelihood) -> None:
    data = rows(family)
    optimizer = functools.partial(torch.optim.Adam, lr=0.05)
    scheduler = functools.partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.92)
    pl.seed_everything(0)
    model = BayesianRegression(likelihood, in_features=3, prior_variance=1.5, optimizer=optimizer, lr_scheduler=scheduler)
    run = trainer(max_epochs=60)
    run.fit(model, data)
    expected = exact(family, likelihood, data, 1.5)
    found = model.posterior()
    deviation = expected.covariance.diagonal().sqrt()
    assert float(((found.mean - expected.mean) / deviation).abs().max()) < 0.1
    features, target = train_rows(data)

    def negative(theta: Tensor) -> Tensor:
        return theta @ theta / 3.0 - likelihood.log_prob(features @ theta, target).sum()

    hessian = torch.autograd.functional.hessian(negative, found.mean)
    torch.testing.assert_close(found.covariance, torch.linalg.inv(hessian), rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(found.covariance, expected.covariance, rtol=0.03, atol=1e-4)
    assert forward_kl(expected, found) < 0.02
    assert {"val/loss", "val/nll", "val/squared_error"} <= set(run.callback_metrics)


@pytest.mark.cases(gate=1)
@pytest.mark.parametrize(("family", "likelihood"), LIKELIHOODS)
def test_laplace_of_a_coreset_is_that_of_its_weights(tmp_path: Path, family: str, likelihood: Likelihood) -> None:
    data = rows(family, batch_size=400)
    features, target = train_rows(data)
    index = torch.arange(5, 360, 9)
    weights = torch.linspace(1.0, 17.0, len(index))
    Coreset(index, weights, 0.0, size=360).save(tmp_path / "coreset.npz")
    wrapped = CoresetDataModule(rows(family, batch_size=400), coreset=str(tmp_path / "coreset.npz"))
    pl.seed_everything(0)
    optimizer = functools.partial(torch.optim.Adam, lr=0.1)
    scheduler = functools.partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.97)
    model = BayesianRegression(likelihood, in_features=3, optimizer=optimizer, lr_scheduler=scheduler)
    run = trainer(max_epochs=250, check_val_every_n_epoch=250)
    run.fit(model, wrapped)
    expected = laplace_posterior(likelihood, features[index], target[index], weights)
    assert forward_kl(expected, model.posterior()) < 1e-3
    torch.testing.assert_close(model.posterior().covariance, expected.covariance, rtol=0.02, atol=1e-5)


@pytest.mark.gate
def test_the_variational_posterior_approaches_the_exact_one() -> None:
    """For linear regression, whose posterior is normal, with any covariance."""
    data = rows("normal", batch_size=120)
    features, target = train_rows(data)
    expected = linear_posterior(features, target, variance=0.5)
    pl.seed_everything(0)
    optimizer = functools.partial(torch.optim.Adam, lr=0.03)
    scheduler = functools.partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.97)
    model = BayesianRegression(
        NormalLikelihood(0.5), in_features=3, fit="variational", num_samples=50, optimizer=optimizer, lr_scheduler=scheduler
    )
    trainer(max_epochs=150, check_val_every_n_epoch=150).fit(model, data)
    found = model.posterior()
    assert forward_kl(expected, found) < 0.05
    assert forward_kl(found, expected) < 0.05
    torch.testing.assert_close(found.covariance, expected.covariance, rtol=0.2, atol=1e-4)


@pytest.mark.gate
def test_with_everything_known_it_finds_the_mode_of_a_prior_elsewhere() -> None:
    data = rows("normal", size=60, batch_size=60)
    features, target = train_rows(data)
    prior = GaussianPosterior.isotropic(3, 0.02, 4.0)
    expected = linear_posterior(features, target, prior=prior, variance=0.5)
    model = BayesianRegression(
        NormalLikelihood(0.5), in_features=3, fit="map", prior_mean=4.0, prior_variance=0.02, optimizer=SGD
    )
    trainer(max_epochs=400, limit_val_batches=0).fit(model, data)
    torch.testing.assert_close(model.mean.detach().double(), expected.mean, rtol=0, atol=1e-3)


@pytest.mark.parametrize("fit", ["map", "laplace", "variational"])
@pytest.mark.parametrize(("family", "likelihood"), LIKELIHOODS)
def test_checkpoints_load(tmp_path: Path, family: str, likelihood: Likelihood, fit: Any) -> None:
    data = rows(family)
    model = BayesianRegression(
        likelihood, in_features=3, fit=fit, prior_variance=2.5, prior_mean=-0.5, num_samples=7, optimizer=SGD
    )
    run = trainer(max_epochs=1, limit_train_batches=2)
    run.fit(model, data)
    run.save_checkpoint(tmp_path / "a.ckpt")
    again = BayesianRegression.load_from_checkpoint(tmp_path / "a.ckpt", weights_only=True)
    assert repr(again.likelihood) == repr(likelihood)
    for name in ("in_features", "fit", "prior_variance", "prior_mean", "num_samples", "examples", "sample_seed"):
        assert getattr(again, name) == getattr(model, name)
    state = again.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    batch = data.fetch("test", 0, torch.arange(20))
    for name, value in again.predict_step(batch, 0).items():
        assert torch.equal(value, model.predict_step(batch, 0)[name])
    assert run.test(again, data, verbose=False)[0] == run.test(model, data, verbose=False)[0]


@pytest.mark.parametrize("fit", ["laplace", "variational"])
def test_resumed_training_is_uninterrupted_training(tmp_path: Path, fit: Any) -> None:
    adam = functools.partial(torch.optim.Adam, lr=0.05)

    def new() -> BayesianRegression:
        pl.seed_everything(0)
        return BayesianRegression(LogisticLikelihood(), in_features=3, fit=fit, num_samples=5, optimizer=adam)

    whole = new()
    trainer(max_epochs=4).fit(whole, rows())
    first = trainer(max_epochs=2)
    first.fit(new(), rows())
    first.save_checkpoint(tmp_path / "a.ckpt")
    rest = new()
    trainer(max_epochs=4).fit(rest, rows(), ckpt_path=tmp_path / "a.ckpt", weights_only=True)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, rest.state_dict()[name]), name


def test_other_numbers_of_features_and_no_posterior() -> None:
    words = "in_features=5 features but got 3. Set `in_features` to their number, including the intercept"
    with pytest.raises(ConfigurationError, match=words):
        trainer(max_epochs=1).fit(BayesianRegression(LogisticLikelihood(), in_features=5), rows())
    with pytest.raises(ConfigurationError, match="but got `fit: map`"):
        BayesianRegression(LogisticLikelihood(), in_features=5, fit="map").posterior()
    with pytest.raises(DataError, match="two classes"):
        trainer(max_epochs=1).fit(BayesianRegression(LogisticLikelihood(), in_features=3), rows("normal"))
    loader = torch.utils.data.DataLoader([{"features": torch.rand(3), "target": torch.tensor(1.0), "index": 0}])
    with pytest.raises(ConfigurationError, match="Expected a data module of lit_sparse"):
        trainer(max_epochs=1).fit(BayesianRegression(LogisticLikelihood(), in_features=3), loader, loader)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"likelihood": "logistic"}, "likelihood"),
        ({"in_features": 0}, "in_features"),
        ({"fit": "mcmc"}, "fit"),
        ({"prior_variance": 0.0}, "prior_variance"),
        ({"num_samples": 0}, "num_samples"),
        ({"examples": 0}, "examples"),
    ],
)
def test_arguments_are_checked(options: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"`{name}`"):
        BayesianRegression(**{"likelihood": LogisticLikelihood(), "in_features": 3, **options})


@pytest.mark.parametrize(
    "options",
    [
        {"max_steps": 7, "max_epochs": -1},
        {"max_epochs": 2, "limit_val_batches": 0},
        {"max_epochs": 3, "check_val_every_n_epoch": 2},
    ],
    ids=["steps", "no validation", "between validations"],
)
def test_the_covariance_is_that_of_the_last_coefficients(tmp_path: Path, options: dict[str, Any]) -> None:
    """In memory, and in a checkpoint that is written then, wherever training ends."""
    model, data = BayesianRegression(LogisticLikelihood(), in_features=3, optimizer=SGD), rows()
    run = trainer(num_sanity_val_steps=0, **options)
    run.fit(model, datamodule=data)
    features, _target = train_rows(data)
    eta = features @ model.mean.detach().double()
    precision = torch.eye(3).double() + features.T @ (eta.sigmoid() * (-eta).sigmoid()).unsqueeze(1).mul(features)
    torch.testing.assert_close(model.posterior().covariance, precision.inverse(), rtol=1e-4, atol=1e-7)
    run.save_checkpoint(tmp_path / "end.ckpt")
    loaded = BayesianRegression.load_from_checkpoint(tmp_path / "end.ckpt", weights_only=True)
    assert torch.equal(loaded.posterior().covariance, model.posterior().covariance)


def test_a_checkpoint_between_validations_holds_its_own_covariance(tmp_path: Path) -> None:
    saved = pl.callbacks.ModelCheckpoint(tmp_path, every_n_train_steps=3, save_top_k=-1)
    model, data = BayesianRegression(LogisticLikelihood(), in_features=3, optimizer=SGD), rows()
    trainer(max_steps=6, max_epochs=-1, enable_checkpointing=True, callbacks=[saved], limit_val_batches=0).fit(
        model, datamodule=data
    )
    features, _ = train_rows(data)
    for path in tmp_path.glob("*.ckpt"):
        loaded = BayesianRegression.load_from_checkpoint(path, weights_only=True)
        eta = features @ loaded.mean.detach().double()
        precision = torch.eye(3).double() + features.T @ (eta.sigmoid() * (-eta).sigmoid()).unsqueeze(1).mul(features)
        torch.testing.assert_close(loaded.posterior().covariance, precision.inverse(), rtol=1e-4, atol=1e-7)


def test_a_fit_that_diverges_says_so() -> None:
    steep = functools.partial(torch.optim.SGD, lr=1e20)
    model = BayesianRegression(PoissonLikelihood(), in_features=3, optimizer=steep)
    with pytest.raises(DataError, match="lower the learning rate"):
        trainer(max_epochs=2, num_sanity_val_steps=0).fit(model, datamodule=rows("poisson"))
    with torch.no_grad():
        model.mean.fill_(torch.nan)
    with pytest.raises(DataError, match="positive definite"):
        model.find_covariance()
