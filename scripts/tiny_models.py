"""Tiny random models of the architectures of transformers, made from their default configs, with inputs that they run on.

There is no list of architectures. Sizes are recognized by the names of attributes, in all parts of a composite config, and some
fields are made to agree. Several recipes are tried until a model runs, from the smallest to the default config.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from lit_sparse.hf.probe import example_inputs

__all__ = ["class_of", "first_pass", "run", "tiny_models"]

#: Group of sizes -> ends of attribute names, and their tiny value; the first match counts.
SIZES: dict[str, tuple[tuple[str, ...], int]] = {
    "groups": (("n_group", "topk_group", "num_expert_group", "n_groups"), 1),
    "key heads": (("num_key_value_heads", "num_kv_heads", "n_kv_heads", "multi_query_group_num"), 2),
    "heads": (("attention_heads", "num_heads", "n_head", "n_heads"), 4),
    "vocabulary": (("vocab_size",), 99),
    "experts": (("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts"), 4),
    "chosen": (
        ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts", "num_selected_experts"),
        2,
    ),
    "rotary": (("rotary_dim", "rotary_ndims"), 4),
    "period": (("attn_layer_period",), 2),
    "offset": (("attn_layer_offset",), 1),
    "head": (("head_dim", "d_kv", "attention_head_dim", "kv_lora_rank", "q_lora_rank"), 8),
    "inner": (("intermediate_size", "ffn_dim", "d_ff", "n_inner", "mlp_dim", "d_inner"), 32),
    "width": (("hidden_size", "d_model", "n_embd", "embed_dim", "dim", "hidden_dim", "embedding_size", "projection_dim"), 32),
    "image": (("image_size",), 32),
    "patch": (("patch_size",), 8),
    "layers": (("hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers", "depth"), 2),
}
ALL = frozenset(SIZES)
WIDTHS = frozenset({"head", "heads", "key heads", "width", "rotary"})
#: Groups that are made tiny, and the number of layers.
RECIPES: list[tuple[frozenset[str], int]] = [
    (ALL, 2),
    (ALL - {"head"}, 2),
    (ALL - {"head"}, 8),
    (ALL - {"image", "patch"}, 2),
    (ALL - WIDTHS, 2),
    (ALL - WIDTHS - {"image", "patch"}, 2),
    (frozenset({"vocabulary", "layers"}), 2),
    (frozenset({"vocabulary"}), 0),
]
#: Values of attributes that are None in a default config, and without which no model can be built.
MISSING = {
    "vocab_size": 99,
    "prediction_length": 4,
    "context_length": 4,
    "pad_token_id": 0,
    "attn_layer_indices": [1],
    "default_language": "en_XX",
    "mask_token_id": 4,
}
LARGEST = 300_000_000


def class_of(model_type: str) -> str:
    """Return the class of an architecture: the base model, else a model for a task, else the first in its file.

    Raises:
        ValueError: if there is none.
    """
    tables = {name: table for name, table in vars(modeling_auto).items() if name.endswith("MAPPING_NAMES")}
    for table in [tables["MODEL_MAPPING_NAMES"], *(t for name, t in tables.items() if "CONFIG" not in name)]:
        if model_type in table:
            names = table[model_type]
            return names if isinstance(names, str) else names[0]
    config = getattr(transformers, CONFIG_MAPPING_NAMES[model_type])
    module = import_module(config.__module__.replace(".configuration_", ".modeling_"))
    for name, kind in vars(module).items():
        if inspect.isclass(kind) and getattr(kind, "config_class", None) is config and "forward" in vars(kind):
            return name
    raise ValueError("transformers has no model of this config")


def tiny_models(model_type: str, name: str) -> Iterator[Any]:
    """Yield models of one architecture, or the errors of building them."""
    for groups, layers in RECIPES:
        try:
            config = transformers.AutoConfig.for_model(model_type)
            shrink(config, groups, layers)
            build = functools.partial(_class(config, name)._from_config, config, attn_implementation="eager")
            with torch.device("meta"):
                size = sum(p.numel() for p in build().parameters())
            if size > LARGEST:
                raise ValueError(f"the config stays large: {size:,} parameters")
            torch.manual_seed(0)
            yield build().eval().float()
        except BaseException as error:  # some models exit
            if isinstance(error, GeneratorExit):
                raise
            yield error


def _class(config: Any, name: str) -> Any:
    return getattr(transformers, name, None) or getattr(
        import_module(type(config).__module__.replace(".configuration_", ".modeling_")), name
    )


def shrink(config: Any, groups: frozenset[str], layers: int) -> None:
    """Make a config and its parts tiny."""
    for part in config.sub_configs:
        if getattr(getattr(config, part, None), "model_type", "") == "timm_backbone":  # needs a further package
            sizes = {"hidden_sizes": [8, 16, 24, 32], "embedding_size": 8, "depths": [1, 1, 1, 1], "layer_type": "basic"}
            setattr(config, part, transformers.ResNetConfig(**sizes, out_features=["stage2", "stage3", "stage4"]))
        elif getattr(config, part, None) is not None:
            shrink(getattr(config, part), groups, layers)
    values = dict(vars(config))
    grouped = values.get("num_key_value_heads") != values.get("num_attention_heads")
    for key, value in values.items():
        group = next((group for group, (ends, _) in SIZES.items() if _named(key, ends)), None)
        if group not in groups or isinstance(value, bool) or not isinstance(value, int):
            continue
        size = layers if group == "layers" else 4 if group == "key heads" and not grouped else SIZES[group][1]
        if 0 < size < value:
            with contextlib.suppress(Exception):
                setattr(config, key, size)
    for key, missing in MISSING.items():
        if key in values and (values[key] is None or isinstance(missing, list)):
            setattr(config, key, missing)
    width, heads = (getattr(config, name, None) for name in ("hidden_size", "num_attention_heads"))
    if values.get("head_dim", 0) is None and isinstance(width, int) and isinstance(heads, int):
        config.head_dim = width // heads
    if "num_key_value_heads" in values and values["num_key_value_heads"] is None:
        config.num_key_value_heads = heads
    if isinstance(rope := values.get("rope_parameters"), dict) and "head" in groups:
        rope["mrope_section"] = [2, 1, 1]  # of a head of 8
    _fit_kinds(config)
    for token in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        if isinstance(getattr(config, token, None), int):
            setattr(config, token, getattr(config, token) % 90)


def _fit_kinds(config: Any) -> None:
    """Give the lists of the layers' kinds as many entries as there are layers, each kind first."""
    count = getattr(config, "num_hidden_layers", None)
    for key, kinds in list(vars(config).items()):
        if key.endswith("layer_types") and isinstance(count, int) and isinstance(kinds, list) and len(kinds) > count:
            kinds = [*dict.fromkeys(kinds), *kinds][:count]
            setattr(config, key, [*kinds[:-1], "attention"] if set(kinds) == {"mamba"} else kinds)


