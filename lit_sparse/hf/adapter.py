"""The attention function that transformers models call, on top of :func:`lit_sparse.nn.attention`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lit_sparse.errors import ConfigurationError
from lit_sparse.hf.masks import split_mask
from lit_sparse.mappings import SparseMapping
from lit_sparse.nn.attend import attention

__all__ = ["HARMLESS", "attend"]

#: Keywords without an effect on the result: the mask has it already, or they concern caches, outputs, and other kernels.
HARMLESS = frozenset(
    {
        "block_indices",  # in the mask
        "cache_position",
        "cu_seq_lens_k",  # in the mask, by position_ids
        "cu_seq_lens_q",
        "deterministic",
        "grid_thw",  # in the positions
        "indices",  # in the mask
        "input_ids",  # of the model, passed on
        "labels",
        "layer_idx",
        "logits_to_keep",
        "max_length_k",
        "max_length_q",
        "num_items_in_batch",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "past_key_values",
        "position_ids",
        "return_dict",
        "seq_idx",
        "sliding_window",  # in the mask
        "use_cache",
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
        attention_mask: as in :func:`lit_sparse.hf.masks.split_mask`, broadcastable to (B, H, L, S).
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
        key, value, mask, bias = _with_sink(sink, query, key, value, mask, bias, mapping)
    output, weights = attention(
        query,
        key,
        value,
        mapping,
        mask,
        scale=scaling,
        dropout=dropout,
        bias=bias,
        softcap=softcap,
        is_causal=causal,
        need_weights=_weights_asked(options),
    )
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
    sink: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    mapping: SparseMapping,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Append a key and a value of zeros, whose score is the sink's."""
    if mapping.ordered or mapping.groups == "tied" or mapping.iterative:
        raise ConfigurationError(
            f"Expected a mapping whose entries are independent except for their sum, because this model has attention sinks,"
            f" but got {mapping!r}. Use Sparsemax() or Entmax(1.5)."
        )
    shape = (*query.shape[:-1], 1)
    column = (sink.view(-1, 1, 1) if sink.dim() == 1 else sink).to(query.dtype).expand(shape)
    if bias is None:
        bias = query.new_zeros(()).expand(*query.shape[:-1], key.shape[-2])
    bias = torch.cat([bias.to(query.dtype).expand(*query.shape[:-1], key.shape[-2]), column], -1)
    mask = None if mask is None else F.pad(mask, (0, 1), value=True)
    return F.pad(key, (0, 0, 0, 1)), F.pad(value, (0, 0, 0, 1)), mask, bias
