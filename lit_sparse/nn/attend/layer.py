"""Multi-head attention with any mapping in place of softmax, as torch's layer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lit_sparse.checks import FEATURES, Number, check_flag, ranges
from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.tensors import FLOATS, is_dense, shown
from lit_sparse.mappings import Softmax, SparseMapping
from lit_sparse.mappings.base import check_mapping, warn_off_simplex
from lit_sparse.nn.attend.function import Method, attend
from lit_sparse.nn.attend.operands import Operands, Pairs, any_along, attend_to_all, check_tensors
from lit_sparse.nn.inputs import check_input

__all__ = ["MultiheadAttention"]


@ranges(embed_dim=FEATURES, num_heads=FEATURES, kdim=FEATURES, vdim=FEATURES, dropout=Number(0.0, 1.0))
class MultiheadAttention(nn.MultiheadAttention):
    """Multi-head attention with any mapping in place of softmax; a drop-in replacement of ``torch.nn.MultiheadAttention``.

    Constructor, call, masks (True means *not* allowed, unlike elsewhere in this package), initialization and state dict are
    as in torch. Torch's checkpoints therefore load, with ``strict=False`` if the mapping has parameters. With
    :class:`~lit_sparse.mappings.Softmax` the results are equal, with three exceptions. A query without allowed positions
    gets ``out_proj`` of zeros instead of NaN. NaN in padding affects neither other positions nor gradients. ``attn_mask``
    is always applied; ``is_causal`` only requires it.

    The mapping maps scores (N, num_heads, L, S), so it may have a parameter of shape (num_heads, 1, 1), one per head; hooks
    of the mapping are not run. A mapping whose output is not on the simplex works, with a warning.

    To give a ``torch.nn.TransformerEncoderLayer`` sparse attention, replace its ``self_attn``. Torch's fused inference,
    which would read the weights and take a softmax, stays off; ``torch.nn.TransformerEncoder`` warns of this when it is
    built from such a layer, unless ``enable_nested_tensor=False``.

    Args:
        embed_dim: width E of queries and outputs.
        num_heads: number of heads; divides ``embed_dim``.
        dropout: probability with which a weight is dropped in training.
        bias: whether the projections have a bias.
        add_bias_kv: whether to append a learned key and value to every sequence.
        add_zero_attn: whether to append a zero key and value to every sequence.
        kdim: width of the keys; None means ``embed_dim``.
        vdim: width of the values; None means ``embed_dim``.
        batch_first: whether batched tensors are (N, L, E) rather than (L, N, E).
        device: device of the parameters.
        dtype: dtype of the parameters.
        mapping: mapping from scores to weights; None means ``Softmax()``.
        method: ``"auto"``, ``"sparse"`` or ``"dense"``, see :func:`lit_sparse.nn.attention`. With ``need_weights=False``,
            long sequences are faster; with ``"sparse"``, the weights are a sparse tensor.

    Raises:
        ConfigurationError: if a size is not a positive integer, ``num_heads`` does not divide ``embed_dim``, ``dropout`` is
            not a probability, ``mapping`` is not a SparseMapping, or ``method`` not a method.

    Source: Vaswani et al. (2017), Attention Is All You Need, section 3.2.2.

    Example:
        >>> from lit_sparse.mappings import Sparsemax
        >>> layer = MultiheadAttention(
        ...     16, 4, batch_first=True, mapping=Sparsemax(gamma=0.1)
        ... )
        >>> x = torch.randn(2, 9, 16)
        >>> output, weights = layer(x, x, x)
        >>> bool((weights == 0).any()), torch.allclose(weights.sum(-1), torch.ones(2, 9))
        (True, True)
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        mapping: SparseMapping | None = None,
        method: Method = "auto",
    ) -> None:
        if embed_dim % num_heads:
            divisors = [n for n in range(1, embed_dim + 1) if embed_dim % n == 0]
            raise ConfigurationError(
                f"Expected `num_heads` to divide `embed_dim`={embed_dim} but got {num_heads}. Allowed: {divisors}."
            )
        if dtype not in (None, *FLOATS):
            raise ConfigurationError(f"Expected argument `dtype` to be a floating dtype or None but got {dtype!r}.")
        if mapping is not None:
            check_mapping(mapping)
            warn_off_simplex(mapping)
        super().__init__(
            embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first, device, dtype
        )
        self.mapping = Softmax() if mapping is None else mapping
        self.method = method

    def _reset_parameters(self) -> None:
        # The base class tells by this flag which weights there are, once, here. Afterwards torch's encoder layers read it to
        # decide whether they may hand those weights to a fused softmax attention, past our forward: never.
        self._qkv_same_embed_dim = self.in_proj_weight is not None
        super()._reset_parameters()
        self._qkv_same_embed_dim = False

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the attention output and the weights, as ``torch.nn.MultiheadAttention`` does.

        Args:
            query: (N, L, E) if ``batch_first``, else (L, N, E); or unbatched (L, E). So are all other sequences.
            key: (N, S, kdim).
            value: (N, S, vdim).
            key_padding_mask: (N, S), or (S,) for an unbatched query. Boolean, True for keys to ignore; or floating, added
                to the scores, where -inf means ignore.
            need_weights: whether to return the weights.
            attn_mask: (L, S) or (N * num_heads, L, S), boolean or floating.
            average_attn_weights: whether to average the weights over heads; a mean is zero only if all heads have a zero.
            is_causal: a hint that ``attn_mask`` is causal, which must be given along with it. It changes nothing.

        Returns:
            The output, of the query's shape, and the weights (N, L, S'), or (N, num_heads, L, S') when they are not
            averaged, without N if unbatched, or None. S' counts the positions that ``add_bias_kv`` and ``add_zero_attn``
            append.

        Raises:
            ConfigurationError: if shapes or dtypes do not match, a mask is neither boolean nor floating, or ``is_causal``
                is given without ``attn_mask``.
        """
        if isinstance(query, Tensor) and query.is_nested:
            if not (key_padding_mask is None and attn_mask is None and self.batch_first):
                raise ConfigurationError("Expected nested tensors to come without masks and with `batch_first=True`.")
            return self._attend_nested(query, key, value, need_weights, average_attn_weights)
        flags = {"need_weights": need_weights, "average_attn_weights": average_attn_weights, "is_causal": is_causal}
        for name, flag in flags.items():
            check_flag(name, flag)
        if is_causal and attn_mask is None:
            raise ConfigurationError(
                "Expected `attn_mask` together with `is_causal=True`, which only states that the mask is causal, but got None."
                " Make one with `torch.nn.Transformer.generate_square_subsequent_mask(L)`."
            )
        self._check_inputs((query, key, value), key_padding_mask, attn_mask)
        query_is_key, unbatched, batch_dim = query is key, query.dim() == 2, 0 if self.batch_first else 1
        if unbatched:
            query, key, value = query.unsqueeze(batch_dim), key.unsqueeze(batch_dim), value.unsqueeze(batch_dim)
        mask, bias = self._merge(key_padding_mask, attn_mask)
        extra = int(self.bias_k is not None) + int(self.add_zero_attn)  # positions that are allowed for all queries
        if mask is not None:  # a weight of zero does not silence a NaN in a matrix product, nor in its gradient
            seen = self._rows(any_along(mask, -2).any(1))
            if query_is_key:  # padded keys are also queries: their NaN times a zero gradient would be NaN
                query = torch.where(seen, query, query.nan_to_num(0.0, 0.0, 0.0))
            key, value = torch.where(seen, key, 0.0), torch.where(seen, value, 0.0)
            mask = F.pad(mask, (0, extra), value=True)
            query = torch.where(self._rows(any_along(mask, -1).any(1)), query, 0.0)
        if bias is not None:
            bias = F.pad(bias, (0, extra))

        q, k, v = (self._heads(self._project(x, place)) for place, x in enumerate((query, key, value)))
        if self.bias_k is not None and self.bias_v is not None:
            k = torch.cat([k, self.bias_k.view(self.num_heads, 1, -1).expand(k.shape[0], -1, -1, -1)], -2)
            v = torch.cat([v, self.bias_v.view(self.num_heads, 1, -1).expand(v.shape[0], -1, -1, -1)], -2)
        if self.add_zero_attn:
            k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
        if query_is_key and mask is not None and self.mapping.couples_queries:  # padding takes no key from the others
            mask = mask & any_along(mask, -2)[..., : q.shape[-2]].unsqueeze(-1)
        attended, weights = attend(self._operands(q, k, v, Pairs(mask, bias)), self.mapping, self.method, need_weights)
        output = self._merged(attended)
        if unbatched:
            output = output.squeeze(batch_dim)
        if not need_weights or weights is None:
            return output, None
        if average_attn_weights:
            weights = torch.sparse.sum(weights, -3) / self.num_heads if weights.is_sparse else weights.mean(-3)
        return output, weights[0] if unbatched else weights

    def project_memory(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return projected keys and values, both (N, num_heads, S, head_dim), for :meth:`attend_projected`.

        In decoding token by token, this projects the memory only once.

        Args:
            key: batched, as in :meth:`forward`.
            value: batched, as in :meth:`forward`.
        """
        return self._heads(self._project(key, 1)), self._heads(self._project(value, 2))

    def attend_projected(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the attention output and weights for keys and values projected by :meth:`project_memory`.

        Positions of ``add_bias_kv`` and ``add_zero_attn`` are not added.

        Args:
            query: (N, L, E) if ``batch_first``, else (L, N, E).
            key: (N, num_heads, S, head_dim).
            value: (N, num_heads, S, head_dim), finite also at masked positions.
            mask: boolean, broadcastable to (N, num_heads, L, S), True at allowed positions.

        Returns:
            The output, of the query's shape, and the weights (N, num_heads, L, S).
        """
        n, weight = query.shape[0 if self.batch_first else 1], self.out_proj.weight
        check_input("key", key, (n, self.num_heads, "S", self.head_dim), weight)
        check_input("value", value, (n, self.num_heads, key.shape[2], self.head_dim), weight)
        operands = self._operands(self._heads(self._project(query, 0)), key, value, Pairs(mask))
        output, weights = attend_to_all(operands, self.mapping)
        return self._merged(output), weights

    def _operands(self, query: Tensor, key: Tensor, value: Tensor, pairs: Pairs) -> Operands:
        return Operands(query, key, value, pairs, dropout=self.dropout if self.training else 0.0, finite=True)

    def _merged(self, output: Tensor) -> Tensor:
        """Merge the heads (N, num_heads, L, head_dim) and project them."""
        projected: Tensor = self.out_proj(output.permute((0, 2, 1, 3) if self.batch_first else (2, 0, 1, 3)).flatten(-2))
        return projected

    def _project(self, x: Tensor, place: int) -> Tensor:
        """Apply the input projection of queries (place 0), keys (1) or values (2); the result has width ``embed_dim``."""
        if self.kdim == self.vdim == self.embed_dim:
            weights = self.in_proj_weight.chunk(3)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = (None, None, None) if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        weight = weights[place]
        check_input(("query", "key", "value")[place], x, ("...", weight.shape[1]), weight)
        return F.linear(x, weight, biases[place])

    def _heads(self, x: Tensor) -> Tensor:
        """Split a batched sequence into heads: (N, num_heads, S, head_dim)."""
        x = x.reshape(*x.shape[:-1], self.num_heads, self.head_dim)
        return x.permute((0, 2, 1, 3) if self.batch_first else (1, 2, 0, 3))

    def _rows(self, chosen: Tensor) -> Tensor:
        """Lay out (N or 1, S or 1) like a batched sequence of width 1."""
        return (chosen if self.batch_first else chosen.T).unsqueeze(-1)

    def _merge(self, key_padding_mask: Tensor | None, attn_mask: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Turn torch's masks into what is allowed and what is added, both broadcastable to (N, num_heads, L, S)."""
        mask: Tensor | None = None
        bias: Tensor | None = None
        if key_padding_mask is not None:
            key_padding_mask = torch.atleast_2d(key_padding_mask)[:, None, None]  # type: ignore[no-untyped-call]
        if attn_mask is not None and attn_mask.dim() == 3:
            attn_mask = attn_mask.reshape(attn_mask.shape[0] // self.num_heads, self.num_heads, *attn_mask.shape[1:])
        for given in (key_padding_mask, attn_mask):
            if given is not None and given.is_floating_point():
                bias = given if bias is None else bias + given
            if given is not None:
                allowed = given != -torch.inf if given.is_floating_point() else ~given
                mask = allowed if mask is None else mask & allowed
        mask, bias = (None if x is None else x[(None,) * (4 - x.dim())] for x in (mask, bias))
        return mask, bias

    def _attend_nested(
        self, query: Tensor, key: Tensor, value: Tensor, need_weights: bool, average_attn_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Attend over nested tensors, into which ``torch.nn.TransformerEncoder`` packs padded input in evaluation."""
        lengths = [len(row) for row in key.unbind()]
        padding = torch.arange(max(lengths)) >= torch.tensor(lengths).unsqueeze(-1)
        q, k, v = (torch.nested.to_padded_tensor(x, 0.0) for x in (query, key, value))
        output, weights = self.forward(q, k, v, padding.to(k.device), need_weights, None, average_attn_weights)
        rows = [row[: len(asking)] for row, asking in zip(output.unbind(), query.unbind(), strict=True)]
        return torch.nested.as_nested_tensor(rows), weights

    def _check_inputs(self, given: tuple[Tensor, ...], key_padding_mask: Tensor | None, attn_mask: Tensor | None) -> None:
        check_tensors(*given)
        query, key, value = given
        dims = [x.dim() for x in given]
        if dims not in ([2] * 3, [3] * 3):
            raise ConfigurationError(
                f"Expected query, key and value all with 3 dimensions or all with 2 (unbatched) but got {dims}."
            )
        batched = query.dim() == 3
        along = 1 if batched and self.batch_first else 0
        n, length, source = query.shape[1 - along] if batched else 1, query.shape[along], key.shape[along]

        ahead, between = ((n,), ()) if along else ((), (n,) if batched else ())
        expected: list[tuple[str, Tensor | None, list[tuple[int, ...]]]] = [
            ("query", query, [(*ahead, length, *between, self.embed_dim)]),
            ("key", key, [(*ahead, source, *between, self.kdim)]),
            ("value", value, [(*ahead, source, *between, self.vdim)]),
            ("key_padding_mask", key_padding_mask, [(n, source) if batched else (source,)]),
            ("attn_mask", attn_mask, [(length, source), (n * self.num_heads, length, source)]),
        ]
        for name, tensor, shapes in expected:
            if tensor is not None and not (isinstance(tensor, Tensor) and is_dense(tensor)):
                raise ConfigurationError(f"Expected `{name}` to be a dense tensor but got {shown(tensor)}.")
            if tensor is not None and tuple(tensor.shape) not in shapes:
                order = f" with batch_first={self.batch_first}" if batched else ""
                allowed = " or ".join(map(str, shapes))
                raise ConfigurationError(f"Expected `{name}` of shape {allowed}{order} but got {tuple(tensor.shape)}.")
            if tensor is not None and "mask" in name and tensor.dtype != torch.bool and not tensor.is_floating_point():
                raise ConfigurationError(
                    f"Expected `{name}` to be boolean, True where to ignore, or floating, added to the scores, but got"
                    f" {tensor.dtype}. Convert it with `.bool()`."
                )
