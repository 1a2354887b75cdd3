"""Exact expectations over the few structures in the support of SparseMAP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from torch import Tensor
from typing_extensions import Self, override

from lit_sparse.errors import ConfigurationError
from lit_sparse.estimators.base import Estimator, Expectation, Latent, LossFunction
from lit_sparse.mappings import SparseMAP
from lit_sparse.structures import BitVector, Budget, Structure

__all__ = ["SparseMAPMarginalize"]


class SparseMAPMarginalize(Estimator):
    r"""Exact expected loss over the support of SparseMAP: at most d + 1 structures, usually a handful.

    .. math:: \sum_s \xi_s \, \mathrm{loss}(a_s)

    where a_s are the structures and xi_s their probabilities by :func:`~lit_sparse.mappings.functional.sparsemap`.

    The marginals are the nearest point of the convex hull of the structures. Several distributions may have these
    marginals. ``"active_set"`` uses the result of the active-set method, as in the paper. ``"nested"``, for bit vectors,
    uses the distribution over nested structures, which needs a sort and no iteration. The choice changes the model.

    The sum over that distribution is exact. But only the marginals, and losses linear in the structure, are functions of
    the scores alone. Over assignments and trees many distributions share the marginals, and rounding decides which one the
    active set returns: other losses may jump under a change of the scores in the ninth digit. The page "Which distribution
    SparseMAP sums over" has figures.

    Args:
        structure: a set of structures; see :mod:`lit_sparse.structures`.
        decomposition: ``"active_set"`` or ``"nested"``.
        potentials: further scores of structures that have them, a tensor or nested lists; see the structure.
        learn_potentials: whether the potentials are a parameter, initialized from ``potentials`` or with zeros.
        gamma: strength of the regularizer, > 0; smaller values give fewer structures.
        max_iter: largest number of structures found per row; a warning reports rows that need more.
        tol: accuracy of the marginals, in Euclidean distance.

    A score of -inf forbids its entry. A row with NaN or +inf has a NaN loss, and does not change other rows.

    Raises:
        ConfigurationError: if an argument is not allowed, or the structure has no nested decomposition.

    Source: Correia, Niculae, Aziz & Martins (2020), Efficient Marginalization of Discrete and Structured Latent Variables
    via Sparsity, section 4.2, arXiv:2007.01919.

    Example:
        >>> import torch
        >>> scores = torch.tensor([[9.0, -9.0, 9.0], [0.25, -9.0, -9.0]])
        >>> out = SparseMAPMarginalize(BitVector(3))(scores, lambda latent: latent.values.sum(-1))
        >>> out.loss.tolist(), out.decoder_calls.tolist()
        ([2.0, 0.25], [1, 2])
    """

    exact: ClassVar[bool] = True  # for the distribution of the chosen decomposition
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
        if decomposition == "nested" and not structure.has_nested:
            raise ConfigurationError(
                f"Expected decomposition='active_set' for {structure!r} because 'nested' needs all bit vectors (BitVector)."
            )
        self.structure, self.decomposition = structure, decomposition
        self.learn_potentials = learn_potentials
        self.gamma = gamma
        self.max_iter = max_iter
        self.tol = tol

    @property
    def potentials(self) -> Tensor | None:
        """Scores of more than single entries, a parameter if they are learned; None without potentials."""
        return self.layer.potentials

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests: bit vectors with and without a budget, in both decompositions."""
        return [cls(BitVector()), cls(Budget(None, 2), gamma=0.5), cls(BitVector(), "nested")]

    @override
    def extra_repr(self) -> str:
        return f"decomposition={self.decomposition!r}"

    def scores_from_logits(self, logits: Tensor) -> Tensor:
        """Return the scores for an encoder's logits: ``(logits + 1) / 2`` for bits, where 0 means undecided; else the logits.

        Pairs of scores, one for a bit and 0 for its absence, would give the same solution.
        """
        return self.structure.scores_from_logits(logits)

    @override
    def expect(self, scores: Tensor, loss_fn: LossFunction, context: Tensor | None) -> Expectation:
        if self.decomposition == "nested":
            return self.over_support(*self.structure.nested(self.layer(scores)), loss_fn)
        out = self.layer.solve(scores)
        return self.over_support(out.probs, out.structures, loss_fn)
