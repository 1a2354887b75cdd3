"""The attention function that transformers models call, its masks, and the part of a layer that holds its mapping."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lit_sparse.errors import ConfigurationError, full_name
from lit_sparse.mappings import SparseMapping
from lit_sparse.nn.attend import MultiheadAttention, attention

__all__ = [
    *("CHILD", "HARMLESS", "LayerMapping", "added_mask", "attend", "attend_by_layer", "boolean_mask", "is_torch_layer"),
    *("set_mapping", "split_mask"),
]

#: Name of the child that an attention layer gets.
CHILD = "lit_sparse"

#: Keywords without an effect on the result: the mask has it already, or they concern caches, outputs, and other kernels.
HARMLESS = frozenset(
    {
        *(
            "block_indices",
            "cu_seq_lens_k",
            "cu_seq_lens_q",
            "indices",
            "position_ids",
            "seq_idx",
            "sliding_window",
        ),  # in the mask
        *("cache_position", "grid_thw", "past_key_values", "use_cache"),  # in the positions and the keys
        *("input_ids", "labels", "logits_to_keep", "num_items_in_batch", "return_dict"),  # of the model, passed on
        *("output_attentions", "output_hidden_states", "output_router_logits"),
        *("deterministic", "layer_idx", "max_length_k", "max_length_q"),  # of other kernels
    }
)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    mapping: SparseMapping,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    sinks: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention function for layers of transformers models, with any mapping.

    Args:
        module: attention layer.
        query: (B, H, L, E).
        key: (B, H_kv, S, E), including the cache; H_kv divides H.
        value: (B, H_kv, S, Ev).
        attention_mask: as in :func:`split_mask`, broadcastable to (B, H, L, S).
        mapping: mapping from scores to weights.
        scaling: factor of the scores; ``1 / sqrt(E)`` by default.
        dropout: probability with which a weight is set to zero.
        is_causal: whether a missing mask means a causal one. The layer's attribute of this name is ignored, as in eager
            attention, because a causal model always makes a mask.
        position_bias: broadcastable to (B, H, L, S), added to the scores.
        softcap: bound of the scores, see :func:`lit_sparse.nn.attention`.
        s_aux: (H,) or (B, H, L, 1) scores of attention sinks, which take weight and have no value.
        sinks: another name of ``s_aux``.
        options: other keywords, which must be known to have no effect, or be None.

    Returns:
        The output (B, L, H, Ev), contiguous, and the weights (B, H, L, S), after dropout, or None if the model
        does not return them.

    Raises:
        ConfigurationError: for an unknown keyword, a mask of the wrong kind, or sinks with a mapping that is not separable.
    """
    for name, given in options.items():
        if name not in HARMLESS and given is not None and given is not False:
            raise ConfigurationError(
                f"Expected attention keywords that this package supports but {type(module).__name__} passes `{name}`, which"
                " could change the result. Use another model, or another attention for this one."
            )
    mask, bias = split_mask(attention_mask)
    causal = attention_mask is None and bool(is_causal) and query.shape[-2] > 1  # a single query sees all keys
    if position_bias is not None:
        bias = position_bias if bias is None else position_bias + bias
    sink = s_aux if s_aux is not None else sinks
    if sink is not None:
        if causal:
            mask, causal = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril(), False
        if mapping.ordered or mapping.groups == "tied" or mapping.iterative:
            raise ConfigurationError(
                "Expected a mapping whose entries are independent except for their sum, because this model has attention sinks,"
                f" but got {mapping!r}. Use Sparsemax() or Entmax(1.5)."
            )
        key, value, mask, bias = _with_sink(sink, query, key, value, mask, bias)
    scores: Any = {"scale": scaling, "bias": bias, "softcap": softcap, "is_causal": causal}
    need_weights = _weights_asked(options)
    output, weights = attention(query, key, value, mapping, mask, dropout=dropout, need_weights=need_weights, **scores)
    if sink is not None and weights is not None:
        weights = weights[..., :-1]
    return output.transpose(1, 2).contiguous(), weights


def _weights_asked(options: Mapping[str, Any]) -> bool:
    """Return whether the weights of a layer may be read: by ``output_attentions``, or by a model whose outputs are not known.

    Args:
        options: keywords of the attention function.
    """
    if options.get("output_attentions"):
        return True
    try:
        from transformers.utils.output_capturing import _active_collector
    except ImportError:
        return True
    collected = _active_collector.get()  # type: ignore[no-untyped-call, unused-ignore]
    return collected is None or any("attentions" in name for name in collected)


def _with_sink(
    sink: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Append a key and a value of zeros, whose score is the sink's."""
    shape = (*query.shape[:-1], 1)
    column = (sink.view(-1, 1, 1) if sink.dim() == 1 else sink).to(query.dtype).expand(shape)
    if bias is None:
        bias = query.new_zeros(()).expand(*query.shape[:-1], key.shape[-2])
    bias = torch.cat([bias.to(query.dtype).expand(*query.shape[:-1], key.shape[-2]), column], -1)
    mask = None if mask is None else F.pad(mask, (0, 1), value=True)
    return F.pad(key, (0, 0, 0, 1)), F.pad(value, (0, 0, 0, 1)), mask, bias


def added_mask(**options: Any) -> Tensor | None:
    """Return the floating mask of transformers' ``eager`` attention: 0 at allowed positions, else the lowest number.

    All models support it. Some, such as DeepSeek-V4, add further values to it.
    """
    from transformers.masking_utils import eager_mask

    mask: Tensor | None = eager_mask(**options)
    return mask


def boolean_mask(**options: Any) -> Tensor | None:
    """Return the boolean mask of transformers' ``sdpa`` attention, True at allowed positions; nothing is added to scores.

    It is None for bidirectional attention without padding. A causal mask is never left out: the attention
    function would not see that it is missing.
    """
    from transformers.masking_utils import sdpa_mask

    mask: Tensor | None = sdpa_mask(**{**options, "allow_is_causal_skip": False})
    return mask


def split_mask(mask: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Return which positions a transformers mask allows, and what it adds to the scores.

    Args:
        mask: boolean, True at allowed positions, or floating, added to the scores. Floating values at or below half the
            lowest number of their dtype mean "not allowed", because models use that number in place of -inf.

    Returns:
        A boolean mask, True at allowed positions, and a bias that is added to the scores, both of the mask's shape; None for
        one that has no effect.

    Raises:
        ConfigurationError: for a mask of another dtype.
    """
    if mask is None:
        return None, None
    if not isinstance(mask, Tensor) or not (mask.dtype == torch.bool or mask.is_floating_point()):
        got = str(mask.dtype) if isinstance(mask, Tensor) else full_name(mask)
        raise ConfigurationError(
            "Expected an attention mask that is boolean, True at allowed positions, or floating, added to the scores, but got"
            f" {got}. Convert a mask of zeros and ones with `mask.bool()`."
        )
    if mask.dtype == torch.bool:
        return mask, None
    allowed = mask > torch.finfo(mask.dtype).min / 2
    return allowed, torch.where(allowed, mask, 0.0)


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

    def map(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        return self.mapping.map(scores, mask, dim)

    def map_block(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        weights = self.mapping.map_block(scores, mask)
        self._owner[0].count(weights, mask)
        return weights


def attend_by_layer(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """Attention function that uses the mapping of the layer itself; see :func:`attend`.

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
