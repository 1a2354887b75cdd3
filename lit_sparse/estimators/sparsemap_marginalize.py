"""Exact expectations over structures, of which SparseMAP leaves a few."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from torch import Tensor
from typing_extensions import Self, override

from lit_sparse.checks import check_choice
from lit_sparse.errors import ConfigurationError
from lit_sparse.estimators.base import Estimator, Expectation, Latent, LossFunction
from lit_sparse.mappings import SparseMAP
from lit_sparse.structures import BitVector, Budget, Structure

__all__ = ["SparseMAPMarginalize"]


class SparseMAPMarginalize(Estimator):
    """Sum the loss over the support of SparseMAP: at most d + 1 structures, and usually a handful.

    The marginals are those of the nearest point of the structures' convex hull. Which distribution has them is a choice:
    ``"active_set"`` takes the one that the active-set method ends with, as published; ``"nested"``, for bit vectors, the
    one whose structures contain one another, which costs a sort and no iteration. A model trained with the one is another than
    a model trained with the other.

    The sum over that distribution is exact. Only the marginals are a function of the scores alone. So is a loss that is linear
    in the structure. Over assignments and trees many distributions share the marginals, and rounding decides which one the
    active set ends with: other losses may jump under a change of the scores in the ninth digit. The page "Which distribution
    SparseMAP sums over" has figures.

    Args:
        structure: a set of structures; see :mod:`lit_sparse.structures`.
        decomposition: ``"active_set"`` or ``"nested"``.
        potentials: further scores for structures that have them, a tensor or nested lists; see the structure.
        learn_potentials: make the potentials a parameter, which starts from ``potentials`` or zeros.
        gamma: strength of the regularizer, > 0. The smaller, the fewer structures.
        max_iter: most structures that are looked for in a row; a warning tells when they were too few.
        tol: error of the marginals to reach, in Euclidean distance.

    A score of -inf forbids its entry. A row with NaN or +inf has a NaN loss, and leaves the others alone.

    Raises:
        ConfigurationError: if an argument is not as described, or the structure has no nested decomposition.

    Source: Correia, Niculae, Aziz & Martins (2020), Efficient Marginalization of Discrete and Structured Latent Variables
    via Sparsity, section 4.2.

    Example:
        >>> import torch
        >>> scores = torch.tensor([[9.0, -9.0, 9.0], [0.25, -9.0, -9.0]])
        >>> out = SparseMAPMarginalize(BitVector(3))(scores, lambda latent: latent.values.sum(-1))
        >>> out.loss.tolist(), out.decoder_calls.tolist()
        ([2.0, 0.25], [1, 2])
    """

    exact: ClassVar[bool] = True  # for the distribution that the decomposition chose
    unbiased: ClassVar[bool] = True
    latent: Latent = "bits"

    def __init__(
        self,
        structure: Structure,
        decomposition: Literal["active_set", "nested"] = "active_set",
        *,
        potentials: Tensor | Sequence[Any] | None = None,
        learn_potentials: bool = False,
        gamma: float = 1.0,
        max_iter: int = 100,
        tol: float = 1e-6,
    ) -> None:
        super().__init__()
        self.layer = SparseMAP(
            structure, potentials=potentials, learn_potentials=learn_potentials, gamma=gamma, max_iter=max_iter, tol=tol
        )
        check_choice("decomposition", decomposition, ("active_set", "nested"))
        if decomposition == "nested" and not structure.has_nested:
            raise ConfigurationError(
                f"Expected decomposition='active_set' for {structure!r}: only all bit vectors (BitVector) contain one another."
            )
        self.structure = structure
        self.decomposition = decomposition
        self.learn_potentials = learn_potentials
        self.gamma = gamma
        self.max_iter = max_iter
        self.tol = tol

    @property
    def potentials(self) -> Tensor | None:
        """Further scores, a parameter if they are learnt."""
        return self.layer.potentials

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances over bit vectors, with and without a budget, in both decompositions."""
        return [cls(BitVector()), cls(Budget(None, 2), gamma=0.5), cls(BitVector(), "nested")]

    @override
    def extra_repr(self) -> str:
        return f"decomposition={self.decomposition!r}"

    def scores_from_logits(self, logits: Tensor) -> Tensor:
        """Return the scores of the logits: for bits ``(logits + 1) / 2``, which is undecided at 0; else the same.

        Scores of pairs, one for a bit and 0 for its absence, would give the same solution.
        """
        return self.structure.scores_from_logits(logits)

    @override
    def expect(self, scores: Tensor, loss_fn: LossFunction, context: Tensor | None) -> Expectation:
        if self.decomposition == "nested":
            return self.over_support(*self.structure.nested(self.layer(scores)), loss_fn)
        out = self.layer.solve(scores)
        return self.over_support(out.probs, out.structures, loss_fn)
