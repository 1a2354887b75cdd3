"""A saved model is restored with its mappings; loaded the ordinary way it warns."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install -e '.[hf]'")

from lit_sparse.errors import CheckpointError, ConfigurationError  # noqa: E402
from lit_sparse.hf import AnnealedEntmax, from_pretrained, register, sparsify  # noqa: E402
from lit_sparse.mappings import Entmax, LearnableEntmax, Sparsemax, TopKSparsemax  # noqa: E402

from . import tiny  # noqa: E402


class OwnMapping(TopKSparsemax):
    """A mapping of a user's own module."""


@pytest.fixture
def warnings() -> Iterator[list[str]]:
    """Messages of transformers at the level of warnings."""
    messages: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    handler, logger = Handler(logging.WARNING), logging.getLogger("transformers")
    logger.addHandler(handler)
    yield messages
    logger.removeHandler(handler)


def saved(folder: Path, model: Any, mapping: Any) -> torch.Tensor:
    """Save a model and return its outputs."""
    sparsify(model, mapping)
    for part in model.modules():
        if isinstance(part, LearnableEntmax):
            torch.nn.init.normal_(part.weight)
        if isinstance(part, AnnealedEntmax):
            part.set_progress(0.7)
    model.save_pretrained(folder)
    return tiny.outputs_of(model)


@pytest.mark.parametrize(
    "mapping",
    [LearnableEntmax((4, 1, 1)), AnnealedEntmax(1.7), Entmax(1.3, gamma=0.5), [TopKSparsemax(1), OwnMapping(2)]],
    ids=["learnable", "annealed", "entmax", "per_layer"],
)
def test_a_model_is_restored(mapping: Any, tmp_path: Path, warnings: list[str]) -> None:
    expected = saved(tmp_path, tiny.llama(), mapping)
    for model_class in (transformers.LlamaForCausalLM, transformers.AutoModelForCausalLM):
        model: Any = from_pretrained(model_class, tmp_path)
        assert type(model) is transformers.LlamaForCausalLM and not model.training
        assert torch.equal(tiny.outputs_of(model), expected)
    assert not [message for message in warnings if "lit_sparse" in message]


@pytest.mark.parametrize("name", ["bert", "t5", "whisper"])
def test_other_models_are_restored(name: str, tmp_path: Path) -> None:
    model = tiny.MODELS[name]()
    expected = saved(tmp_path, model, LearnableEntmax((4, 1, 1)))
    assert torch.equal(tiny.outputs_of(from_pretrained(type(model), tmp_path)), expected)


def test_a_restored_model_is_saved_again(tmp_path: Path) -> None:
    expected = saved(tmp_path / "first", tiny.llama(), LearnableEntmax((4, 1, 1)))
    from_pretrained(transformers.LlamaForCausalLM, tmp_path / "first").save_pretrained(tmp_path / "second")
    assert torch.equal(tiny.outputs_of(from_pretrained(transformers.LlamaForCausalLM, tmp_path / "second")), expected)


@pytest.mark.parametrize("mapping", [Sparsemax(), LearnableEntmax()])
def test_loading_the_ordinary_way_warns(mapping: Any, tmp_path: Path, warnings: list[str]) -> None:
    expected = saved(tmp_path, tiny.llama(), mapping)
    model = transformers.LlamaForCausalLM.from_pretrained(tmp_path)
    assert not torch.equal(tiny.outputs_of(model), expected)
    assert "attends_by_softmax_unless_loaded_by_lit_sparse_hf_from_pretrained" in " ".join(warnings)


def test_half_precision_is_restored(tmp_path: Path) -> None:
    expected = saved(tmp_path, tiny.llama(), LearnableEntmax((4, 1, 1)))
    model = from_pretrained(transformers.LlamaForCausalLM, tmp_path, dtype=torch.bfloat16)
    assert model.lm_head.weight.dtype == torch.bfloat16
    assert (tiny.outputs_of(model).float() - expected).abs().max() < 0.2 * expected.abs().max()


def edited(folder: Path, **changes: Any) -> Path:
    saved(folder, tiny.llama(), Sparsemax())
    config = json.loads((folder / "config.json").read_text())
    layer = config["lit_sparse"]["model.layers.0.self_attn"]
    layer.update(changes)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"class_path": "os.system"}, "names 'os.system'"),
        ({"class_path": "subprocess.Popen", "init_args": {"args": "true"}}, "names 'subprocess.Popen'"),
        ({"class_path": "unknown_module.Mapping"}, "which only the file names"),
        (
            {"class_path": "torch.nn.Linear", "init_args": {"in_features": 2, "out_features": 2}},
            "Expected a SparseMapping in the config",
        ),
        ({"class_path": "lit_sparse.mappings.Sparsmax"}, "Did you mean 'Sparsemax'?"),
        ({"init_args": {"gamma": -1.0}}, "Expected argument `gamma`"),
        ({"init_args": {"beta": 1.0}}, "beta"),
        ({"init_args": 3}, "init_args"),
    ],
)
def test_a_config_from_elsewhere_builds_mappings_alone(changes: dict[str, Any], text: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=text.replace("?", r"\?")):
        from_pretrained(transformers.LlamaForCausalLM, edited(tmp_path, **changes))


def test_bad_arguments(tmp_path: Path) -> None:
    tiny.llama().save_pretrained(tmp_path / "plain")
    with pytest.raises(CheckpointError, match=r"to describe attention mappings but got none.*LlamaForCausalLM"):
        from_pretrained(transformers.LlamaForCausalLM, tmp_path / "plain")
    saved(tmp_path / "sparse", tiny.llama(), Sparsemax())
    with pytest.raises(ConfigurationError, match="Expected no `attn_implementation`"):
        from_pretrained(transformers.LlamaForCausalLM, tmp_path / "sparse", attn_implementation="eager")
    with pytest.raises(ConfigurationError, match="Expected a transformers model class"):
        from_pretrained(torch.nn.Linear, tmp_path / "sparse")
    with pytest.raises(ConfigurationError, match="such as AutoModel, but got 'sparse'"):
        from_pretrained("sparse", transformers.AutoModel)  # the arguments of a model class' own method, by mistake
    with pytest.raises(ConfigurationError, match=r"Expected a class that loads .*LlamaConfig"):
        from_pretrained(transformers.AutoModelForImageClassification, tmp_path / "sparse")


def test_a_name_is_given_at_each_loading_as_sentence_transformers_does(tmp_path: Path) -> None:
    register()
    tiny.bert().save_pretrained(tmp_path)
    for name, zeros in (("lit_sparse_sparsemax", True), ("eager", False)):
        model = transformers.AutoModel.from_pretrained(tmp_path, attn_implementation=name)
        weights = model(**tiny.tokens(), output_attentions=True).attentions[0][1]
        assert bool((weights == 0).any()) == zeros
