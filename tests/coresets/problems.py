"""Problems with known answers for tests of coresets, in float64 numpy: data, exact or sampled vectors, posteriors and KL."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh, solve_triangular
from scipy.special import expit

__all__ = [
    "gaussian",
    "gaussian_kl",
    "gaussian_posterior",
    "gaussian_reverse_kl",
    "laplace",
    "large_logistic",
    "log_likelihoods",
    "read",
    "reverse_kl",
    "symmetrized_kl",
    "vectors",
    "whiten",
]

Array = NDArray[np.float64]
Kind = Literal["logistic", "poisson"]


def gaussian_kl(m0: Array, S0: Array, m1: Array, S1: Array) -> float:
    """Compute KL(N(m0, S0) || N(m1, S1)) from the eigenvalues e of S1^-1 (S0 - S1): sum(e - log(1 + e)) loses no tiny value."""
    L = np.linalg.cholesky(S1)
    half = solve_triangular(L, S0 - S1, lower=True)
    both = solve_triangular(L, half.T, lower=True)
    e = np.linalg.eigvalsh((both + both.T) / 2)
    shift = solve_triangular(L, m1 - m0, lower=True)
    return float(np.sum(e - np.log1p(e)) + shift @ shift) / 2


def gaussian_posterior(X: Array, w: Array) -> tuple[Array, Array]:
    """Return mean (D,) and covariance (D, D) of theta given weighted x_n ~ N(theta, I) and the prior N(0, I)."""
    precision = np.eye(X.shape[1]) + w.sum() * np.eye(X.shape[1])
    covariance = np.linalg.inv(precision)
    return covariance @ (w @ X), covariance


def gaussian(seed: int, dim: int = 200, size: int = 600) -> tuple[Array, Array]:
    """Draw X (size, dim) of theta ~ N(0, I), x_n ~ N(theta, I), and return it with its exact vectors (size, dim + 1).

    Their inner products are the covariances of the log-likelihoods under the posterior N(mu, Sig):
    nu_n^T Psi nu_m + tr(Psi^2) / 2 with nu_n = x_n - mu and Psi = Sig, because the covariance of x_n is I.
    """
    rng = np.random.default_rng(seed)
    theta = rng.standard_normal(dim)
    X = theta + rng.standard_normal((size, dim))
    mu, psi = gaussian_posterior(X, np.ones(size))
    values, axes = eigh(psi)
    root = axes @ np.diag(np.sqrt(values)) @ axes.T
    constant = np.full((size, 1), np.sqrt(np.trace(psi @ psi) / 2))
    return X, np.hstack([(X - mu) @ root, constant])


def gaussian_reverse_kl(X: Array, w: Array) -> float:
    """Compute KL(pi_w || pi) of the Gaussian mean problem."""
    return gaussian_kl(*gaussian_posterior(X, w), *gaussian_posterior(X, np.ones(len(X))))


def whiten(X: Array) -> Array:
    """Give all columns but the last one, the intercept, mean 0 and covariance I (directions without variance become 0)."""
    x = X[:, :-1] - X[:, :-1].mean(0)
    values, axes = eigh(np.atleast_2d(np.cov(x, rowvar=False)))
    seen = values > 1e-10 * values.max()
    scales = np.where(seen, 1.0 / np.sqrt(np.where(seen, values, 1.0)), 0.0)
    return np.hstack([x @ axes @ np.diag(scales) @ axes.T, X[:, -1:]])


def read(name: str, folder: Path, whitened: bool = True) -> tuple[Array, Array]:
    """Read X, intercept last, and y of folder/name.npz; the phishing_full set gets an intercept and labels -1 and 1."""
    with np.load(folder / f"{name}.npz") as file:
        X, y = file["X"].astype(np.float64), file["y"].astype(np.float64)
    if name == "phishing_full":
        X, y = np.hstack([X, np.ones((len(X), 1))]), 2.0 * y - 1.0
    return (whiten(X) if whitened else X), y


def large_logistic(seed: int, size: int = 9000) -> tuple[Array, Array]:
    """Draw x_n ~ N(0, I_2) with an intercept and labels of the logistic model with theta = (3, 3, 0)."""
    rng = np.random.default_rng(seed)
    X = np.hstack([rng.standard_normal((size, 2)), np.ones((size, 1))])
    return X, np.where(rng.random(size) < expit(X @ np.array([3.0, 3.0, 0.0])), 1.0, -1.0)


def _derivatives(kind: Kind, s: Array, y: Array) -> tuple[Array, Array, Array]:
    """Return the log-likelihood of y and its first two derivatives in s = x^T theta, without the constant -log y!."""
    if kind == "logistic":
        return -np.logaddexp(0.0, -y * s), y * expit(-y * s), -expit(s) * expit(-s)
    rate, slope, low = np.logaddexp(0.0, s), expit(s), s < -30.0  # low: rate = e^s to within rounding
    log_rate = np.where(low, s, np.log(np.where(low, 1.0, rate)))
    ratio = np.where(low, 1.0, slope / np.where(low, 1.0, rate))
    bend = np.where(low, 0.0, ratio * (1.0 - slope - ratio))  # of log rate
    return y * log_rate - rate, y * ratio - slope, y * bend - slope * expit(-s)


def log_likelihoods(kind: Kind, X: Array, y: Array, thetas: Array) -> Array:
    """Return the log-likelihood of every point at every row of thetas, (N, draws)."""
    return _derivatives(kind, X @ thetas.T, y[:, None])[0]


def laplace(kind: Kind, X: Array, y: Array, w: Array) -> tuple[Array, Array]:
    """Return the mode and the inverse Hessian there of the posterior with weights w and the prior N(0, I), by damped Newton."""

    def log_posterior(theta: Array) -> float:
        return float(w @ _derivatives(kind, X @ theta, y)[0] - theta @ theta / 2)

    def gradient_and_precision(theta: Array) -> tuple[Array, Array]:
        _, first, second = _derivatives(kind, X @ theta, y)
        return X.T @ (w * first) - theta, np.eye(len(theta)) - X.T @ ((w * second)[:, None] * X)

    theta = np.zeros(X.shape[1])
    for _ in range(200):
        gradient, precision = gradient_and_precision(theta)
        step = np.linalg.solve(precision, gradient)
        here, t = log_posterior(theta), 1.0
        while t > 1e-10 and log_posterior(theta + t * step) < here + 1e-4 * t * (gradient @ step) - 1e-12 * abs(here):
            t /= 2
        theta = theta + t * step
        if np.linalg.norm(step) <= 1e-13 * (1.0 + np.linalg.norm(theta)):
            break
    covariance = np.linalg.inv(gradient_and_precision(theta)[1])
    return theta, (covariance + covariance.T) / 2


def vectors(kind: Kind, X: Array, y: Array, seed: int, draws: int = 500) -> Array:
    """Return the vectors (N, draws): log-likelihoods at draws of the Laplace posterior, less their means, over sqrt(draws)."""
    mode, covariance = laplace(kind, X, y, np.ones(len(X)))
    noise = np.random.default_rng(seed).standard_normal((draws, len(mode)))
    values = log_likelihoods(kind, X, y, mode + noise @ np.linalg.cholesky(covariance).T)
    centred: Array = (values - values.mean(1, keepdims=True)) / draws**0.5
    return centred


def reverse_kl(kind: Kind, X: Array, y: Array, w: Array) -> float:
    """Compute KL(pi_w || pi) between the Laplace approximations."""
    return gaussian_kl(*laplace(kind, X, y, w), *laplace(kind, X, y, np.ones(len(X))))


def symmetrized_kl(kind: Kind, X: Array, y: Array, w: Array) -> float:
    """Compute KL(pi_w || pi) + KL(pi || pi_w) between the Laplace approximations."""
    coreset, full = laplace(kind, X, y, w), laplace(kind, X, y, np.ones(len(X)))
    return gaussian_kl(*coreset, *full) + gaussian_kl(*full, *coreset)
