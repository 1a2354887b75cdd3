"""An output layer of many classes together with its Fenchel-Young loss."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from lit_sparse.checks import FEATURES, INPUTS, ranges
from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.torch_internals import outside_graphs
from lit_sparse.mappings import FenchelYoungLoss, Softmax, SparseMapping
from lit_sparse.nn.inputs import check_floating
from lit_sparse.nn.output_layer.losses import linear_losses, list_alpha, needs_all_scores
from lit_sparse.nn.output_layer.scores import rows_at_a_time
from lit_sparse.nn.output_layer.support import list_support

__all__ = ["LinearFenchelYoungLoss"]


@ranges(in_features=FEATURES, classes=INPUTS)
class LinearFenchelYoungLoss(nn.Linear):
    """Output layer of many classes, such as the words of a vocabulary, together with its Fenchel-Young loss.

    The scores are ``W h + b``. The loss equals ``FenchelYoungLoss(mapping)(linear(h), target)`` up to rounding, without
    storing all scores (N, V). A sparse mapping gives most classes a probability of exactly zero. Scores are computed once,
    a range of classes at a time, and the loss and its gradients use only the scores of the support. If a row has too many
    candidates for the support, as with flat scores, all of its scores are computed, a few rows at a time, and again for the
    gradients. The same is done for softmax, and for class weights combined with label smoothing.

    Everything is computed in float32 or float64, also under autocast. Second derivatives exist. ``torch.compile`` breaks
    its graph here. Transforms of ``torch.func`` and forward mode use plain operations, which store the scores.

    Args:
        mapping: Sparsemax, TopKSparsemax, Softmax, or Entmax with one alpha in 1.25 .. 2, which may be learned.
        in_features: F, number of features.
        classes: V, number of classes.
        bias: whether the scores have a bias.
        ignore_index: class label whose rows are ignored.
        class_weight: (V,) weight of each class, the ``weight`` of :class:`~lit_sparse.mappings.FenchelYoungLoss`.
        reduction: ``"mean"`` (over the weights of the targets that count), ``"sum"`` or ``"none"``.
        label_smoothing: share in [0, 1] of the target that is spread evenly over all classes.

    Attributes:
        weight: (V, F) parameter; assign the weight of an embedding to tie them.
        bias: (V,) parameter, or None.

    Raises:
        ConfigurationError: for another mapping, or an argument outside its range.

    Source: Blondel, Martins & Niculae (2020), Learning with Fenchel-Young Losses, definition 2.

    Example:
        >>> from lit_sparse.mappings import Sparsemax
        >>> layer = LinearFenchelYoungLoss(Sparsemax(), 8, 5000)
        >>> hidden, target = torch.randn(300, 8), torch.randint(5000, (300,))
        >>> expected = FenchelYoungLoss(Sparsemax())(
        ...     hidden @ layer.weight.t() + layer.bias, target
        ... )
        >>> torch.allclose(layer(hidden, target), expected, atol=1e-5)
        True
    """

    def __init__(
        self,
        mapping: SparseMapping,
        in_features: int,
        classes: int,
        bias: bool = True,
        *,
        ignore_index: int = -100,
        class_weight: Tensor | None = None,
        reduction: Literal["mean", "sum", "none"] = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(in_features, classes, bias)
        self.criterion = FenchelYoungLoss(mapping, ignore_index, class_weight, reduction, label_smoothing)
        if type(mapping) is not Softmax and list_alpha(mapping) is None:
            raise ConfigurationError(
                f"Expected Sparsemax, TopKSparsemax, Softmax, or Entmax with one `alpha` in 1.25 .. 2 but got {mapping!r}. For"
                " others, use torch.nn.Linear and FenchelYoungLoss."
            )
        if class_weight is not None and len(class_weight) != classes:
            raise ConfigurationError(f"Expected `class_weight` with {classes} weights but got {len(class_weight)}.")

    @property
    def mapping(self) -> SparseMapping:
        """The mapping from scores to probabilities."""
        return self.criterion.mapping

    @outside_graphs
    @override
    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:  # type: ignore[override, unused-ignore]
        """Return the loss of hidden vectors against class labels.

        Args:
            hidden: (N, F).
            target: (N,) class labels of an integer type.

        Returns:
            A scalar, or (N,) for ``reduction="none"``.

        Raises:
            ConfigurationError: if the shapes do not match or a label is not a class. If labels cannot be read (on a GPU, in
                a graph, under a transform), the loss of such a label is NaN instead.
        """
        self._check(hidden)
        labels, ignored = self.criterion.labels(target, hidden.shape[:1], self.out_features)
        if not needs_all_scores(hidden, self.weight):
            kept = (~ignored).nonzero().squeeze(1)
            some = linear_losses(hidden[kept], self.weight, self.bias, labels[kept], self.criterion).losses
            losses = some.new_zeros(len(hidden)).index_put((kept,), some)
        else:
            hidden = hidden.masked_fill(ignored.unsqueeze(1), 0.0)
            losses = linear_losses(hidden, self.weight, self.bias, labels, self.criterion).losses
        return self.criterion.reduced(losses, labels, ignored)

    @torch.no_grad()
    def predict(self, hidden: Tensor) -> Tensor:
        """Return the most probable class (N,) int64 of each hidden vector (N, F)."""
        hidden, weight, bias = self._widened(hidden)
        with torch.autocast(hidden.device.type, enabled=False):
            parts = torch.split(hidden, rows_at_a_time(self.out_features))
            return torch.cat([functional.linear(part, weight, bias).argmax(-1) for part in parts])

    @torch.no_grad()
    def sample(self, hidden: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return a random class (N,) int64 for each hidden vector (N, F), sampled from its probabilities.

        Raises:
            ConfigurationError: if a hidden vector is not finite.
        """
        self._check(hidden)
        broken = (~hidden.isfinite()).any(1).nonzero().flatten().tolist()
        if broken:
            raise ConfigurationError(f"Expected finite hidden vectors to sample from but got NaN or inf in row {broken[0]}.")
        drawn = []
        for part in torch.split(hidden, rows_at_a_time(self.out_features)):
            classes, weights = self.probabilities(part)
            drawn.append(classes.gather(1, torch.multinomial(weights, 1, generator=generator)).squeeze(1))
        return torch.cat(drawn)

    @torch.no_grad()
    def probabilities(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return the classes of nonzero probability for each hidden vector (N, F), as lists, without a gradient.

        Returns:
            Classes (N, C) int64 in increasing order, followed by -1, and their probabilities (N, C), followed by 0. C is
            the size of the largest support, which is V for softmax.
        """
        hidden, weight, bias = self._widened(hidden)
        with torch.autocast(hidden.device.type, enabled=False):
            places, weights = list_support(hidden, weight, bias, self.mapping, list_alpha(self.mapping))
        return places.long(), weights

    def _widened(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the vectors, the weight and the bias in float32 or float64."""
        self._check(hidden)
        wide = torch.promote_types(hidden.dtype, torch.float32)
        return hidden.to(wide), self.weight.to(wide), None if self.bias is None else self.bias.to(wide)

    def _check(self, hidden: Tensor) -> None:
        check_floating("hidden vectors", hidden)
        if hidden.dim() != 2 or hidden.shape[1] != self.in_features:
            raise ConfigurationError(
                f"Expected hidden vectors (N, {self.in_features}) but got {tuple(hidden.shape)}. Flatten other dimensions."
            )
