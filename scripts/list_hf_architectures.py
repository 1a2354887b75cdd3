"""Print, for each architecture of the installed transformers, whether `lit_sparse.hf.sparsify` changes its attention.

Each architecture is built with a tiny random config, made from its default config, in a process with a time limit. The
model must run with eager attention. Then softmax through the interface is compared with it, and the calls of a sparse mapping
are counted. The states are

- works;
- works in part: it is refused as a whole, and works where only the layers that use the interface are chosen;
- refused: with a reason;
- differs: from eager attention;
- silent: layers run without their mapping;
- fails: with an error that is not of this package;
- no tiny config: none that runs.

Usage: python scripts/list_hf_architectures.py [--only NAME ...] [--limit SECONDS] > architectures.csv
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import functools
import logging
import math
import multiprocessing
import os
import resource
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

from lit_sparse.errors import LitSparseError
from lit_sparse.hf import LayerMapping, sparsify
from lit_sparse.hf.probe import example_inputs, uses_interface
from lit_sparse.mappings import Softmax, TopKSparsemax

#: Parts of attribute names of configs -> their tiny values, first match first.
SIZES: list[tuple[tuple[str, ...], int]] = [
    (("num_key_value_heads", "num_kv_heads", "n_kv_heads", "multi_query_group_num"), 2),
    (("attention_heads", "num_heads", "n_head", "n_heads", "encoder_attention_heads", "decoder_attention_heads"), 4),
    (("vocab_size",), 99),
    (("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"), 4),
    (("num_experts_per_tok", "moe_topk", "moe_k", "top_k_experts", "num_selected_experts"), 2),
    (("n_group", "topk_group", "num_expert_group"), 1),
    (("rotary_dim", "rotary_ndims"), 4),
    (("attn_layer_period",), 2),
    (("attn_layer_offset",), 1),
    (("head_dim", "d_kv", "attention_head_dim"), 8),
    (("intermediate_size", "ffn_dim", "d_ff", "n_inner", "mlp_dim", "encoder_ffn_dim", "decoder_ffn_dim", "d_inner"), 32),
    (("hidden_size", "d_model", "n_embd", "embed_dim", "dim", "hidden_dim", "embedding_size", "projection_dim"), 32),
    (("image_size",), 32),
    (("patch_size",), 8),
]
#: The same for numbers of layers, whose values are those of a recipe.
LAYERS = ("hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers", "depth")
HEADS = ("head_dim", "d_kv", "kv_lora_rank", "q_lora_rank")
WIDTHS = (
    "num_heads",
    "attention_heads",
    "n_head",
    "n_heads",
    "num_key_value_heads",
    "d_model",
    "n_embd",
    "embed_dim",
    "hidden_dim",
)
#: Layers and sizes that are kept, tried in turn until a model runs. The last takes the default config as it is.
RECIPES: list[tuple[int | None, tuple[str, ...] | None]] = [
    (2, ()),
    (2, HEADS),
    (8, HEADS),
    (2, (*HEADS, *WIDTHS, "hidden_size")),
    (None, (*HEADS, *WIDTHS, "hidden_size", "image_size", "patch_size")),
    (None, None),
]
WITHIN = 1e-4
LARGEST = 300_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=None, help="model types; all by default")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of computing time for each architecture")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    table = csv.writer(sys.stdout)
    table.writerow(["model_type", "class", "state", "layers", "difference", "reason"])
    states: Counter[str] = Counter()
    for model_type, name in architectures(options.only):
        row = within_limit(model_type, name, options.limit)
        states[row[0]] += 1
        table.writerow([model_type, name, *row])
        sys.stdout.flush()
    print(f"transformers {transformers.__version__}: {dict(states)}", file=sys.stderr)


def architectures(only: list[str] | None) -> Iterator[tuple[str, str]]:
    """Yield the types of models and the names of their base classes."""
    for model_type, names in MODEL_MAPPING_NAMES.items():
        if only is None or model_type in only:
            yield model_type, names if isinstance(names, str) else names[0]


def within_limit(model_type: str, name: str, limit: float) -> list[str]:
    """Return the row of an architecture from a process of its own."""
    context = multiprocessing.get_context("fork")  # transformers is imported once
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_row, args=(sender, model_type, name, limit))
    process.start()
    sender.close()
    row = ["no tiny config", "", "", f"more than {10 * limit:g} seconds"]
    if receiver.poll(10 * limit):  # a machine may be busy
        with contextlib.suppress(EOFError):
            row = ["no tiny config", "", "", f"the process died, perhaps after {limit:g} seconds"]
            row = receiver.recv()
    process.kill()
    process.join()
    return row


def _send_row(sender: Any, model_type: str, name: str, limit: float) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(limit), math.ceil(limit)))
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):  # noqa: PTH123
        row = row_of(model_type, name)
    sender.send(row)


def row_of(model_type: str, name: str) -> list[str]:
    """Return the state, the number of layers, the difference to eager attention, and a reason."""
    errors: list[str] = []
    for layers, kept in RECIPES:
        try:
            model = tiny_model(model_type, name, layers, kept)
            inputs, reference = first_pass(model)
            break
        except BaseException as error:  # some models exit
            errors.append(f"{type(error).__name__}: {error}".replace("\n", " ")[:200])
    else:
        return ["no tiny config", "", "", errors[0]]
    interface = [part_name for part_name, part in model.named_modules() if uses_interface(part)]
    reason = ""
    for layers in [None, interface] if interface else [None]:
        try:
            report = sparsify(model, Softmax(), layers, example=inputs)
            difference = float((run(model, inputs) - reference).abs().max() / reference.abs().max().clamp_min(1e-6))
            sparsify(model, TopKSparsemax(1), layers, example=inputs)
        except LitSparseError as error:
            reason = reason or str(error).replace("\n", " ")
            continue
        except Exception as error:
            return ["fails", "", "", f"{type(error).__name__}: {error}".replace("\n", " ")[:300]]
        if silent := silent_layers(model, inputs):
            return ["silent", str(len(report.layers)), f"{difference:.1e}", " ".join(silent)]
        works = "works" if layers is None else "works in part"
        return [works if difference < WITHIN else "differs", str(len(report.layers)), f"{difference:.1e}", reason]
    return ["refused", "", "", reason]


def first_pass(model: Any) -> tuple[dict[str, Any], Tensor]:
    """Return the first example that the model runs on, and its output; raise the error of the first example if none runs."""
    errors: list[Exception] = []
    for inputs in example_inputs(model):
        try:
            output = run(model, inputs)
            if not output.isfinite().all():
                raise ValueError("eager attention returns infinities or NaN")
            return inputs, output
        except Exception as error:
            errors.append(error)
    raise errors[0]


def silent_layers(model: nn.Module, inputs: dict[str, Any]) -> list[str]:
    """Return the layers that ran without their mapping: they use the interface, or have a mapping, and counted nothing."""
    ran: set[str] = set()
    hooks = []
    for name, part in model.named_modules():
        if uses_interface(part) or hasattr(part, "lit_sparse"):
            hooks.append(part.register_forward_hook(lambda *_, name=name: ran.add(name)))
        if isinstance(part, LayerMapping):
            part.recording = True
    run(model, inputs)
    for hook in hooks:
        hook.remove()
    found = []
    for name in sorted(ran):
        mapping = getattr(model.get_submodule(name), "lit_sparse", None)
        if mapping is None or mapping.take_counts() is None:
            found.append(name)
    return found


def run(model: Any, inputs: dict[str, Any]) -> Tensor:
    """Return the first floating output of a model."""
    torch.manual_seed(0)
    with torch.no_grad():
        return next(_tensors(model(**inputs))).float()


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor) and value.is_floating_point():
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def tiny_model(model_type: str, name: str, layers: int | None, kept: tuple[str, ...] | None) -> Any:
    """Return a model with random weights, of at most `layers` layers; `kept` sizes are those of the default config."""
    config = transformers.AutoConfig.for_model(model_type)
    if kept is not None:
        shrink(config, layers, kept)
    build = functools.partial(getattr(transformers, name)._from_config, config, attn_implementation="eager")
    with torch.device("meta"):
        size = sum(p.numel() for p in build().parameters())
    if size > LARGEST:
        raise ValueError(f"the config stays large: {size:,} parameters")
    torch.manual_seed(0)
    return build().eval().float()


def shrink(config: Any, layers: int | None, kept: tuple[str, ...]) -> None:
    """Make a config tiny, by the names of its attributes, and those of its parts."""
    for part in config.sub_configs:
        if getattr(config, part, None) is not None:
            shrink(getattr(config, part), layers, kept)
    values = dict(vars(config))
    single = values.get("num_key_value_heads") == values.get("num_attention_heads")  # not grouped, as in latent attention
    for key, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            continue
        size = layers if named(key, LAYERS) else next((size for keys, size in SIZES if named(key, keys)), None)
        if key == "num_key_value_heads" and single and size is not None:
            size = 4
        if size is not None and size < value and not named(key, kept):
            with contextlib.suppress(Exception):
                setattr(config, key, size)
    if isinstance(rope := vars(config).get("rope_parameters"), dict) and not kept:
        rope["mrope_section"] = [2, 1, 1]  # of a head of 8
    for key, value in {"attn_layer_indices": [1], "vocab_size": 99}.items():
        if key in values and (values[key] is None or isinstance(value, list)):
            setattr(config, key, value)
    count = getattr(config, "num_hidden_layers", None)
    for key, kinds in list(vars(config).items()):  # the kinds of the layers; each kind is kept
        if key.endswith("layer_types") and isinstance(count, int) and isinstance(kinds, list) and len(kinds) > count:
            kinds = [*dict.fromkeys(kinds), *kinds][:count]
            setattr(config, key, [*kinds[:-1], "attention"] if set(kinds) == {"mamba"} else kinds)
    for token in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        if isinstance(getattr(config, token, None), int):
            setattr(config, token, getattr(config, token) % 90)


def named(key: str, endings: tuple[str, ...]) -> bool:
    return any(key == ending or key.endswith(f"_{ending}") for ending in endings)


if __name__ == "__main__":
    main()
