"""Every risk keeps what the shared tester asks of it."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from lit_sparse.risks import KLDRO, CVaR, Mean, Risk, SafeKLDRO
from lit_sparse.testing import RISK_CHECKS, check_risk, concrete_subclasses

RISKS = [example for kind in concrete_subclasses(Risk) for example in kind.examples()]


@pytest.mark.parametrize("name", RISK_CHECKS)
@pytest.mark.parametrize("risk", RISKS, ids=repr)
def test_risk(risk: Risk, name: str) -> None:
    RISK_CHECKS[name](risk)


class Unweighted(Mean):
    def measure(self, losses: Tensor, weights: Tensor | None) -> Tensor:
        return losses.mean()


class Rewarding(Mean):
    def measure(self, losses: Tensor, weights: Tensor | None) -> Tensor:
        return losses.mean() - 3 * losses.min()


class OfSizes(Mean):
    """Right only where losses are not negative."""

    def measure(self, losses: Tensor, weights: Tensor | None) -> Tensor:
        return super().measure(losses.abs(), weights)


class Halved(Mean):
    def measure(self, losses: Tensor, weights: Tensor | None) -> Tensor:
        found = super().measure(losses, weights)
        return found.detach() + 0.5 * (found - found.detach())


class Boastful(KLDRO):
    unbiased = True


class Trusting(CVaR):
    def _check_losses(self, losses: Tensor) -> None:
        pass


class Misplaced(SafeKLDRO):
    def solve(self, losses: Tensor, weights: Tensor | None = None) -> Tensor:
        return super().solve(losses, weights) + 0.1


class Restless(Mean):
    def perturb(self, loss_fn: Any, inputs: Tensor) -> tuple[Tensor, Tensor]:
        return inputs + 1, inputs.new_zeros(len(inputs))


@pytest.mark.parametrize(
    ("risk", "check"),
    [
        (Unweighted(), "weights"),
        (Rewarding(), "monotone"),
        (OfSizes(), "monotone"),
        (Halved(), "derivatives"),
        (Boastful(1.0), "unbiased"),
        (Trusting(0.5), "refuses"),
        (Misplaced(1.0, 0.1), "dual"),
        (Restless(), "perturb"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_the_tester_finds_what_is_wrong(risk: Risk, check: str) -> None:
    with pytest.raises(AssertionError, match=f"'{check}'"):
        check_risk(risk)
