"""Finds the attention layers of a model by one small forward pass: which call the interface, and which keep their softmax."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from lit_sparse.errors import ConfigurationError
from lit_sparse.ground.evaluation import evaluating
from lit_sparse.hf.adapter import attend, is_torch_layer
from lit_sparse.hf.registry import register_function
from lit_sparse.mappings import Softmax

__all__ = ["Probe", "example_inputs", "probe", "run", "use_attention", "uses_interface"]

#: Name of the attention that records its calls.
RECORDING = "lit_sparse_probe"
_FUSED = {F.scaled_dot_product_attention, F.multi_head_attention_forward}
_SOFTMAX = {torch.softmax, F.softmax, Tensor.softmax}
#: Parts of names of classes whose softmax chooses experts, also inside a layer that is called attention.
_ROUTERS = ("router", "gate", "moe", "expert")


class Probe(TorchFunctionMode):
    """Attention layers of a model, as a forward pass in this mode finds them.

    Attention outside of the interface is a fused call, or a softmax inside a layer that is called attention.

    Args:
        model: the model.

    Attributes:
        heads: each layer that uses the attention interface, or is torch's -> number of heads.
        others: names of layers with a softmax of their own.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.heads: dict[nn.Module, int] = {}
        self.others: list[str] = []
        self.names = {module: name for name, module in model.named_modules()}
        self.stack: list[nn.Module] = []
        self.inside = False  # the interface

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.inside and (func in _FUSED or (func in _SOFTMAX and not self._in_router())):
            layers = (
                each for each in reversed(self.stack) if is_torch_layer(each) or "attention" in type(each).__name__.lower()
            )
            attention = next(layers, None)
            place = attention if attention is not None else self.stack[-1] if self.stack and func in _FUSED else None
            name = self.names.get(place) if place is not None else None
            if name is not None and name not in self.others and place not in self.heads:
                self.others.append(name)
        return func(*args, **(kwargs or {}))

    def _in_router(self) -> bool:
        return bool(self.stack) and any(part in type(self.stack[-1]).__name__.lower() for part in _ROUTERS)

    def enter(self, module: nn.Module, _inputs: Any) -> None:
        """Note a module that is called."""
        if self.names.get(module) == "":  # the model itself; a pass that failed has left its layers
            self.stack.clear()
            self.inside = False
        self.stack.append(module)
        if is_torch_layer(module):
            self.heads.setdefault(module, module.num_heads)  # type: ignore[arg-type]

    def leave(self, _module: nn.Module, _inputs: Any, _output: Any) -> None:
        """Forget a module that returns."""
        self.stack.pop()


def probe(model: nn.Module, example: Mapping[str, Any] | None) -> Probe:
    """Return a model's attention layers, found by a forward pass with an attention function that records its calls.

    The recording attention, with softmax as the mapping, stays in the model.

    Args:
        model: transformers model.
        example: arguments of its forward pass; None to construct them.

    Raises:
        ConfigurationError: if the pass fails.
    """
    found, softmax = Probe(model), Softmax()

    def function(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        found.inside = True
        found.heads.setdefault(module, query.shape[1])
        result = attend(module, query, key, value, attention_mask, softmax, **options)
        found.inside = False
        return result

    register_function(RECORDING, function)
    use_attention(model, RECORDING)
    examples = example_inputs(model) if example is None else [example]
    hooks = [register_module_forward_pre_hook(found.enter), register_module_forward_hook(found.leave)]
    try:
        with found:
            run(model, examples)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def run(model: nn.Module, examples: Sequence[Mapping[str, Any]]) -> None:
    """Run a model once in eval mode, without gradients, on the first of several examples that works.

    Args:
        model: transformers model.
        examples: arguments of its forward pass; if the pass fails, the next ones are tried.

    Raises:
        ConfigurationError: if all passes fail, or the mapping is not usable.
    """
    device = next(model.parameters()).device
    errors: list[Exception] = []
    with evaluating(model):
        for inputs in examples:
            placed = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in inputs.items()}
            try:
                with torch.no_grad():
                    model(**placed)
                return
            except ConfigurationError:
                raise
            except Exception as error:
                errors.append(error)
    tried = " or ".join(", ".join(inputs) for inputs in examples)
    reason = f"{type(errors[0]).__name__}: {errors[0]}" if errors else "no arguments"
    raise ConfigurationError(
        f"Expected a forward pass of {type(model).__name__} with {tried} to run but got {reason}. Give `example`, the"
        " arguments of a small forward pass."
    ) from (errors[0] if errors else None)


def use_attention(model: Any, name: str) -> None:
    """Make a model use the attention registered as ``name``, also in layers with a config of their own."""
    model.set_attn_implementation(name)
    for module in model.modules():
        config = getattr(module, "config", None)
        if config is not None and getattr(config, "_attn_implementation", name) != name and uses_interface(module):
            config._attn_implementation = name


def uses_interface(module: nn.Module) -> bool:
    """Return whether a layer's forward method calls transformers' attention interface."""
    try:
        return "ALL_ATTENTION_FUNCTIONS" in inspect.getsource(type(module).forward)
    except (OSError, TypeError):
        return False


def example_inputs(model: Any) -> list[dict[str, Any]]:
    """Return arguments of small forward passes: the model's main input alone, text with an image, and other inputs alone.

    Args:
        model: transformers model.
    """
    accepted = inspect.signature(model.forward).parameters
    known = sorted((name for name in _MAKERS if name in accepted), key=lambda name: name != model.main_input_name)
    made: dict[str, Tensor] = {}
    for name in known or ["input_ids"]:
        with suppress(Exception):  # a config may lack the sizes of one kind of input
            made[name] = _MAKERS[name](model)
    kinds = [[name] for name in made]
    kinds[1:1] = [["input_ids", "pixel_values"]] if {"input_ids", "pixel_values"} <= made.keys() else []
    decoder: dict[str, Any] = {}
    if getattr(model.config, "is_encoder_decoder", False) and "decoder_input_ids" in accepted:
        decoder = {"decoder_input_ids": torch.tensor([[1, 2, 3]])}
    return [{**{name: made[name] for name in kind}, **decoder} for kind in kinds]


def _tokens(model: Any) -> Tensor:
    ids: Tensor = model.dummy_inputs["input_ids"][:1]
    try:
        return ids % int(model.get_input_embeddings().num_embeddings)
    except (AttributeError, NotImplementedError):
        return ids.clamp_max(4)


def _image(model: Any) -> Tensor:
    config = getattr(model.config, "vision_config", model.config)
    size = getattr(config, "image_size", 32)
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return torch.zeros(1, getattr(config, "num_channels", 3), height, width, dtype=model.dtype)


def _spectrum(model: Any) -> Tensor:
    config = model.config
    bands = getattr(config, "num_mel_bins", getattr(config, "feature_size", 80))
    frames = 2 * getattr(config, "max_source_positions", 50)
    shape = (1, bands, frames) if hasattr(config, "max_source_positions") else (1, frames, bands)
    return torch.zeros(shape, dtype=model.dtype)


_MAKERS: dict[str, Callable[[Any], Tensor]] = {
    "input_ids": _tokens,
    "pixel_values": _image,
    "input_features": _spectrum,
    "input_values": lambda model: torch.linspace(-1, 1, 4000, dtype=model.dtype).unsqueeze(0),  # a wave
}
