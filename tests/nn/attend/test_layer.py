"""Attention against torch's own, and what a mapping other than softmax changes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lit_sparse.errors import ConfigurationError
from lit_sparse.mappings import LearnableEntmax, Softmax, SparseMapping, Sparsemax, TopKSparsemax
from lit_sparse.nn import MultiheadAttention, attention

N, L, S, E, H = 3, 4, 5, 8, 2
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no_bias": {"bias": False},
    "bias_kv": {"add_bias_kv": True},
    "zero_attn": {"add_zero_attn": True},
    "widths": {"kdim": 6, "vdim": 10},
    "everything": {"add_bias_kv": True, "add_zero_attn": True, "kdim": 6, "vdim": 8, "bias": False},
}
LAYOUTS = {"batch_first": {"batch_first": True}, "length_first": {}, "unbatched": {"batch_first": True}}
MASKS = ["none", "padding", "pairs", "pairs_of_heads", "both", "float_padding", "float_pairs", "float_both"]


class HeadTemperature(Sparsemax):
    """Sparsemax of scores times one learnt strength for each head."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.strength = nn.Parameter(torch.linspace(0.5, 2.0, heads).view(heads, 1, 1))

    def map(self, scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        return super().map(scores * self.strength, mask, dim)


def inputs_of(layer: nn.MultiheadAttention, layout: str) -> list[Tensor]:
    shapes = {"batch_first": ((N, L), (N, S)), "length_first": ((L, N), (S, N)), "unbatched": ((L,), (S,))}[layout]
    widths = zip((shapes[0], shapes[1], shapes[1]), (layer.embed_dim, layer.kdim, layer.vdim), strict=True)
    return [torch.randn(*shape, width, dtype=torch.float64, requires_grad=True) for shape, width in widths]


def masks_of(kind: str, layout: str) -> dict[str, Tensor]:
    """Draw masks by torch's convention that leave every query the first key."""
    batch = 1 if layout == "unbatched" else N
    padding = torch.rand(batch, S) < 0.4
    pairs = torch.rand(*((batch * H, L, S) if kind == "pairs_of_heads" else (L, S))) < 0.4
    padding[..., 0] = pairs[..., 0] = False
    masks = {}
    if "padding" in kind or "both" in kind:
        masks["key_padding_mask"] = padding if layout != "unbatched" else padding[0]
    if "pairs" in kind or "both" in kind:
        masks["attn_mask"] = pairs
    if "float" in kind:
        masks = {name: torch.randn(m.shape, dtype=torch.float64).masked_fill(m, -torch.inf) for name, m in masks.items()}
    return masks


def pair(mapping: SparseMapping | None = None, **options: Any) -> tuple[MultiheadAttention, nn.MultiheadAttention]:
    """Build our layer and torch's with the same parameters, none of them zero."""
    ours = MultiheadAttention(E, H, dtype=torch.float64, mapping=mapping, **options)
    theirs = nn.MultiheadAttention(E, H, dtype=torch.float64, **options)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.5)
    ours.load_state_dict(theirs.state_dict(), strict=mapping is None)
    return ours, theirs


def naive_attention(query: Tensor, key: Tensor, value: Tensor, mapping: SparseMapping, mask: Tensor) -> Tensor:
    """One query at a time, over its allowed keys."""
    output = torch.zeros(*query.shape[:-1], value.shape[-1], dtype=query.dtype)
    for index in itertools.product(*map(range, query.shape[:-1])):
        lead, allowed = index[:-1], mask.expand(*query.shape[:-1], key.shape[-2])[index]
        if allowed.any():
            scores = (key[lead][allowed] * query[index]).sum(-1) / query.shape[-1] ** 0.5
            output[index] = (mapping(scores).unsqueeze(-1) * value[lead][allowed]).sum(0)
    return output


# The function


