"""Every mapping passes every check; new mappings are found by walking the subclasses."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import lit_sparse.hf  # noqa: F401 - it has a mapping of its own
from lit_sparse import mappings
from lit_sparse.mappings import SparseMapping, Sparsemax
from lit_sparse.testing import MAPPING_CHECKS, check_mapping, concrete_subclasses

EXAMPLES = [(i, example) for cls in concrete_subclasses(SparseMapping) for i, example in enumerate(cls.examples())]
#: Seconds each: sparsemax is in the gate, the others are slow.
LONG = {"compiles", "machine_code"}
#: Seconds each by iterations, whose first example is in the quick tests or in the gate, and others are slow.
LONG_BY_ITERATIONS = {"shapes", "masks", "derivatives"}


def marks(check: str, number: int, example: SparseMapping) -> list[pytest.MarkDecorator]:
    """Return the lane of an example."""
    if check in LONG:
        return [pytest.mark.gate if number == 0 and type(example) is Sparsemax else pytest.mark.slow]
    if example.iterative and number > 0:
        return [pytest.mark.slow]
    return [pytest.mark.gate] if example.iterative and check in LONG_BY_ITERATIONS else []


CASES = [
    pytest.param(check, example, id=f"{check}-{example!r}", marks=marks(check, i, example))
    for check in MAPPING_CHECKS
    for i, example in EXAMPLES
]


@pytest.mark.parametrize(("check", "mapping"), CASES)
def test_check(check: str, mapping: SparseMapping) -> None:
    MAPPING_CHECKS[check](mapping)


def test_every_exported_mapping_is_found() -> None:
    """Each has an example, so that all checks apply to it."""
    exported = [getattr(mappings, name) for name in mappings.__all__]
    expected = {cls for cls in exported if isinstance(cls, type) and issubclass(cls, SparseMapping)} - {SparseMapping}
    assert len(expected) >= 14
    assert expected <= {type(example) for _, example in EXAMPLES}


class _NotProjected(Sparsemax):
    """Looks right and is not: the threshold is a little off."""

    def map(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        return super().map(1.01 * scores, mask, dim)


class _SpreadsNan(Sparsemax):
    def map(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        return super().map(scores, mask, dim) + 0 * scores.sum()


class _IgnoresMask(Sparsemax):
    def map(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        return super().map(scores, None, dim)


class _NoSecondDerivative(Sparsemax):
    def map(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        return super().map(scores, mask, dim).square() / super().map(scores, mask, dim).detach().clamp_min(1e-9)


class _WrongValue(Sparsemax):
    def regularizer(self, y: Tensor, dim: int = -1, allowed: Tensor | None = None) -> Tensor:
        return y.square().sum(dim)


class _NoOmega(Sparsemax):
    def regularizer(self, y: Tensor, dim: int = -1, allowed: Tensor | None = None) -> Tensor:
        return 0 * y.sum(dim)


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (_NotProjected(), "simplex"),
        (_WrongValue(), "simplex"),
        (_SpreadsNan(), "invalid_rows"),
        (_IgnoresMask(), "masks"),
        (_NoSecondDerivative(), "derivatives"),
        (_NoOmega(), "loss"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_the_tester_finds_what_is_broken(broken: SparseMapping, check: str) -> None:
    with pytest.raises((AssertionError, RuntimeError)):
        MAPPING_CHECKS[check](broken)


def test_check_mapping_names_the_check() -> None:
    with pytest.raises(AssertionError, match="fails the check 'masks'"):
        check_mapping(_IgnoresMask())


@pytest.mark.parametrize("mapping", [example for _, example in EXAMPLES], ids=repr)
def test_a_penalty_on_the_gradient_can_be_differentiated(mapping: SparseMapping) -> None:
    """Also where the second derivative is zero, as for torch's ReLU; the graph of an empty batch is kept."""
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    weights = torch.linspace(-1, 1, 30, dtype=torch.float64).reshape(5, 6)
    (gradient,) = torch.autograd.grad((mapping(x) * weights).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(gradient.square().sum(), x)
    assert second.shape == x.shape
    assert bool(second.isfinite().all())
    assert mapping(x[:0]).requires_grad
