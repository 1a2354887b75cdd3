"""Finds the weights that a callback acts on by their path in the model."""

from __future__ import annotations

from torch import nn

from lit_sparse.errors import ConfigurationError, did_you_mean
from lit_sparse.ground.arguments import checked

__all__ = ["find_weights"]

#: Prefix that ``torch.compile`` adds to the paths of a wrapped module.
COMPILED = "_orig_mod."


@checked
def find_weights(model: nn.Module, paths: list[str]) -> dict[str, nn.Parameter]:
    """Return the weights of a model at some paths, by their full path.

    Args:
        model: model whose modules and parameters the paths name.
        paths: paths of parameters, such as ``decoder.rnn.weight_hh_l0``, or of modules with a ``weight``, such as
            ``encoder``.

    Raises:
        ConfigurationError: if there is no such weight, or it is a vector.
    """
    parameters = {name.replace(COMPILED, ""): parameter for name, parameter in model.named_parameters(remove_duplicate=False)}
    ways = {name: name for name in parameters}
    ways |= {name.removesuffix(".weight"): name for name in parameters if name.endswith(".weight")}
    found = {}
    for path in paths:
        if path not in ways:
            usable = {way: name for way, name in ways.items() if parameters[name].dim() >= 2}
            inside = [name for name in usable if name.startswith(f"{path}.")]
            hint = f" Inside it there are {', '.join(inside[:8])}." if inside else did_you_mean(path, usable)
            hint = hint or f" There are {', '.join(list(usable)[:8])}."
            raise ConfigurationError(f"{type(model).__name__} has no weight at {path!r}.{hint}")
        parameter = parameters[ways[path]]
        if parameter.dim() < 2:
            raise ConfigurationError(
                f"Expected the weight at {path!r} to have at least 2 dimensions but its shape is {tuple(parameter.shape)}."
            )
        found[ways[path]] = parameter
    return found
