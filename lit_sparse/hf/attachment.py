"""Gives the attention of a transformers model another mapping, and reports the layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from lit_sparse.checks import check_choice
from lit_sparse.errors import CheckpointError, ConfigurationError, did_you_mean, full_name
from lit_sparse.ground.arguments import checked
from lit_sparse.hf.annealed import AnnealedEntmax
from lit_sparse.hf.layer_mapping import CHILD, LayerMapping, is_torch_layer, set_mapping
from lit_sparse.hf.probe import example_inputs, probe, run, use_attention, uses_interface
from lit_sparse.hf.registry import BY_LAYER, BY_LAYER_BOOLEAN, check_on_simplex, register
from lit_sparse.hf.requirement import import_transformers
from lit_sparse.mappings import Entmax, LearnableEntmax, Softmax, SparseMapping, Sparsemax
from lit_sparse.runs.builder import build
from lit_sparse.runs.descriptions import describe

__all__ = ["ATTRIBUTE", "AttentionReport", "LayerReport", "attach", "sparsify"]

#: Attribute of the model's config that holds the description of the mappings.
ATTRIBUTE = "lit_sparse"
#: Share of the range of a learnable alpha at which it starts if annealed.
NEAR_SOFTMAX = 0.01


@dataclass(frozen=True)
class LayerReport:
    """Report on one attention layer of a model.

    Args:
        name: name of the layer in the model.
        heads: number of heads; None if the small forward pass did not reach the layer.
        mapping: the mapping and its arguments.
    """

    name: str
    heads: int | None
    mapping: str


@dataclass(frozen=True)
class AttentionReport:
    """Report on the attention layers of a model, which prints as a table.

    Args:
        model: class of the model.
        layers: layers whose attention uses a mapping of this package.
        others: layers that keep their own softmax; empty unless ``layers`` was given to :func:`sparsify`.
    """

    model: str
    layers: tuple[LayerReport, ...]
    others: tuple[str, ...]

    def __str__(self) -> str:
        """Return the report as a table."""
        width = max(len(layer.name) for layer in self.layers)
        lines = [f"{self.model}: {len(self.layers)} attention layers"]
        for layer in self.layers:
            heads = "not reached" if layer.heads is None else f"{layer.heads} heads"
            lines.append(f"  {layer.name:{width}}  {heads:>11}  {layer.mapping}")
        lines += [f"  {name:{width}}  keeps its own softmax" for name in self.others]
        return "\n".join(lines)


@checked
def sparsify(
    model: nn.Module,
    mapping: SparseMapping | Sequence[SparseMapping],
    layers: Sequence[int | str] | None = None,
    start: Literal["cold", "annealed"] = "cold",
    *,
    example: Mapping[str, Any] | None = None,
) -> AttentionReport:
    """Replace softmax in the attention of a transformers model by a mapping, in place.

    Each layer gets a copy of the mapping as its child ``lit_sparse``: its parameters are trained and saved with the model.
    ``LearnableEntmax(shape=(heads, 1, 1))`` learns an alpha per head. The config stores the mappings with their arguments,
    and :func:`lit_sparse.hf.from_pretrained` restores a saved model.

    A small forward pass finds the layers: those that use transformers' attention interface, and
    ``torch.nn.MultiheadAttention``. Models in which some attention would stay softmax are refused.

    Args:
        model: a ``PreTrainedModel``; before it is wrapped for LoRA or for several devices.
        mapping: mapping onto the simplex, or one per chosen layer.
        layers: indices or names of the layers to change, in the order of the report; None for all. Other layers get
            softmax.
        start: ``"cold"`` to use the mapping at once. ``"annealed"`` to start from softmax, for pretrained weights: alpha
            then rises to the alpha of the given Entmax or Sparsemax, see :class:`lit_sparse.hf.AlphaAnnealing`, or a
            learnable alpha starts near its lower bound.
        example: arguments of a small forward pass; None to construct them.

    Returns:
        The layers, their numbers of heads and their mappings; ``print`` shows a table.

    Raises:
        ConfigurationError: if a layer of the model does not use the attention interface, its config sets
            ``output_attentions``, a name is unknown, or a mapping is not usable. The model is then unchanged.
        MissingExtraError: without transformers.

    Example:
        >>> from transformers import AutoModel  # doctest: +SKIP
        >>> model = AutoModel.from_pretrained("bert-base-uncased")  # doctest: +SKIP
        >>> print(sparsify(model, Sparsemax()))  # doctest: +SKIP
    """
    check_choice("start", start, ("cold", "annealed"))
    given = [_started(each, start) for each in (mapping if isinstance(mapping, list | tuple) else [mapping])]
    _check_model(model)
    register()
    before = [(config, config._attn_implementation) for config in _configs(model)]
    config: Any = model.config
    former = getattr(config, ATTRIBUTE, None)
    try:
        found = probe(model, example)
        others = [name for name in found.others if model.get_submodule(name) not in found.heads]
        parts = [(name, part) for name, part in model.named_modules() if name not in others]
        reached = [(name, part) for name, part in parts if uses_interface(part) or is_torch_layer(part) or part in found.heads]
        if not found.heads:
            raise _refusal(model, "its forward pass never called the interface")
        if others and layers is None:
            raise _refusal(
                model,
                f"{', '.join(others[:3])} compute their own softmax. Give `layers` to change only the other layers",
            )
        chosen = _chosen([name for name, _ in reached], layers)
        mappings = dict(zip(chosen, _one_per_layer(given, len(chosen)), strict=True))
        described = {name: describe(mappings.get(name, Softmax())) for name, _ in reached}
        previous = {part: getattr(part, CHILD, None) for _, part in reached}
        attach(model, described)
        for name, each in mappings.items():
            getattr(dict(reached)[name], CHILD).mapping.load_state_dict(each.state_dict())
        try:
            run(model, example_inputs(model) if example is None else [example])
        except Exception:
            for part, child in previous.items():
                set_mapping(part, child)
            raise
    except Exception:
        for each, name in before:
            each._attn_implementation = name
        if hasattr(config, ATTRIBUTE):
            setattr(config, ATTRIBUTE, former) if former is not None else delattr(config, ATTRIBUTE)
        raise
    return AttentionReport(
        type(model).__name__,
        tuple(LayerReport(name, found.heads.get(part), repr(getattr(part, CHILD).mapping)) for name, part in reached),
        tuple(others),
    )


def attach(model: Any, described: Mapping[str, Any], source: str = "the config") -> None:
    """Attach mappings to a model's attention layers, given their descriptions, and let the model use them.

    Args:
        model: transformers model.
        described: name of a layer -> description of its mapping.
        source: name of the description's file in messages.

    Raises:
        CheckpointError: if the description does not match the model, or names a class that is not a mapping or not allowed.
    """
    whole = _pretrained(model)
    parts = {name: part for name, part in model.named_modules() if not any(part is one for one in whole)}
    new: dict[str, LayerMapping] = {}
    for name, description in described.items():
        if name not in parts:
            raise CheckpointError(f"Expected {source} to describe layers of {type(model).__name__} but got {name!r}.")
        new[name] = LayerMapping(build(source, description, SparseMapping))
    for name, part in new.items():
        place = next(parts[name].parameters(), torch.empty(()))
        set_mapping(parts[name], part.to(place.device))
    register()
    use_attention(model, BY_LAYER_BOOLEAN if all(part._supports_sdpa for part in whole) else BY_LAYER)
    setattr(model.config, ATTRIBUTE, dict(described))


def _started(mapping: object, start: str) -> SparseMapping:
    """Return the mapping that training starts from; check that it can be saved."""
    check_on_simplex(mapping)
    assert isinstance(mapping, SparseMapping)
    if start == "annealed":
        if isinstance(mapping, LearnableEntmax):
            first = mapping.low + NEAR_SOFTMAX * (mapping.high - mapping.low)
            mapping = LearnableEntmax(mapping.shape, first, mapping.low, mapping.high, gamma=mapping.gamma)
        elif isinstance(mapping, Sparsemax):
            mapping = AnnealedEntmax(2.0, gamma=mapping.gamma)
        elif type(mapping) is Entmax and isinstance(mapping.alpha, float):
            mapping = AnnealedEntmax(mapping.alpha, gamma=mapping.gamma)
        elif not isinstance(mapping, AnnealedEntmax):
            raise ConfigurationError(
                f"Expected Entmax, LearnableEntmax or Sparsemax with start='annealed' but got {mapping!r}. Other mappings do"
                " not start from softmax: use start='cold'."
            )
    try:
        same = build("the mapping", describe(mapping), SparseMapping).state_dict().keys() == mapping.state_dict().keys()
    except (TypeError, CheckpointError):
        same = False
    if not same:
        raise ConfigurationError(
            f"Expected a mapping whose arguments can be saved in a config but got {mapping!r}. Give numbers, or learn alpha"
            " with LearnableEntmax."
        )
    return mapping


def _check_model(model: object) -> None:
    transformers = import_transformers()
    if not isinstance(model, transformers.PreTrainedModel):
        hint = " Call `sparsify` before `get_peft_model`." if hasattr(model, "peft_config") else ""
        raise ConfigurationError(f"Expected a PreTrainedModel of transformers but got {full_name(model)}.{hint}")
    if not model._can_set_attn_implementation():
        raise _refusal(model, "its layers compute their own softmax")
    for module in _pretrained(model):
        if module.config.output_attentions:
            raise ConfigurationError(
                f"Expected the config of {type(module).__name__} without `output_attentions=True`, which transformers allows"
                " only with eager attention. Set it to False, and call `model(..., output_attentions=True)`."
            )


def _pretrained(model: Any) -> list[Any]:
    return [part for part in model.modules() if isinstance(part, import_transformers().PreTrainedModel)]


def _configs(model: Any) -> list[Any]:
    """Return the configs of all parts, each once."""
    configs = [getattr(part, "config", None) for part in model.modules()]
    return list({id(config): config for config in configs if hasattr(config, "_attn_implementation")}.values())


def _refusal(model: object, reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"Expected a model whose attention uses the interface of transformers but {type(model).__name__} would stay softmax:"
        f" {reason}."
    )


def _chosen(names: list[str], layers: Sequence[int | str] | None) -> list[str]:
    """Return the names of the chosen layers, each once, in the order given."""
    if layers is None:
        return names
    if isinstance(layers, str) or not isinstance(layers, Sequence) or not layers:
        raise ConfigurationError(f"Expected `layers` to be numbers or names of layers, such as [0, 1], but got {layers!r}.")
    chosen = []
    for layer in layers:
        if isinstance(layer, str) and layer not in names:
            raise ConfigurationError(
                f"Expected names of attention layers but got {layer!r}.{did_you_mean(layer, names)} Allowed:"
                f" {', '.join(names)}."
            )
        if not isinstance(layer, str) and (isinstance(layer, bool) or layer not in range(-len(names), len(names))):
            raise ConfigurationError(f"Expected the number of one of the {len(names)} attention layers but got {layer!r}.")
        chosen.append(layer if isinstance(layer, str) else names[layer])
    if len(set(chosen)) < len(chosen):
        raise ConfigurationError(f"Expected each layer once but got {list(layers)!r}.")
    return chosen


def _one_per_layer(mappings: Sequence[SparseMapping], number: int) -> list[SparseMapping]:
    if len(mappings) == 1:
        return list(mappings) * number
    if len(mappings) != number:
        raise ConfigurationError(f"Expected one mapping, or one for each of {number} layers, but got {len(mappings)}.")
    return list(mappings)