def _named(key: str, ends: tuple[str, ...]) -> bool:
    return any(key == end or key.endswith(f"_{end}") for end in ends)


def first_pass(model: Any) -> tuple[dict[str, Any], Tensor]:
    """Return the first inputs that a model runs on, and its output; raise the error of the last inputs if it runs on none."""
    errors: list[Exception] = []
    for inputs in [*_plain(model), *further_inputs(model)]:
        try:
            output = run(model, inputs)
            if not output.isfinite().all():
                raise ValueError("eager attention returns infinities or NaN")
            return inputs, output
        except Exception as error:
            errors.append(error)
    raise errors[-1] if errors else ValueError("no inputs are known")


def _plain(model: Any) -> list[dict[str, Any]]:
    try:
        return example_inputs(model)
    except Exception:
        return []


def further_inputs(model: Any) -> Iterator[dict[str, Any]]:
    """Yield inputs of rarer kinds: required arguments, with all others that have a maker, or with all of one modality."""
    accepted = inspect.signature(model.forward).parameters
    required = [name for name, p in accepted.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    known = [name for name in accepted if name in MAKERS]
    for names in (required, [*required, *known], [*required, "input_ids", *(n for n in known if "pixel" in n)]):
        if names and all(name in MAKERS for name in names):
            for variant in range(5):
                with contextlib.suppress(Exception):
                    yield {name: made for name in names if (made := MAKERS[name](model, variant)) is not None}


def run(model: Any, inputs: dict[str, Any]) -> Tensor:
    """Return the first floating output of a model."""
    torch.manual_seed(0)
    with torch.no_grad():
        return next(_tensors(model(**inputs))).float()


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor) and value.is_floating_point():
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)


def _first(model: Any, *names: str, default: int) -> int:
    """Return the first integer attribute of these names, in the config or its parts."""
    parts = [model.config, *(getattr(model.config, part, None) for part in model.config.sub_configs)]
    found = (getattr(part, name, None) for name in names for part in parts)
    return next((x if isinstance(x, int) else x[0] for x in found if isinstance(x, int | list | tuple) and x), default)