@pytest.mark.parametrize("mapping", [Softmax(gamma=0.7), Sparsemax(dim=0), TopKSparsemax(2)], ids=repr)
@pytest.mark.parametrize("shape", [(S,), (L, S), (1, 1, S), (H, 1, S), (N, H, L, S), (1, 1, L, 1)])
def test_the_function_is_the_sum_over_allowed_keys(mapping: SparseMapping, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(N, H, n, w, dtype=torch.float64) for n, w in ((L, E), (S, E), (S, 3)))
    mask = torch.rand(shape) < 0.6
    output, weights = attention(query, key, value, mapping, mask)
    assert output.shape == (N, H, L, 3) and weights.shape == (N, H, L, S)
    assert bool((weights[~mask.expand_as(weights)] == 0).all())
    flat = Sparsemax() if isinstance(mapping, Sparsemax) else mapping
    torch.testing.assert_close(output, naive_attention(query, key, value, flat, mask))


def test_the_function_is_torchs_with_softmax() -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(N, n, w, dtype=torch.float64) for n, w in ((L, E), (S, E), (S, 3)))
    torch.testing.assert_close(attention(query, key, value, Softmax())[0], F.scaled_dot_product_attention(query, key, value))
    shared = attention(query, key[0], value[0], Softmax())[0]  # one memory for all queries
    torch.testing.assert_close(shared[1], F.scaled_dot_product_attention(query[1], key[0], value[0]))


def test_scale_and_bias_are_torchs() -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(N, H, n, w, dtype=torch.float64) for n, w in ((L, E), (S, E), (S, 3)))
    bias = torch.randn(H, L, S, dtype=torch.float64)
    bias[:, 1, 2:] = -torch.inf
    mask = torch.rand(N, 1, L, S) < 0.7
    mask[..., 0] = True
    ours, weights = attention(query, key, value, Softmax(), mask, scale=0.7, bias=bias)
    both = bias.masked_fill(~mask, -torch.inf)
    torch.testing.assert_close(ours, F.scaled_dot_product_attention(query, key, value, both, scale=0.7))
    assert bool((weights[:, :, 1, 2:] == 0).all())
    nowhere, _ = attention(query, key, value, Sparsemax(), bias=torch.full((L, 1), -torch.inf))
    assert bool((nowhere == 0).all())


def test_a_soft_cap_bounds_the_scores_before_the_bias() -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(N, n, w, dtype=torch.float64) for n, w in ((L, E), (S, E), (S, 3)))
    bias = torch.randn(L, S, dtype=torch.float64)
    _, weights = attention(query, key, value, Sparsemax(), scale=0.7, bias=bias, softcap=0.3)
    scores = 0.3 * torch.tanh(0.7 * query @ key.mT / 0.3)
    torch.testing.assert_close(weights, Sparsemax()(scores + bias))
    for cap in (0.0, -1.0):
        with pytest.raises(ConfigurationError, match="`softcap`"):
            attention(query, key, value, Sparsemax(), softcap=cap)


def test_a_given_scale_multiplies_the_products() -> None:
    query, key, value = torch.randn(N, L, E), torch.randn(N, S, E), torch.randn(N, S, 3)
    _, weights = attention(query, key, value, Softmax(), scale=0.3)
    assert torch.equal(weights, torch.softmax(query @ key.mT * 0.3, -1))


def test_grouped_queries_of_one_query() -> None:
    query, key, value = torch.randn(N, 6, 1, E), torch.randn(N, 2, S, E), torch.randn(N, 2, S, 3)
    ours = attention(query, key, value, Sparsemax())
    theirs = attention(query, key.repeat_interleave(3, 1), value.repeat_interleave(3, 1), Sparsemax())
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("mapping", [Softmax(), Sparsemax(), LearnableEntmax(shape=(6, 1, 1)).double()], ids=repr)
@pytest.mark.parametrize("shape", [None, (L, S), (6, L, S), (N, 1, 1, S), (N, 6, L, S)])
def test_grouped_queries_are_repeated_keys(mapping: SparseMapping, shape: tuple[int, ...] | None) -> None:
    torch.manual_seed(0)
    query = torch.randn(N, 6, L, E, dtype=torch.float64, requires_grad=True)
    key, value = (torch.randn(N, 2, S, w, dtype=torch.float64, requires_grad=True) for w in (E, 3))
    mask = None if shape is None else torch.rand(shape) < 0.7
    ours, weights = attention(query, key, value, mapping, mask)
    theirs, expected = attention(query, key.repeat_interleave(3, 1), value.repeat_interleave(3, 1), mapping, mask)
    torch.testing.assert_close((ours, weights), (theirs, expected))
    slopes = [torch.autograd.grad(output.square().sum(), (query, key, value)) for output in (ours, theirs)]
    torch.testing.assert_close(*slopes)
    if isinstance(mapping, Softmax) and mask is None:
        torch.testing.assert_close(ours, F.scaled_dot_product_attention(query, key, value, enable_gqa=True))


