"""Exact expectations over the support of a sparse distribution: of categories, of bit vectors or of structures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import Self, override

from lit_sparse.checks import FEATURES, ranges
from lit_sparse.errors import ConfigurationError
from lit_sparse.estimators.base import Estimator, Expectation, Latent, LatentBatch, LossFunction
from lit_sparse.kernels.kbest import best_bits
from lit_sparse.mappings import SparseMAP, SparseMapping
from lit_sparse.mappings.functional import sparsemax
from lit_sparse.structures import BitVector, Budget, Structure

__all__ = ["Marginalize", "SparseMAPMarginalize", "TopKMarginalize"]


class Marginalize(Estimator):
    r"""Exact expected loss: the sum of the loss over the support of a distribution on the simplex.

    .. math:: \sum_{z: \pi(z) > 0} \pi(z) \, \mathrm{loss}(z)

    where pi(z) is the probability of category z. Exact for any mapping onto the simplex, and cheap for a small support: the
    decoder runs once, on one row per (example, value) pair of the support. A dense mapping decodes all K values of each
    example, except those whose probability underflows, which happens to softmax if scores are far apart.

    Args:
        mapping: mapping from scores to probabilities; None if a model gives its own.
        decode: ``"support"``, or ``"all"`` for the K values of each example, with the same result. ``"all"`` decodes more
            rows, but their number does not depend on the scores, so a GPU is not synchronized, and ``torch.compile`` gets
            constant shapes. Losses and their gradients must then be finite for all values.

    Raises:
        ConfigurationError: if ``decode`` is not one of these.

    Source: Correia, Niculae, Aziz & Martins (2020), Efficient Marginalization of Discrete and Structured Latent Variables
    via Sparsity, section 4, arXiv:2007.01919.

    Example:
        >>> import torch
        >>> from lit_sparse.mappings import Sparsemax
        >>> scores = torch.tensor([[9.0, 0.0, 0.0], [0.5, 0.5, -9.0]])
        >>> out = Marginalize(Sparsemax())(
        ...     scores, lambda latent: latent.values.argmax(-1).float()
        ... )
        >>> out.loss.tolist(), out.decoder_calls.tolist()
        ([0.0, 0.5], [1, 2])
    """

    exact: ClassVar[bool] = True
    unbiased: ClassVar[bool] = True

    def __init__(self, mapping: SparseMapping | None = None, *, decode: Literal["support", "all"] = "support") -> None:
        super().__init__(mapping)
        self.decode = decode
        self.ragged = decode == "support"

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests, one for each value of ``decode``."""
        return [cls(), cls(decode="all")]

    @override
    def expect(self, scores: Tensor, loss_fn: LossFunction, context: Tensor | None) -> Expectation:
        probs = self.probabilities(scores)
        if self.ragged:
            return self.over_support(probs, None, loss_fn)
        support, (examples, values) = probs != 0, probs.shape
        rows = torch.arange(examples, device=probs.device).repeat_interleave(values, output_size=examples * values)
        one_hot = torch.eye(values, dtype=probs.dtype, device=probs.device).repeat(examples, 1)
        losses = self.losses(loss_fn, LatentBatch(one_hot, rows)).view(examples, values)
        loss = (probs * torch.where(support, losses, 0.0)).sum(-1)
        calls = torch.full((examples,), values, dtype=torch.int64, device=probs.device)
        return Expectation(loss=loss, probs=probs, example_index=rows, support_size=support.sum(-1), decoder_calls=calls)


@ranges(k=FEATURES)
class TopKMarginalize(Estimator):
    r"""Exact expected loss over the support of top-k sparsemax on all 2^D bit vectors: at most k vectors.

    .. math:: \sum_{z \in T} \pi(z) \, \mathrm{loss}(z), \qquad
        \pi = \operatorname{sparsemax}\bigl((\langle x, z \rangle)_{z \in T}\bigr)

    where x are the scores of the bits and T holds the k vectors z of largest score ``<x, z>``, found without enumeration.
    The decoder runs once, on the vectors of positive probability. If the support is smaller than k, sparsemax over all
    vectors has the same support.

    Args:
        k: maximum support size, >= 1; a k above 2^D allows all vectors. Ties are broken as in
            :func:`lit_sparse.kernels.kbest.best_bits`.

    A score of -inf forbids its bit; with all bits forbidden the zero vector has probability 1. A row with NaN or +inf has a
    NaN loss, and does not change other rows.

    Raises:
        ConfigurationError: if ``k`` is not an integer >= 1.

    Source: Correia, Niculae, Aziz & Martins (2020), Efficient Marginalization of Discrete and Structured Latent Variables
    via Sparsity, section 4.1, arXiv:2007.01919.

    Example:
        >>> import torch
        >>> scores = torch.tensor([[9.0, -9.0, 9.0], [0.0, 0.0, -9.0]])
        >>> out = TopKMarginalize(2)(scores, lambda latent: latent.values.sum(-1))
        >>> out.loss.tolist(), out.probs.tolist(), out.decoder_calls.tolist()
        ([2.0, 0.5], [1.0, 0.5, 0.5], [1, 2])
    """

    exact: ClassVar[bool] = True
    unbiased: ClassVar[bool] = True
    latent: Latent = "bits"
    _shown = ("k",)

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests: a small k, k = 1, and a k above the number of vectors."""
        return [cls(3), cls(1), cls(100)]

    @override
    def expect(self, scores: Tensor, loss_fn: LossFunction, context: Tensor | None) -> Expectation:
        bits, counts = best_bits(scores, self.k)
        allowed = torch.where(scores == -torch.inf, 0.0, scores).double()  # not affected by autocast
        # Sparsemax depends only on differences; those to the best vector have one term per flipped bit.
        differences = torch.einsum("bkd,bd->bk", (bits - bits[:, :1]).double(), allowed)
        there = torch.arange(bits.shape[1], device=scores.device) < counts.unsqueeze(-1)
        return self.over_support(sparsemax(differences, mask=there).to(scores.dtype), bits, loss_fn)


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
        >>> out = SparseMAPMarginalize(BitVector(3))(
        ...     scores, lambda latent: latent.values.sum(-1)
        ... )
        >>> out.loss.tolist(), out.decoder_calls.tolist()
        ([2.0, 0.25], [1, 2])
    """

    exact: ClassVar[bool] = True  # for the distribution of the chosen decomposition
    unbiased: ClassVar[bool] = True
    latent: Latent = "bits"
    _shown = ("decomposition",)

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
        """Scores of several entries together, such as two neighbouring tags; a parameter if learned; None if there are none."""
        return self.layer.potentials

    @classmethod
    def examples(cls) -> list[Self]:
        """Return instances for the shared tests: bit vectors with and without a budget, in both decompositions."""
        return [cls(BitVector()), cls(Budget(None, 2), gamma=0.5), cls(BitVector(), "nested")]

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
