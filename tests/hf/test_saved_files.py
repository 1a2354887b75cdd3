"""The files of a saved model choose no code, no other files, and no sizes that its weights do not have."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs transformers")

from safetensors.torch import save_file  # noqa: E402

from lit_sparse.errors import CheckpointError  # noqa: E402
from lit_sparse.hf import from_pretrained, sparsify  # noqa: E402
from lit_sparse.mappings import Sparsemax  # noqa: E402

from . import tiny  # noqa: E402

SPARSEMAX = {"class_path": "lit_sparse.mappings.Sparsemax", "init_args": {}}
LARGE = {"class_path": "lit_sparse.mappings.LearnableEntmax", "init_args": {"shape": [10**4, 10**4]}}
KERNELS = "kernels-community/flash-attn"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
#: Changes of a config that are refused, and the message.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "attention": ({"attn_implementation": KERNELS}, "'attn_implementation' = 'kernels"),
    "attention below": ({"text_config": {"a": {"attn_implementation": KERNELS}}}, "'attn_implementation'"),
    "experts": ({"experts_implementation": KERNELS}, "'experts_implementation'"),
    "quantization": ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "'quantization_config'"),
    "code": ({"trust_remote_code": True}, "'trust_remote_code' = True"),
    "weights elsewhere": ({"transformers_weights": "../other.safetensors"}, "'transformers_weights'"),
    "dtype": ({"dtype": "hub"}, "'dtype' = 'hub'"),
    "torch_dtype": ({"torch_dtype": 3}, "'torch_dtype' = 3"),
    "labels": ({"num_labels": 10**9}, "'num_labels' = 1000000000"),
    "labels in lists": ({"attention_types": [[["global", "local"], 10**10]]}, "'attention_types'"),
    "labels, many times": ({"attention_types": [[["global"] * 1000, 10**6]]}, "'attention_types'"),
    "attention in lists": ({"text_configs": [{"attn_implementation": KERNELS}]}, "'attn_implementation'"),
    "architectures": ({"architectures": 5}, "'architectures' = 5"),
    "backbone": ({"backbone": "some/model"}, "'backbone' = 'some/model'"),
    "backbone weights": ({"use_pretrained_backbone": True}, "'use_pretrained_backbone' = True"),
    "timm": ({"vision_config": {"model_args": {"checkpoint_path": "x.pth"}}}, "'model_args' = "),
    "timm's places": ({"architecture": "local-dir:/tmp"}, "'architecture' = 'local-dir:/tmp'"),
    "layers": ({"num_hidden_layers": 10**5}, "more than 546 parameters"),
    "width": ({"hidden_size": 10**8}, "a tensor of 5,000,000,000 elements"),
    "words": ({"vocab_size": 10**12}, "elements"),
    "other width": ({"intermediate_size": 48}, "does not fit the model"),
    "activation": ({"hidden_act": "os.system"}, "does not fit the model"),
    "method": ({"to_dict": 3}, "does not fit the model"),
    "model": ({"model_type": "evil"}, "to name a transformers model but got 'evil'"),
    "models": ({"model_type": ["llama"]}, r"a transformers model but got \['llama'\]"),
    "root": ({"lit_sparse": {"": SPARSEMAX}}, "layers of LlamaForCausalLM but got ''"),
    "base": ({"lit_sparse": {"model": SPARSEMAX}}, "layers of LlamaForCausalLM but got 'model'"),
    "another layer": ({"lit_sparse": {"model.layers.0.mlp": SPARSEMAX}}, "mlp.lit_sparse.attends.* but it is missing"),
    "text": ({"rope_parameters": {"rope_type": "a\x9b2J"}}, "printable text but got 'a"),
    "mapping": ({"lit_sparse": {"model.layers.0.self_attn": LARGE}}, "a tensor of 100,000,000 elements"),
}


def hollow(path: Path) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [2**30], "data_offsets": [0, 2**32]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    os.truncate(path, 8 + len(header) + 2**32)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def listed(path: Path, names: Any) -> None:
    (path.parent / WEIGHTS).unlink()
    path.write_text(json.dumps({"metadata": {}, "weight_map": names}))


def piped(path: Path) -> None:
    listed(path, {"a": "b.safetensors"})
    os.mkfifo(path.with_name("b.safetensors"))


def led_outside(path: Path, moved: Path | None = None) -> None:
    path.symlink_to((moved or path).rename(path.parent.with_name("elsewhere")))


#: Changes of files that are refused.
FILES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "config, deep": ("config.json", lambda path: path.write_text("[" * 10**5), "JSON in"),
    "config, list": ("config.json", lambda path: path.write_text("[]"), "keys and values"),
    "config, none": ("config.json", Path.unlink, "there is no config"),
    "generation, deep": ("generation_config.json", lambda path: path.write_text("[" * 10**5), "JSON in"),
    "generation": ("generation_config.json", lambda path: path.write_text('{"update": 3}'), "fit the model"),
    "generation, text": (
        "generation_config.json",
        lambda path: path.write_text(json.dumps({"a": [{"\x1b[2J": 1}]})),
        "printable text",
    ),
    "adapter": ("adapter_config.json", lambda path: path.write_text("{}"), "holds an adapter"),
    "parts": ("shard-00000-model-00001-of-00001.safetensors", Path.touch, "parts of several processes"),
    "index": (INDEX, lambda path: listed(path, {"a": "../first/model.safetensors"}), "not a file beside it"),
    "index, pickle": (INDEX, lambda path: listed(path, {"a": "pytorch_model.bin"}), "not a file beside it"),
    "index, list": (INDEX, lambda path: listed(path, [1]), "not a file beside it"),
    "weights, holes": (WEIGHTS, hollow, "bytes are holes"),
    "weights, cut": (WEIGHTS, lambda path: os.truncate(path, 1000), "weights .* cannot be read"),
    "weights, none": (WEIGHTS, Path.unlink, "The weights of .* no file named"),
    "weights, pipe": (WEIGHTS, pipe, "no file named"),
    "weights, pickle": (WEIGHTS, lambda path: path.rename(path.with_name("a.bin")), "no file named"),
    "index, missing": (INDEX, lambda path: listed(path, {"a": "b.safetensors"}), "not a file beside it"),
    "index, pipe": (INDEX, piped, "not a file beside it"),
    "weights, link": (WEIGHTS, led_outside, "it is a link out of it"),
    "config, link": ("config.json", led_outside, "it is a link out of it"),
    "generation, link": ("generation_config.json", led_outside, "it is a link out of it"),
    "index, link": (INDEX, lambda path: led_outside(path, path.with_name(WEIGHTS)), "it is a link out of it"),
    "weights, complex": (WEIGHTS, lambda path: save_file({"a": torch.zeros(1, dtype=torch.complex64)}, path), "real numbers"),
    "weights, names": (WEIGHTS, lambda path: save_file({"\x1b[2J": torch.zeros(1)}, path), "cannot be printed"),
}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, model = tmp_path_factory.mktemp("saved") / "first", tiny.llama()
    sparsify(model, Sparsemax())
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def model(first: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(first, tmp_path / "model"))


def change(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=[*REFUSED])
def test_a_config_is_refused(changes: dict[str, Any], message: str, model: Path) -> None:
    change(model, **changes)
    with pytest.raises(CheckpointError, match=message):
        from_pretrained(transformers.LlamaForCausalLM, model)


@pytest.mark.parametrize(("name", "edit", "message"), FILES.values(), ids=[*FILES])
def test_a_file_is_refused(name: str, edit: Callable[[Path], object], message: str, model: Path) -> None:
    edit(model / name)
    with pytest.raises(CheckpointError, match=message):
        from_pretrained(transformers.LlamaForCausalLM, model)


def test_a_missing_folder_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json of .*nowhere' cannot be read"):
        from_pretrained(transformers.LlamaForCausalLM, tmp_path / "nowhere")


def test_private_keys_and_named_code_are_dropped(model: Path) -> None:
    evil = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    change(model, auto_map=evil, _attn_implementation=KERNELS, _attn_implementation_internal=KERNELS, __class__="x")
    (model / "evil.py").write_text("raise SystemExit")
    found: Any = from_pretrained(transformers.AutoModelForCausalLM, model)
    assert type(found) is transformers.LlamaForCausalLM
    assert not hasattr(found.config, "auto_map") and "lit_sparse" in found.config._attn_implementation


def test_a_model_in_several_files_is_loaded(model: Path) -> None:
    whole: Any = from_pretrained(transformers.LlamaForCausalLM, model)
    whole.save_pretrained(model.parent / "parts", max_shard_size="20KB")
    assert len(list((model.parent / "parts").glob("model-*.safetensors"))) > 1
    assert tiny.outputs_of(from_pretrained(transformers.LlamaForCausalLM, model.parent / "parts")).equal(tiny.outputs_of(whole))


def test_a_snapshot_of_the_hub_links_to_the_blobs_of_its_repository(model: Path) -> None:
    repository = model.parent / "models--some--model"
    snapshot, blobs = repository / "snapshots" / "0123", repository / "blobs"
    snapshot.parent.mkdir(parents=True)
    blobs.mkdir()
    model.rename(snapshot)
    for number, path in enumerate([*snapshot.iterdir()]):
        path.rename(blobs / str(number))
        path.symlink_to(Path("..", "..", "blobs", str(number)))
    from_pretrained(transformers.LlamaForCausalLM, snapshot)
    blobs.rename(repository / "others")
    blobs.symlink_to(repository / "others")
    with pytest.raises(CheckpointError, match="it is a link out of it"):
        from_pretrained(transformers.LlamaForCausalLM, snapshot)