def test_nan_of_keys_that_no_head_of_a_group_may_see_stays_out() -> None:
    query, key, value = torch.randn(N, 4, L, E), torch.randn(N, 2, S, E), torch.randn(N, 2, S, 3)
    mask = torch.ones(4, L, S, dtype=torch.bool)
    mask[2:, :, 1] = False
    key[:, 1, 1] = value[:, 1, 1] = torch.nan
    assert bool(attention(query, key, value, Sparsemax(), mask)[0].isfinite().all())


def test_dropout_of_the_function() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(8, 50, E), torch.randn(8, 60, E), torch.randn(8, 60, 3)
    _, whole = attention(query, key, value, Softmax())
    output, weights = attention(query, key, value, Softmax(), dropout=0.25)
    dropped = weights == 0
    assert abs(float(dropped.double().mean()) - 0.25) < 0.02
    torch.testing.assert_close(weights[~dropped], whole[~dropped] / 0.75)
    torch.testing.assert_close(output, weights @ value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bias": torch.ones(L, S, dtype=torch.bool)}, "`bias` to be a floating tensor but got torch.bool"),
        ({"bias": torch.ones(L, S + 1)}, "a bias that can be broadcast"),
        ({"dropout": 1.5}, "`dropout`"),
        ({"key": torch.randn(3, S, E), "value": torch.randn(3, S, 3)}, "divides the number of query heads"),
        ({"value": torch.randn(4, S, 3)}, "equally many key and value heads"),
    ],
)
def test_bad_arguments_of_the_function(options: dict[str, Any], message: str) -> None:
    given = {"query": torch.randn(4, L, E), "key": torch.randn(2, S, E), "value": torch.randn(2, S, 3)} | options
    with pytest.raises(ConfigurationError, match=message):
        attention(mapping=Softmax(), **given)


@pytest.mark.parametrize("mapping", [Softmax(), Sparsemax()], ids=repr)
@pytest.mark.parametrize("garbage", [torch.nan, torch.inf, -torch.inf])
def test_what_nobody_may_see_is_not_seen(mapping: SparseMapping, garbage: float) -> None:
    torch.manual_seed(0)
    mask = torch.rand(N, L, S) < 0.7
    mask[:, :, 3] = False  # a key without queries
    mask[:, 2] = False  # a query without keys
    results = []
    for fill in (0.0, garbage):
        torch.manual_seed(1)
        query, key, value = torch.randn(N, L, E), torch.randn(N, S, E), torch.randn(N, S, 3)
        query[:, 2], key[:, 3], value[:, 3] = fill, fill, fill
        inputs = [x.requires_grad_() for x in (query, key, value)]
        output, weights = attention(*inputs, mapping, mask)
        assert bool((output[:, 2] == 0).all()) and bool((weights[:, 2] == 0).all())
        grads = torch.autograd.grad(output.square().sum() + weights.square().sum(), inputs)
        assert all(bool((x == 0).all()) for x in (grads[0][:, 2], grads[1][:, 3], grads[2][:, 3]))
        results.append((output, weights, *grads))
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)


