"""Draw the generator of the safe KL divergence, its conjugate, and the measures between which kernel SGD transports.

Usage:
    python scripts/plot_safe_kl.py [--output pictures/safe_kl.png]

Left: f_rho(t) on [0, 1 / rho]; as rho falls to 0 it becomes t ln t - t + 1, the generator of the KL divergence. Middle: the
conjugate, a softplus, below its limit e^s - 1. Right: the densities of the study ``logsumexp_transport``, figure 5 of the
publication of safe KL.
"""

from __future__ import annotations

import timing  # noqa: F401  # isort: skip

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from lit_sparse.callbacks.pictures.base import new_figure
from lit_sparse.risks.safe_kl_dro import link_value
from lit_sparse.studies.problems.kernel_transport import SOURCE, TARGET

RHOS = (1.0, 0.5, 0.2, 0.0)
ALT = (
    "The generator of the safe KL divergence for rho = 1, 0.5 and 0.2 and of the KL divergence, their conjugates, and the"
    " source and target densities of the transport problem."
)


def generator(t: Tensor, rho: float) -> Tensor:
    """Return f_rho(t) for 0 <= t <= 1 / rho, definition 2.1; for rho = 0 with the KL divergence."""
    rest = torch.xlogy(1 - rho * t, 1 - rho * t) / rho if rho else -t
    return torch.xlogy(t, t) + rest + 1


def conjugate(s: Tensor, rho: float) -> Tensor:
    """Return f_rho*(s), lemma 2.3."""
    return (link_value(s, rho, "softplus") if rho else s.exp()) - 1


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("pictures/safe_kl.png"))
    path = parser.parse_args(arguments).output
    figure, (left, middle, right) = new_figure(1, 3, width=11.0, height=3.2)
    s, x = torch.linspace(-4, 2, 300), torch.linspace(-4, 4, 300)
    for rho in RHOS:
        t = torch.linspace(0, min(4.0, 1 / rho if rho else 4.0), 300)
        left.plot(t, generator(t, rho), label=f"rho = {rho:g}" if rho else "KL")
        middle.plot(s, conjugate(s, rho))
    for measure, name in ((SOURCE, "source"), (TARGET, "target")):
        right.plot(x, measure.log_prob(x.unsqueeze(1)).exp(), label=name)
    left.set(xlabel="t, a density ratio", ylabel="generator", ylim=(-0.1, 3))
    middle.set(xlabel="s", ylabel="conjugate", ylim=(-1.1, 4))
    right.set(xlabel="point", ylabel="density")
    left.legend(frameon=False)
    right.legend(frameon=False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None, "Description": ALT})
    print(path)


if __name__ == "__main__":
    main()