def _width(model: Any, *kinds: type) -> int:
    """Return the width of the first layer's inputs, such as the bands of a spectrum."""
    layer = next(part for part in model.modules() if isinstance(part, kinds))
    return layer.in_features if isinstance(layer, torch.nn.Linear) else layer.in_channels


def _patch_width(model: Any) -> int:
    layer = next(part for part in model.modules() if isinstance(part, torch.nn.Linear | torch.nn.Conv2d | torch.nn.Conv3d))
    return layer.in_features if isinstance(layer, torch.nn.Linear) else math.prod([layer.in_channels, *layer.kernel_size])


def _image(model: Any, variant: int) -> Tensor:
    """Return an image, patches, frames of a video, patches with a batch, or a pair of images."""
    channels, size = _first(model, "num_channels", "in_channels", default=3), _first(model, "image_size", default=32)
    frames = _first(model, "num_frames", "frames_per_clip", default=2)
    if variant in (1, 3):
        return _patches(model, variant)
    shapes = {0: (1, channels, size, size), 2: (1, frames, channels, size, size), 4: (1, 2, channels, 64, 64)}
    return torch.zeros(shapes[variant])


def _patches(model: Any, variant: int) -> Tensor:
    width = _patch_width(model)
    patch = _first(model, "patch_size", default=8)
    shape = {3: (1, 16, width), 4: (_side(model) ** 2, 3, patch, patch)}.get(variant, (_side(model) ** 2, width))
    return torch.zeros(shape)


def _side(model: Any) -> int:
    return max(4, 2 * _first(model, "spatial_merge_size", default=2))


def _grid(model: Any, variant: int) -> Tensor:
    return torch.tensor([[1, _side(model), _side(model)]])


def _sound(model: Any, variant: int) -> Tensor:
    """Return a spectrum, either way round, or one with a channel; or a wave with a channel."""
    bands = _first(model, "num_mel_bins", "feature_size", "input_feat_per_channel", "input_dim", default=80)
    frames = _first(model, "max_length", default=96)
    if variant == 1:
        bands = _width(model, torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Linear)
    shapes = {0: (1, frames, bands), 1: (1, bands, 96), 2: (1, 1, 96, bands), 3: (1, 1, 3840), 4: (1, 3840)}
    return torch.linspace(-1, 1, math.prod(shapes[variant])).view(shapes[variant])


def _series(model: Any, variant: int) -> Tensor:
    shape = (1, _first(model, "context_length", default=64), _first(model, "num_input_channels", default=1))
    return torch.linspace(0, 1, math.prod(shape)).view(shape if variant % 2 else shape[:2])


def _ids(model: Any, variant: int) -> Tensor:
    return torch.tensor([[5, 6, 7, 8]])


def _zeros(*names: str) -> Callable[[Any, int], Tensor]:
    return lambda model, variant: torch.zeros(1, 4, _first(model, *names, default=32))


MAKERS: dict[str, Callable[[Any, int], Any]] = {
    "input_ids": _ids,
    "decoder_input_ids": _ids,
    "qformer_input_ids": _ids,
    "bbox": lambda model, variant: torch.zeros(1, 4, 4, dtype=torch.long if variant < 2 else torch.float32),
    "pixel_values": _image,
    "prompt_pixel_values": _image,
    "prompt_masks": _image,
    "pixel_values_videos": lambda model, variant: _image(model, 2),
    "flattened_patches": lambda model, variant: torch.ones(1, 16, _width(model, torch.nn.Linear) + 2),
    "hidden_states": _patches,
    "grid_thw": _grid,
    "image_grid_thw": _grid,
    "merge_sizes": lambda model, variant: torch.tensor([_side(model) // 2]),
    "target_sizes": lambda model, variant: torch.tensor([[4, 4]]),
    "spatial_shapes": lambda model, variant: torch.tensor([[4, 4]]),
    "pixel_attention_mask": lambda model, variant: torch.ones(1, 16, dtype=torch.long),
    "input_features": _sound,
    "input_values": _sound,
    "input_features_mask": lambda model, variant: torch.ones(1, 96, dtype=torch.long),
    "query_embeds": _zeros("hidden_size"),
    "encoder_hidden_states": _zeros("encoder_hidden_size", "hidden_size"),
    "visual_feats": _zeros("visual_feat_dim"),
    "visual_pos": _zeros("visual_pos_dim"),
    "past_values": _series,
}