def test_derivatives_of_the_function() -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(2, n, w, dtype=torch.float64, requires_grad=True) for n, w in ((3, 4), (5, 4), (5, 2))]
    mask = torch.tensor([[1, 1, 0, 1, 1], [0, 0, 0, 0, 0], [1, 1, 0, 0, 1]], dtype=torch.bool)
    for mapping in (Softmax(), Sparsemax(gamma=0.5)):
        function = lambda *x, mapping=mapping: attention(*x, mapping, mask)  # noqa: E731
        assert torch.autograd.gradcheck(function, inputs, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(function, inputs)


@pytest.mark.parametrize("length, source", [(0, 3), (3, 0)])
def test_empty_sequences(length: int, source: int) -> None:
    for mask in (None, torch.ones(length, source, dtype=torch.bool)):
        output, weights = attention(
            torch.randn(2, length, E), torch.randn(2, source, E), torch.randn(2, source, 3), Sparsemax(), mask
        )
        assert output.shape == (2, length, 3) and weights.shape == (2, length, source)
        assert bool((output == 0).all())
    layer = MultiheadAttention(E, H, batch_first=True, add_zero_attn=True, mapping=Sparsemax())
    memory, padding = torch.randn(2, source, E), torch.zeros(2, source, dtype=torch.bool)
    assert layer(torch.randn(2, length, E), memory, memory, padding)[0].shape == (2, length, E)


# The layer with softmax is torch's


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("options", OPTIONS)
def test_softmax_is_torchs_layer(options: str, layout: str, masks: str) -> None:
    torch.manual_seed(0)
    ours, theirs = pair(**OPTIONS[options], **LAYOUTS[layout])
    inputs, given = inputs_of(theirs, layout), masks_of(masks, layout)
    results = []
    for layer in (ours, theirs):
        output, weights = layer(*inputs, **given)
        per_head = layer(*inputs, **given, average_attn_weights=False)[1]
        alone, nothing = layer(*inputs, **given, need_weights=False)
        assert nothing is None
        loss = output.square().sum() + weights.square().sum() + per_head.exp().sum()
        grads = torch.autograd.grad(loss, [*inputs, *layer.parameters()])
        results.append((output, weights, per_head, alone, *grads))
    torch.testing.assert_close(results[0], results[1], rtol=1e-10, atol=1e-12)


def test_softmax_is_torchs_layer_in_single_precision() -> None:
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(64, 4, batch_first=True)
    ours = MultiheadAttention(64, 4, batch_first=True)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(8, 20, 64)
    torch.testing.assert_close(ours(x, x, x), theirs(x, x, x), rtol=0, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(ours.eval()(x, x, x), theirs.eval()(x, x, x), rtol=0, atol=1e-6)


def test_queries_whom_only_the_appended_positions_answer() -> None:
    torch.manual_seed(0)
    ours, theirs = pair(add_bias_kv=True, add_zero_attn=True)
    inputs = inputs_of(theirs, "length_first")
    mask = torch.zeros(L, S, dtype=torch.bool)
    mask[1] = True
    torch.testing.assert_close(ours(*inputs, attn_mask=mask), theirs(*inputs, attn_mask=mask))
    assert ours(*inputs, attn_mask=mask)[1][:, 1].unique().numel() > 2  # their weights do depend on the query


def test_causal_hint() -> None:
    torch.manual_seed(0)
    ours, theirs = pair(batch_first=True)
    x = torch.randn(N, L, E, dtype=torch.float64)
    causal = nn.Transformer.generate_square_subsequent_mask(L, dtype=torch.float64)
    for mask, need_weights in itertools.product((causal, causal != 0), (True, False)):
        for layer in (ours, theirs):
            layer.train()
        expected = theirs(x, x, x, attn_mask=mask, is_causal=True, need_weights=need_weights)
        torch.testing.assert_close(ours(x, x, x, attn_mask=mask, is_causal=True, need_weights=need_weights), expected)


def test_a_boolean_mask_beside_a_floating_one() -> None:
    torch.manual_seed(0)
    ours, _ = pair(batch_first=True)
    inputs = inputs_of(ours, "batch_first")
    padding = masks_of("padding", "batch_first")["key_padding_mask"]
    bias = torch.randn(L, S, dtype=torch.float64)
    mixed = ours(*inputs, key_padding_mask=padding, attn_mask=bias)
    floating = torch.zeros(N, S, dtype=torch.float64).masked_fill(padding, -torch.inf)
    torch.testing.assert_close(mixed, ours(*inputs, key_padding_mask=floating, attn_mask=bias))
    assert bool((mixed[1] == 0).any()) and not bool((mixed[1] == 0)[:, :, 0].any())


def test_gradient_of_a_floating_mask_is_torchs() -> None:
    torch.manual_seed(0)
    ours, theirs = pair(batch_first=True)
    inputs = inputs_of(ours, "batch_first")
    mask = masks_of("float_pairs", "batch_first")["attn_mask"].requires_grad_()
    grads = [torch.autograd.grad(layer(*inputs, attn_mask=mask)[0].square().sum(), mask)[0] for layer in (ours, theirs)]
    torch.testing.assert_close(grads[0], grads[1])
    assert bool((grads[0] != 0).any())


@pytest.mark.parametrize("need_weights", [True, False])
def test_dropout_draws_what_torch_draws(need_weights: bool) -> None:
    torch.manual_seed(0)
    ours, theirs = pair(dropout=0.4, batch_first=True)
    inputs = inputs_of(ours, "batch_first")
    results = []
    for layer in (ours, theirs):
        torch.manual_seed(7)
        results.append(layer(*inputs, need_weights=need_weights))
    torch.testing.assert_close(results[0], results[1])
    dropped = ours(*inputs)[0]
    assert not torch.equal(dropped, ours(*inputs)[0])
    assert torch.equal(ours.eval()(*inputs)[0], ours(*inputs)[0])


@pytest.mark.parametrize("options", OPTIONS)
def test_parameters_have_torchs_names_and_first_values(options: str) -> None:
    states = []
    for cls in (MultiheadAttention, nn.MultiheadAttention):
        torch.manual_seed(3)
        layer = cls(E, H, **OPTIONS[options])
        states.append(layer.state_dict())
        torch.manual_seed(3)
        layer._reset_parameters()
        assert all(torch.equal(layer.state_dict()[name], value) for name, value in states[-1].items() if "out_proj" not in name)
    assert list(states[0]) == list(states[1])
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    nn.MultiheadAttention(E, H, **OPTIONS[options]).load_state_dict(states[0])


# Masks


@pytest.mark.parametrize("mapping", [Softmax(), Sparsemax()], ids=repr)
@pytest.mark.parametrize("floating", [False, True])
def test_a_query_with_nothing_allowed(mapping: SparseMapping, floating: bool) -> None:
    torch.manual_seed(0)
    layer, _ = pair(mapping, batch_first=True)
    inputs = inputs_of(layer, "batch_first")
    mask = torch.zeros(L, S, dtype=torch.bool)
    mask[1] = True
    if floating:
        mask = torch.zeros(L, S, dtype=torch.float64).masked_fill(mask, -torch.inf)
    with torch.no_grad():
        inputs[0][:, 1] = torch.nan  # a query that asks nothing has no say
    output, weights = layer(*inputs, attn_mask=mask)
    torch.testing.assert_close(output[:, 1], layer.out_proj.bias.expand(N, E), rtol=0, atol=0)
    assert bool((weights[:, 1] == 0).all())
    grads = torch.autograd.grad(output.square().sum(), [*inputs, *layer.parameters()])
    assert all(bool(grad.isfinite().all()) for grad in grads)
    assert bool((grads[0][:, 1] == 0).all()) and bool((grads[0][:, 0] != 0).any())


@pytest.mark.parametrize("mapping", [Softmax(), Sparsemax()], ids=repr)
@pytest.mark.parametrize("layout", ["batch_first", "length_first"])
@pytest.mark.parametrize("floating", [False, True])
@pytest.mark.parametrize("self_attention", [False, True])
def test_nan_in_padding_stays_there(mapping: SparseMapping, layout: str, floating: bool, self_attention: bool) -> None:
    torch.manual_seed(0)
    layer, _ = pair(mapping, batch_first=layout == "batch_first")
    padding = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0], [0, 1, 1, 1, 1]], dtype=torch.bool)
    mask = torch.zeros(N, S, dtype=torch.float64).masked_fill(padding, -torch.inf) if floating else padding
    x, other = torch.randn(N, S, E, dtype=torch.float64), torch.randn(N, S, E, dtype=torch.float64)
    results = []
    for fill in (0.0, torch.nan):
        layer.zero_grad()
        filled = x.masked_fill(padding.unsqueeze(-1), fill)
        filled, query = (t if layer.batch_first else t.transpose(0, 1) for t in (filled, other))
        filled = filled.clone().requires_grad_()
        output, weights = layer(filled if self_attention else query, filled, filled, key_padding_mask=mask)
        output = output if layer.batch_first else output.transpose(0, 1)
        kept = ~padding if self_attention else torch.ones_like(padding)
        (output[kept].square().sum() + weights[kept].square().sum()).backward()
        results.append((output[kept], weights[kept], filled.grad, *(p.grad for p in layer.parameters())))
    torch.testing.assert_close(results[1], results[0])


