"""Every structure passes every check; new structures are found by walking the subclasses."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lit_sparse.errors import ConfigurationError
from lit_sparse.structures import Assignment, BitVector, Budget, Sequence, Structure, Tree
from lit_sparse.testing import STRUCTURE_CHECKS, check_structure, concrete_subclasses

#: With numbers of entries of their own, and at the edges of what their arguments can be.
BITS: list[Structure] = [BitVector(5), Budget(6, 2), Budget(4, 0), Budget(4, 4)]
SIZED = [*BITS, Sequence(1, tags=4), Assignment(3, 3), Assignment(2, 4), Tree(3)]
EXAMPLES = [example for cls in concrete_subclasses(Structure) for example in cls.examples()]


@pytest.mark.cases(quick=100)
@pytest.mark.parametrize("structure", [*EXAMPLES, *SIZED], ids=repr)
@pytest.mark.parametrize("check", STRUCTURE_CHECKS)
def test_check(check: str, structure: Structure) -> None:
    STRUCTURE_CHECKS[check](structure)


class OneOf(Structure):
    """A structure of a user."""

    def maximize(self, scores: Tensor, potentials: Tensor | None = None) -> Tensor:
        return torch.nn.functional.one_hot(scores.argmax(-1), scores.shape[-1]).to(scores.dtype)

    def validate(self, structures: Tensor) -> Tensor:
        return structures.sum(-1) == 1


def test_a_structure_of_a_user_passes() -> None:
    check_structure(OneOf())


class _AcceptsEverything(OneOf):
    def validate(self, structures: Tensor) -> Tensor:
        return structures.sum(-1) >= 0


class _IgnoresForbidden(BitVector):
    def maximize(self, scores: Tensor, potentials: Tensor | None = None) -> Tensor:
        return (scores.nan_to_num(neginf=1.0) > 0).to(scores.dtype)


class _NotTheBest(Budget):
    def maximize(self, scores: Tensor, potentials: Tensor | None = None) -> Tensor:
        return super().maximize(scores[..., :-1], potentials).new_zeros(scores.shape)


class _WritesScores(BitVector):
    def maximize(self, scores: Tensor, potentials: Tensor | None = None) -> Tensor:
        return scores.clamp_(0, 1).ceil_()


class _ChangesType(BitVector):
    def maximize(self, scores: Tensor, potentials: Tensor | None = None) -> Tensor:
        return super().maximize(scores).double()


class _WrongNested(BitVector):
    def nested(self, marginals: Tensor) -> tuple[Tensor, Tensor]:
        probs, structures = super().nested(marginals)
        return probs.flip(-1), structures


class _WrongProjection(BitVector):
    def project(self, scores: Tensor) -> Tensor:
        return scores.sigmoid()


class _BackwardLinks(Sequence):
    def maximize(self, scores: Tensor, potentials: Tensor | None = None) -> Tensor:
        return super().maximize(scores, None if potentials is None else potentials.mT)


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (_AcceptsEverything(), "best"),
        (_IgnoresForbidden(), "forbidden"),
        (_NotTheBest(None, 2), "best"),
        (_WritesScores(), "batches"),
        (_ChangesType(), "batches"),
        (_WrongNested(), "shortcuts"),
        (_WrongProjection(), "shortcuts"),
        (_BackwardLinks(), "best"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_the_tester_finds_what_is_broken(broken: Structure, check: str) -> None:
    with pytest.raises(AssertionError):
        STRUCTURE_CHECKS[check](broken)


def test_the_tester_refuses_what_is_no_structure() -> None:
    with pytest.raises(ConfigurationError, match="instance of Structure but got the class BitVector"):
        check_structure(BitVector)  # type: ignore[arg-type]


def test_check_structure_names_the_check() -> None:
    with pytest.raises(AssertionError, match="fails the check 'best'"):
        check_structure(_NotTheBest(None, 2))
