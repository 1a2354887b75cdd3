"""Activations of a module within a model: read, replaced, and what replacing them costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lit_sparse.checks import check_number, check_result, shown
from lit_sparse.errors import ConfigurationError, did_you_mean
from lit_sparse.ground.arguments import checked
from lit_sparse.ground.evaluation import evaluating

__all__ = ["activations", "loss_recovered", "spliced"]


@checked
def activations(model: nn.Module, layer: str, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return the output (B, L, D) of a module inside a model, for a batch of tokens.

    Args:
        model: model of tokens, such as a transformers model.
        layer: name of the module, as in ``named_modules``.
        inputs: arguments of the model, with ``input_ids`` (B, L).

    Raises:
        ConfigurationError: if there is no module of this name, it is not called once, or returns no vector per token, or the
            inputs lack ``input_ids``.

    Example:
        >>> import torch
        >>> class Model(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.embed = torch.nn.Embedding(9, 4)
        ...
        ...     def forward(self, input_ids):
        ...         return self.embed(input_ids).sum(-1)
        >>> activations(
        ...     Model(), "embed", {"input_ids": torch.zeros(2, 3, dtype=torch.int64)}
        ... ).shape
        torch.Size([2, 3, 4])
    """
    if "input_ids" not in inputs:
        raise ConfigurationError(f"Expected inputs with `input_ids` but got {', '.join(map(str, inputs)) or 'none'}.")
    seen: list[Any] = []
    with _module(model, layer).register_forward_hook(lambda part, args, output: seen.append(output)):
        model(**inputs)
    if len(seen) != 1:
        raise ConfigurationError(f"Expected {layer!r} to be called once by the model but it was called {len(seen)} times.")
    return _per_token(seen[0], layer, inputs["input_ids"])


@checked
@contextmanager
def spliced(
    model: nn.Module, layer: str, function: Callable[[Tensor], Tensor], skipped: Collection[int] = ()
) -> Iterator[None]:
    """Replace, within a context, a module's activations (N, D) by a function of them, such as their reconstruction.

    Args:
        model: model of tokens, which gets ``input_ids`` by name.
        layer: name of the module, as in ``named_modules``.
        function: function from activations (N, D) to activations (N, D).
        skipped: token ids whose activations stay unchanged, such as ``tokenizer.all_special_ids``.

    Raises:
        ConfigurationError: if there is no module of this name, or it or the function returns no vector per token.
    """
    tokens: list[Tensor] = []

    def keep(_: Any, args: Any, options: dict[str, Any]) -> None:
        if "input_ids" not in options:
            raise ConfigurationError("Expected the model to be called with `input_ids` by name. Call model(**inputs).")
        tokens[:] = [options["input_ids"]]

    def replace(_: Any, args: Any, output: Any) -> Any:
        found = _per_token(output, layer, tokens[0])
        chosen = ~torch.isin(tokens[0], torch.tensor([*skipped], dtype=torch.int64, device=tokens[0].device))
        changed = found.clone()
        made = check_result(function, "__call__", function(found[chosen]), tuple(found[chosen].shape))
        changed[chosen] = made.to(found.dtype)
        return changed if isinstance(output, Tensor) else (changed, *output[1:])

    with model.register_forward_pre_hook(keep, with_kwargs=True), _module(model, layer).register_forward_hook(replace):
        yield


@checked
@torch.no_grad()
def loss_recovered(
    model: nn.Module,
    layer: str,
    autoencoder: Callable[[Tensor], Tensor],
    loss: Callable[[], Any],
    skipped: Collection[int] = (),
) -> dict[str, float]:
    """Return how much of a model's loss is recovered when a module's activations are replaced by their reconstructions.

    Args:
        model: the model, used without dropout.
        layer: name of the module, as in ``named_modules``.
        autoencoder: function of activations (N, D), such as a :class:`lit_sparse.models.SparseAutoencoder`.
        loss: function without arguments that returns the model's loss on some text.
        skipped: token ids whose activations stay unchanged, such as ``tokenizer.all_special_ids``.

    Returns:
        The losses ``clean``, ``spliced`` with reconstructions and ``zero`` with zeros, and
        ``recovered = (zero - spliced) / (zero - clean)``.

    Raises:
        ConfigurationError: as :func:`spliced`, or if the loss is not one number, or does not depend on the module.
    """
    with evaluating(model):
        found = {"clean": _number(loss())}
        for name, function in (("spliced", autoencoder), ("zero", torch.zeros_like)):
            with spliced(model, layer, function, skipped):
                found[name] = _number(loss())
    if found["zero"] == found["clean"]:
        raise ConfigurationError(
            f"Expected a loss that depends on {layer!r} but got {found['clean']:g} with and without its activations. Let"
            " it call the model, or name another module."
        )
    return {**found, "recovered": (found["zero"] - found["spliced"]) / (found["zero"] - found["clean"])}


def _number(loss: Any) -> float:
    if isinstance(loss, Tensor) and loss.numel() == 1:
        return float(loss)
    return check_number("loss", loss, -math.inf, math.inf)


def _module(model: nn.Module, layer: str) -> nn.Module:
    parts: dict[str, nn.Module] = dict(model.named_modules())
    if not layer or layer not in parts:
        raise ConfigurationError(
            f"Expected `layer` to name a module of {type(model).__name__} but got {layer!r}.{did_you_mean(layer, parts)}"
            " `model.named_modules()` lists them."
        )
    return parts[layer]


def _per_token(output: Any, layer: str, tokens: Tensor) -> Tensor:
    """Return the output of a module, or the first of its outputs, if it has a vector for each of the tokens (B, L)."""
    found = output[0] if isinstance(output, tuple | list) and output else output
    if not isinstance(found, Tensor) or found.dim() != 3 or found.shape[:2] != tokens.shape or not found.is_floating_point():
        what = f"{layer!r} to return a vector for each of the tokens {tuple(tokens.shape)}"
        raise ConfigurationError(f"Expected {what} but got {shown(found)}. Name another.")
    return found