def test_finite_padding_asks_as_in_torch() -> None:
    torch.manual_seed(0)
    ours, theirs = pair(batch_first=True)
    x = torch.randn(N, S, E, dtype=torch.float64)
    padding = torch.arange(S).expand(N, S) > 2
    torch.testing.assert_close(ours(x, x, x, padding), theirs(x, x, x, padding))


# Other mappings


def test_sparsemax_gives_exact_zeros() -> None:
    torch.manual_seed(0)
    layer, _ = pair(Sparsemax(gamma=0.2), batch_first=True)
    weights = layer(*inputs_of(layer, "batch_first"), average_attn_weights=False)[1]
    assert 0.2 < float((weights == 0).double().mean()) < 0.9
    torch.testing.assert_close(weights.sum(-1), torch.ones(N, H, L, dtype=torch.float64))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_parameter_for_each_head(layout: str) -> None:
    torch.manual_seed(0)
    mapping = HeadTemperature(H)
    layer, _ = pair(mapping.double(), **LAYOUTS[layout])
    assert "mapping.strength" in layer.state_dict()
    inputs = inputs_of(layer, layout)
    per_head = layer(*inputs, average_attn_weights=False)[1]
    for h in range(H):  # a loss of one head's weights moves its own parameter
        own = per_head.movedim(-3, 0)[h].square().sum()
        (grad,) = torch.autograd.grad(own, mapping.strength, retain_graph=True)
        assert grad[h] != 0 and int((grad != 0).sum()) == 1
    fixed, _ = pair(Sparsemax(gamma=1 / mapping.strength[0].item()), **LAYOUTS[layout])
    fixed.load_state_dict(layer.state_dict(), strict=False)
    torch.testing.assert_close(per_head.movedim(-3, 0)[0], fixed(*inputs, average_attn_weights=False)[1].movedim(-3, 0)[0])
    loss = layer(*inputs)[0].square().sum()
    assert bool((torch.autograd.grad(loss, mapping.strength)[0] != 0).all())


# Inside torch's own layers


# Under torch's transformations


# Refusals


# A small training


def test_inputs_have_the_dtype_of_the_weights_and_projections_the_batch_of_the_queries() -> None:
    layer, x = MultiheadAttention(8, 2, batch_first=True, mapping=Sparsemax()), torch.randn(2, 3, 8)
    key, value = layer.project_memory(x, x)
    for call, message in (
        (lambda: layer(x.double(), x.double(), x.double()), "query of torch.float32, as the weights are"),
        (lambda: layer.project_memory(x.double(), x), "key of torch.float32, as the weights are"),
        (lambda: layer.attend_projected(x, key[:1], value[:1]), r"key \(2, 2, S, 4\) but got shape \(1, 2, 3, 4\)"),
        (lambda: layer.attend_projected(x, key, value[:, :, 1:]), r"value \(2, 2, 3, 4\) but got"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            call()
