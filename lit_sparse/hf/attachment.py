"""Gives the attention of a transformers model another mapping, reports the layers, and loads what was saved with it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from lit_sparse.checks import check_choice
from lit_sparse.errors import CheckpointError, ConfigurationError, did_you_mean, full_name
from lit_sparse.ground.arguments import checked
from lit_sparse.hf.adapter import CHILD, LayerMapping, is_torch_layer, set_mapping
from lit_sparse.hf.callbacks import AnnealedEntmax
from lit_sparse.hf.probe import example_inputs, probe, run, use_attention, uses_interface
from lit_sparse.hf.registry import BY_LAYER, BY_LAYER_BOOLEAN, check_on_simplex, import_transformers, register
from lit_sparse.hf.saved_files import SavedFiles, unreadable
from lit_sparse.mappings import Entmax, LearnableEntmax, Softmax, SparseMapping, Sparsemax
from lit_sparse.runs.builder import build
from lit_sparse.runs.checkpoint_files import restoring_error
from lit_sparse.runs.descriptions import describe
from lit_sparse.runs.trust import trusting

__all__ = ["AttentionReport", "LayerReport", "from_pretrained", "sparsify"]

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
    configs: list[Any] = [getattr(part, "config", None) for part in model.modules()]
    before = [(each, each._attn_implementation) for each in configs if hasattr(each, "_attn_implementation")]
    config: Any = model.config
    former = getattr(config, ATTRIBUTE, None)
    previous = [(part, getattr(part, CHILD, None)) for part in model.modules()]
    try:
        found = probe(model, example)
        others = [name for name in found.others if model.get_submodule(name) not in found.heads]
        parts = [(name, part) for name, part in model.named_modules() if name not in others]
        reached = [(name, part) for name, part in parts if uses_interface(part) or is_torch_layer(part) or part in found.heads]
        if not found.heads:
            raise _refusal(model, "its forward pass never called the interface")
        if others and layers is None:
            own = f"{', '.join(others[:3])} compute their own softmax"
            raise _refusal(model, f"{own}. Give `layers` to change only the other layers")
        chosen = _chosen([name for name, _ in reached], layers)
        if len(given) not in (1, len(chosen)):
            raise ConfigurationError(f"Expected one mapping, or one for each of {len(chosen)} layers, but got {len(given)}.")
        mappings = dict(zip(chosen, given * len(chosen) if len(given) == 1 else given, strict=True))
        described = {name: describe(mappings.get(name, Softmax())) for name, _ in reached}
        attach(model, described)
        for name, each in mappings.items():
            getattr(dict(reached)[name], CHILD).mapping.load_state_dict(each.state_dict())
        run(model, example_inputs(model) if example is None else [example])
    except Exception:
        for part, child in previous:
            set_mapping(part, child)
        for part_config, name in before:
            part_config._attn_implementation = name
        if hasattr(config, ATTRIBUTE):
            setattr(config, ATTRIBUTE, former) if former is not None else delattr(config, ATTRIBUTE)
        raise
    reports = [LayerReport(name, found.heads.get(part), repr(getattr(part, CHILD).mapping)) for name, part in reached]
    return AttentionReport(type(model).__name__, tuple(reports), tuple(others))


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


def from_pretrained(model_class: Any, path: Any, *args: Any, trust: Collection[str] = (), **options: Any) -> nn.Module:
    """Return a saved model that :func:`lit_sparse.hf.sparsify` has changed, with its mappings and their parameters.

    ``model_class.from_pretrained(path)`` would load it with softmax, and log a warning of unexpected weights.

    The config names the classes of the mappings. They are checked before anything is built: classes of this package, public
    layers of torch, classes from modules that the program has imported, and those in ``trust`` are allowed. A config is
    refused if it names code, kernels, a quantization or files elsewhere, or has larger layers than the weights.

    Args:
        model_class: class of the model, or an ``AutoModel`` class.
        path: folder, or name on the Hugging Face hub.
        args: further arguments of ``model_class.from_pretrained``.
        trust: import paths of further classes that the config may name.
        options: further arguments of ``model_class.from_pretrained``.

    Returns:
        The model in eval mode.

    Raises:
        CheckpointError: if a file is missing, or the config does not describe mappings, names a class that is not allowed,
            or does not match the weights.
        ConfigurationError: if ``attn_implementation`` is given too.
        MissingExtraError: without transformers.
    """
    import_transformers()
    if not isinstance(model_class, type):
        raise ConfigurationError(f"Expected a transformers model class, such as AutoModel, but got {model_class!r}.")
    if "attn_implementation" in options:
        raise ConfigurationError(
            "Expected no `attn_implementation`, because the saved mappings are used. Call `model_class.from_pretrained` to"
            " choose another attention."
        )
    config = options.pop("config", None)
    shared = ("cache_dir", "force_download", "local_files_only", "revision", "subfolder", "token")
    files = SavedFiles(str(path), {name: options[name] for name in shared if name in options}, options.get("variant"))
    if config is None:
        config = files.config(trust_remote_code=bool(options.get("trust_remote_code")))
    described = getattr(config, ATTRIBUTE, None)
    source = f"the config of {str(path)!r}"
    if not isinstance(described, dict) or not described:
        raise CheckpointError(
            f"Expected {source} to describe attention mappings but got none. Load it by"
            f" {model_class.__name__}.from_pretrained, then call `lit_sparse.hf.sparsify(model, mapping)`."
        )
    concrete = _concrete(model_class, config)
    limits = files.limits()
    options = {"use_safetensors": True, **options}
    with trusting(trust):
        try:
            with limits.kept():
                kind, options = _with_mappings(concrete, described, source), {**options, "output_loading_info": True}
                model, info = kind.from_pretrained(path, *args, config=config, **options)
            if missing := [name for name in sorted(info["missing_keys"]) if CHILD in name.split(".")]:
                raise CheckpointError(f"Expected {missing[0]!r} among the weights of {str(path)!r} but it is missing.")
            model.__class__ = concrete
            # Loading starts on the meta device, where tensors that are not saved get no values: rebuild, and keep the loaded.
            loaded = {name: part.state_dict() for name, part in model.named_modules() if isinstance(part, LayerMapping)}
            attach(model, described, source)
            for name, state in loaded.items():
                part = model.get_submodule(name)
                part.load_state_dict(state)
                part.eval()
        except OSError as error:  # a file is not there
            raise unreadable(f"The weights of {str(path)!r}", error) from error
        except Exception as error:  # wrong values of a config raise anything
            raise restoring_error(source, error) from error
    return model  # type: ignore[no-any-return]


def _with_mappings(concrete: Any, described: dict[str, Any], source: str) -> Any:
    """Return a subclass whose layers have their mappings before the weights are loaded."""

    def construct(self: Any, config: Any, *args: Any, **options: Any) -> None:
        concrete.__init__(self, config, *args, **options)
        attach(self, described, source)

    return type(concrete.__name__, (concrete,), {"__init__": construct, "__module__": concrete.__module__})


def _concrete(model_class: Any, config: Any) -> Any:
    """Return the class that an ``AutoModel`` class stands for, or the class itself."""
    known = getattr(model_class, "_model_mapping", None)
    if known is None:
        if not issubclass(model_class, import_transformers().PreTrainedModel):
            raise ConfigurationError(f"Expected a transformers model class, such as AutoModel, but got {model_class.__name__}.")
        return model_class
    if type(config) not in known:
        raise ConfigurationError(f"Expected a class that loads {full_name(config)} but got {model_class.__name__}.")
    found = known[type(config)]
    if isinstance(found, tuple | list):
        wanted = list(getattr(config, "architectures", None) or [])
        found = next((each for each in found if each.__name__ in wanted), found[0])
    return found
