"""The part that holds the mapping of one attention layer, as a child of the layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_sparse.errors import ConfigurationError
from lit_sparse.hf.adapter import attend
from lit_sparse.mappings import SparseMapping
from lit_sparse.nn.attend import MultiheadAttention

__all__ = ["CHILD", "LayerMapping", "attend_by_layer", "is_torch_layer", "set_mapping"]

#: Name of the child that an attention layer gets.
CHILD = "lit_sparse"


class LayerMapping(nn.Module):
    """Module that holds the mapping of one attention layer, as a child of the layer.

    Its parameters are saved with the model. A model loaded by transformers alone has no such module, and transformers
    reports its tensors as unexpected; one tensor's name says what to call instead.

    Args:
        mapping: mapping from scores to weights.
    """

    def __init__(self, mapping: SparseMapping) -> None:
        super().__init__()
        self.mapping = mapping
        self.register_buffer("attends_by_softmax_unless_loaded_by_lit_sparse_hf_from_pretrained", torch.zeros(()))
        self.recording = False
        self._counts: Tensor | None = None

    def current(self) -> SparseMapping:
        """Return the mapping, or, while recording, a mapping that also counts its weights."""
        return _Recorded(self.mapping, self) if self.recording else self.mapping

    def take_counts(self) -> Tensor | None:
        """Return and reset the counts (H, 3) of nonzero weights, allowed keys, and queries; None if nothing ran."""
        counts, self._counts = self._counts, None
        return counts

    def count(self, weights: Tensor, allowed: Tensor | None) -> None:
        """Add the counts of attention weights (B, H, L, S), except for queries without allowed keys."""
        weights = weights.detach()
        allowed = torch.ones_like(weights, dtype=torch.bool) if allowed is None else allowed.expand(weights.shape)
        each = [weights != 0, allowed, allowed.any(-1, keepdim=True)]
        counts = torch.stack([x.sum((0, 2, 3)) for x in each], -1)
        self._counts = counts if self._counts is None else self._counts + counts


class _TorchLayer(MultiheadAttention):
    """A torch layer inside a transformers model, which attends with the mapping of its child.

    It is made by changing the class of ``torch.nn.MultiheadAttention``, so that its parameters and their names stay.
    """

    method = "auto"

    @property
    def mapping(self) -> SparseMapping:  # type: ignore[override]
        part: LayerMapping = getattr(self, CHILD)
        return part.current()


def is_torch_layer(part: nn.Module) -> bool:
    """Return whether a module is ``torch.nn.MultiheadAttention``, with or without a mapping."""
    return type(part) in (nn.MultiheadAttention, _TorchLayer)


def set_mapping(layer: nn.Module, part: LayerMapping | None) -> None:
    """Make an attention layer use a mapping, or, for None, restore its own attention."""
    if part is not None:
        layer.add_module(CHILD, part)
    elif hasattr(layer, CHILD):
        delattr(layer, CHILD)
    if is_torch_layer(layer):
        layer.__class__ = nn.MultiheadAttention if part is None else _TorchLayer
        # torch's encoder layers read this flag before they hand the weights to a fused softmax attention
        layer._qkv_same_embed_dim = part is None and layer.in_proj_weight is not None  # type: ignore[assignment]


class _Recorded(SparseMapping):
    """A mapping that counts its weights, before dropout."""

    def __init__(self, mapping: SparseMapping, owner: LayerMapping) -> None:
        super().__init__(gamma=mapping.gamma)
        self.mapping = mapping
        self.ordered, self.groups, self.iterative = mapping.ordered, mapping.groups, mapping.iterative  # type: ignore[misc]
        self._owner = [owner]  # in a list, so that it is not a child

    @override
    def map(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        return self.mapping.map(scores, mask, dim)

    @override
    def map_block(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        weights = self.mapping.map_block(scores, mask)
        self._owner[0].count(weights, mask)
        return weights


def attend_by_layer(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """Attention function that uses the mapping of the layer itself; see :func:`lit_sparse.hf.adapter.attend`.

    Raises:
        ConfigurationError: if the layer does not have a mapping.
    """
    part = getattr(module, CHILD, None)
    if part is None:
        raise ConfigurationError(
            f"Expected the layer {type(module).__name__} to have a mapping but it has none. Call `lit_sparse.hf.sparsify(model,"
            " mapping)`, or load a saved model with `lit_sparse.hf.from_pretrained`."
        )
    return attend(module, query, key, value, attention_mask, part.current(), **options)
