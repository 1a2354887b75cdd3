"""Models that would stay softmax, and other bad input, are refused by name."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install -e '.[hf]'")

from lit_sparse.errors import ConfigurationError  # noqa: E402
from lit_sparse.hf import register, sparsify  # noqa: E402
from lit_sparse.hf.adapter import added_mask, attend, boolean_mask, split_mask  # noqa: E402
from lit_sparse.mappings import (  # noqa: E402
    Entmax,
    HardThreshold,
    HoyerProjection,
    LearnableEntmax,
    RegularizedArgmax,
    Softmax,
    Sparsemax,
    TopKSparsemax,
)

from . import tiny  # noqa: E402
from .own_attention import (  # noqa: E402
    ALL_ATTENTION_FUNCTIONS,
    FusedAttention,
    InterfaceAttention,
    OwnAttention,
    OwnConfig,
    OwnModel,
    TextAndImages,
    fallback,
)

SMALL = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 32}
OWN_SOFTMAX = {
    "DebertaV2": SMALL,
    "Bloom": {"vocab_size": 50, "hidden_size": 32, "n_layer": 1, "n_head": 4},
    "Falcon": SMALL,
    "XLNet": {"vocab_size": 50, "d_model": 32, "n_layer": 1, "n_head": 4, "d_inner": 32},
    "RoFormer": SMALL,
}


@pytest.mark.parametrize("name", OWN_SOFTMAX)
def test_a_model_with_its_own_softmax(name: str) -> None:
    config = getattr(transformers, f"{name}Config")(**OWN_SOFTMAX[name])
    model = getattr(transformers, f"{name}Model")(config)
    with pytest.raises(ConfigurationError, match=f"{name}Model would stay softmax: its layers compute their own softmax"):
        sparsify(model, Sparsemax())


def test_a_model_that_never_calls_the_interface() -> None:
    model = OwnModel(OwnConfig(), OwnAttention())
    assert model._can_set_attn_implementation()
    before = model.config._attn_implementation
    with pytest.raises(ConfigurationError, match="OwnModel would stay softmax: its forward pass never called the interface"):
        sparsify(model, Sparsemax())
    assert model.config._attn_implementation == before


@pytest.mark.parametrize("other", [OwnAttention, FusedAttention])
def test_a_model_with_one_layer_of_its_own(other: Any) -> None:
    config = OwnConfig()
    model = OwnModel(config, InterfaceAttention(config), other())
    with pytest.raises(ConfigurationError, match=r"layers\.1 compute their own softmax\. Give `layers`"):
        sparsify(model, Sparsemax())
    report = sparsify(model, Sparsemax(), layers=["layers.0"])
    assert report.others == ("layers.1",)
    assert "keeps its own softmax" in str(report)


def test_a_layer_with_a_copy_of_the_config_is_changed_too() -> None:
    config = OwnConfig()
    model = OwnModel(config, InterfaceAttention(config), InterfaceAttention(copy.deepcopy(config)))
    report = sparsify(model, TopKSparsemax(1))
    assert [layer.heads for layer in report.layers] == [1, 1]
    copied = model.layers[1].config
    before = copied._attn_implementation
    with pytest.raises(ConfigurationError, match="onto the simplex"):
        sparsify(model, HardThreshold(1))
    with pytest.raises(ConfigurationError, match="each layer once"):
        sparsify(model, Sparsemax(), layers=[1, 1])
    assert copied._attn_implementation == before == model.config._attn_implementation


def test_a_layer_that_keeps_its_eager_attention() -> None:
    """A layer that uses the interface, by a choice of its own that cannot be changed."""

    class EagerAttention(InterfaceAttention):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            function = ALL_ATTENTION_FUNCTIONS.get_interface("eager", fallback)
            return function(self, *3 * [x.unsqueeze(1)], None)[0].squeeze(2)

    config = OwnConfig()
    model = OwnModel(config, InterfaceAttention(config), EagerAttention(config))
    with pytest.raises(ConfigurationError, match=r"layers\.1 compute their own softmax"):
        sparsify(model, Sparsemax())
    assert sparsify(model, Sparsemax(), layers=[0]).others == ("layers.1",)
    with pytest.raises(ConfigurationError, match="number of one of the 1 attention layers"):
        sparsify(model, Sparsemax(), layers=[1])


def test_layers_that_the_small_pass_does_not_reach_are_changed_too() -> None:
    config = OwnConfig()
    model = TextAndImages(config, InterfaceAttention(config))
    model.image_layer = InterfaceAttention(config)
    report = sparsify(model, TopKSparsemax(1))
    assert [(layer.name, layer.heads) for layer in report.layers] == [("layers.0", 1), ("image_layer", None)]
    assert "not reached" in str(report)
    images = torch.randn(1, 3, 4)
    best = images @ images.mT
    chosen = images.gather(1, best.argmax(-1, keepdim=True).expand(-1, -1, 4))
    torch.testing.assert_close(model.image_layer(images), chosen)


@pytest.mark.parametrize("main", ["input_ids", ["pixel_values", "task_inputs"]])
def test_a_small_pass_gives_what_the_model_accepts(main: Any) -> None:
    """Some models name a main input that they do not take, and pass on further options; some name a list."""

    class Images(OwnModel):
        main_input_name = main

        def forward(self, pixel_values: torch.Tensor, **options: Any) -> Any:
            if options:  # as the function of attention does with an unknown keyword
                raise ConfigurationError(f"Expected no {options.keys()}.")
            return self.layers[0](pixel_values.mean(1))

    config = OwnConfig()
    assert len(sparsify(Images(config, InterfaceAttention(config)), Sparsemax()).layers) == 1


def test_keywords() -> None:
    config = OwnConfig()
    for options in ({"relative_keys": torch.ones(1)}, {"cache": object()}):
        with pytest.raises(ConfigurationError, match=f"InterfaceAttention passes `{next(iter(options))}`"):
            sparsify(OwnModel(config, InterfaceAttention(config, **options)), Sparsemax())
    for options in ({"relative_keys": None}, {"sliding_window": 3}, {"position_ids": torch.ones(1)}):
        assert sparsify(OwnModel(config, InterfaceAttention(config, **options)), Sparsemax()).layers


@pytest.mark.parametrize("mask", [torch.ones(1, 1, 3, 3, dtype=torch.long), [[True]]])
def test_masks_of_the_wrong_kind(mask: Any) -> None:
    x = torch.randn(1, 2, 3, 4)
    with pytest.raises(ConfigurationError, match="Expected an attention mask that is boolean"):
        attend(torch.nn.Identity(), x, x, x, mask, Sparsemax())
    with pytest.raises(ConfigurationError, match="can be broadcast"):
        attend(torch.nn.Identity(), x, x, x, torch.ones(1, 1, 3, 2, dtype=torch.bool), Sparsemax())


def test_masks_are_made_and_split() -> None:
    causal = torch.ones(3, 3, dtype=torch.bool).tril()
    made = boolean_mask(batch_size=1, q_length=3, kv_length=3, allow_is_causal_skip=True)
    assert made is not None and torch.equal(made[0, 0], causal)
    added = split_mask(added_mask(batch_size=1, q_length=3, kv_length=3, allow_is_causal_skip=True, dtype=torch.float16))
    assert torch.equal(added[0][0, 0], causal) and not added[1].any()
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        lowest = torch.finfo(dtype).min
        allowed, bias = split_mask(torch.tensor([0.5, -10000.0, lowest / 4, lowest / 2, lowest, -torch.inf], dtype=dtype))
        assert allowed.tolist() == [True, True, True, False, False, False]
        assert bias[:2].tolist() == [0.5, torch.tensor(-10000.0, dtype=dtype).item()] and (bias[3:] == 0).all()


def test_a_missing_mask_is_causal_where_the_call_says_so() -> None:
    x = torch.randn(1, 2, 3, 4)
    layer = torch.nn.Identity()
    layer.is_causal = True  # without effect in eager attention
    assert (attend(layer, x, x, x, None, Softmax())[1] > 0).all()
    assert (attend(layer, x, x, x, None, Softmax(), is_causal=True)[1].triu(1) == 0).all()
    assert (attend(layer, x[..., :1, :], x, x, None, Softmax(), is_causal=True)[1] > 0).all()


def test_weights_through_the_config() -> None:
    model = tiny.bert()
    model.set_attn_implementation("eager")
    model.config.output_attentions = True
    with pytest.raises(ConfigurationError, match=r"without `output_attentions=True`.*Set it to False"):
        sparsify(model, Sparsemax())
    model.config.output_attentions = False
    sparsify(model, Sparsemax())
    assert (model(**tiny.tokens(), output_attentions=True).attentions[0] == 0).any()


@pytest.mark.parametrize("mapping", [HardThreshold(2), HoyerProjection(0.5)])
def test_mappings_off_the_simplex(mapping: Any) -> None:
    for use in (lambda: sparsify(tiny.llama(), mapping), lambda: register(own=mapping)):
        with pytest.raises(ConfigurationError, match="Expected a mapping onto the simplex, because attention averages values"):
            use()


@pytest.mark.parametrize(
    ("mapping", "text"),
    [
        (Sparsemax, "but got the class Sparsemax"),
        ("sparsemax", "Expected `mapping` to be a SparseMapping"),
        (RegularizedArgmax(lambda y: y.square().sum(-1)), "whose arguments can be saved"),
        (Entmax(torch.nn.Parameter(torch.tensor(1.5))), "whose arguments can be saved"),
        ([Sparsemax()] * 3, "one for each of 2 layers, but got 3"),
        ([], "one for each of 2 layers, but got 0"),
        (LearnableEntmax((3, 1, 1)), "can be broadcast to the scores' shape"),
    ],
)
def test_mappings(mapping: Any, text: str) -> None:
    model = tiny.llama()
    before, outputs = model.config._attn_implementation, tiny.outputs_of(model)
    with pytest.raises(ConfigurationError, match=re.escape(text)):
        sparsify(model, mapping)
    assert model.config._attn_implementation == before
    assert torch.equal(tiny.outputs_of(model), outputs)
    assert not [key for key in model.state_dict() if "lit_sparse" in key]
    assert not hasattr(model.config, "lit_sparse")


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        ([2], "number of one of the 2 attention layers but got 2"),
        ([True], "but got True"),
        ([0, -2], "each layer once"),
        ([], "Expected `layers` to be numbers or names"),
        ("model.layers.0.self_attn", "Expected `layers` to be numbers or names"),
        (["model.layer.0.self_attn"], "Did you mean 'model.layers.0.self_attn'?"),
    ],
)
def test_layers(layers: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(text)):
        sparsify(tiny.llama(), Sparsemax(), layers=layers)


def test_models() -> None:
    with pytest.raises(ConfigurationError, match=r"Expected a PreTrainedModel of transformers but got torch\.nn\..*Linear"):
        sparsify(torch.nn.Linear(2, 2), Sparsemax())
    with pytest.raises(ConfigurationError, match="to be one of"):
        sparsify(tiny.llama(), Sparsemax(), start="warm")  # type: ignore[arg-type]
    with pytest.raises(
        ConfigurationError, match=r"forward pass of LlamaForCausalLM with pixel_values to run .* Give `example`"
    ):
        sparsify(tiny.llama(), Sparsemax(), example={"pixel_values": torch.ones(1)})


def test_registering() -> None:
    with pytest.raises(ConfigurationError, match=r"without parameters .* Call `lit_sparse\.hf\.sparsify"):
        register(own=LearnableEntmax())
    with pytest.raises(ConfigurationError, match="lower-case letters"):
        register(**{"own/kernel": Sparsemax()})
    assert register(top2=TopKSparsemax(2)) == ["lit_sparse_top2"]
    model = tiny.llama()
    model.set_attn_implementation("lit_sparse_top2")
    assert ((model(**tiny.tokens(), output_attentions=True).attentions[0] != 0).sum(-1) <= 2).all()


def test_names_have_an_attention_and_a_mask() -> None:
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    names = register()
    assert {
        f"lit_sparse_{name}"
        for name in ("softmax", "sparsemax", "entmax15", "fusedmax", "oscarmax", "sq_pnorm_max", "norm_max")
    } == set(names)
    for name in names:
        assert not re.search(r"/|flash|flex_attention|sdpa|paged", name)
        assert name in AttentionInterface() and name in AttentionMaskInterface()


def test_a_layer_without_its_mapping_does_not_fall_back() -> None:
    model = tiny.llama()
    sparsify(model, Sparsemax())
    del model.model.layers[1].self_attn.lit_sparse
    with pytest.raises(ConfigurationError, match="LlamaAttention to have a mapping but it has none"):
        tiny.outputs_of(model)


def test_continuous_batching() -> None:
    model = tiny.llama()
    sparsify(model, Sparsemax())
    with pytest.raises(Exception, match="lit_sparse"):
        model.generate_batch([[3, 4, 5]], generation_config=transformers.GenerationConfig(max_new_tokens=2))
