"""Registers mappings with transformers, as attention implementations with their masks."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from importlib import import_module
from types import ModuleType

from torch import Tensor

import lit_sparse.mappings
from lit_sparse.errors import ConfigurationError, MissingExtraError, needs_extra
from lit_sparse.hf.adapter import added_mask, attend, attend_by_layer, boolean_mask
from lit_sparse.mappings import Entmax, SparseMapping
from lit_sparse.mappings.base import check_mapping

__all__ = ["BY_LAYER", "BY_LAYER_BOOLEAN", "check_on_simplex", "import_transformers", "register", "register_function"]

#: First major version of transformers whose models share one interface of attention and one of masks.
OLDEST = 5

PREFIX = "lit_sparse_"
#: Names of the attention that uses the mapping of each layer: with boolean masks, for models that support ``sdpa``, and with
#: floating masks, for all models.
BY_LAYER_BOOLEAN, BY_LAYER = "lit_sparse_by_layer_boolean", "lit_sparse_by_layer"

AttentionFunction = Callable[..., tuple[Tensor, Tensor | None]]


def import_transformers() -> ModuleType:
    """Return the module ``transformers``, imported when it is first used.

    Raises:
        MissingExtraError: if it is not installed, or older than version 5.
    """
    with needs_extra("hf", "Models of Hugging Face"):
        transformers = import_module("transformers")
    major = re.match(r"\d+", transformers.__version__)
    if major is not None and int(major[0]) < OLDEST:
        but = f" with transformers {OLDEST} or newer but got {transformers.__version__}"
        raise MissingExtraError("Models of Hugging Face", "hf", but)
    return transformers


def register(**mappings: SparseMapping) -> list[str]:
    """Register mappings as attention implementations of transformers, and return their names for ``attn_implementation``.

    Without arguments, these are all mappings onto the simplex that need no argument, by their names:
    ``lit_sparse_softmax``, ``lit_sparse_sparsemax``, ``lit_sparse_entmax15``, and so on. Each name is registered for
    attention and for masks. A name registered for attention alone would not apply masks. Registering a name again replaces
    it.

    Transformers accepts these names for models that cannot use them, which then keep softmax;
    :func:`lit_sparse.hf.sparsify` checks the model. Continuous batching (``generate_batch``) refuses all such names.

    Args:
        mappings: name -> mapping, registered as ``lit_sparse_<name>``, for mappings with arguments.

    Raises:
        ConfigurationError: for a mapping outside the simplex, or with parameters, which would belong to no model.
        MissingExtraError: without transformers.

    Example:
        >>> from lit_sparse.mappings import TopKSparsemax
        >>> register(top8=TopKSparsemax(8))  # doctest: +SKIP
        ['lit_sparse_top8']
    """
    import_transformers()
    names = []
    for name, mapping in (mappings or _mappings_without_arguments()).items():
        check_on_simplex(mapping)
        if any(True for _ in mapping.parameters()):
            raise ConfigurationError(
                f"Expected a mapping without parameters but got {mapping!r}, whose parameters would not be trained or saved"
                " with a model. Call `lit_sparse.hf.sparsify(model, mapping)`."
            )
        if not re.fullmatch(r"[a-z0-9_]+", name):
            raise ConfigurationError(f"Expected a name of lower-case letters, digits and underscores but got {name!r}.")
        register_function(f"{PREFIX}{name}", partial(attend, mapping=mapping))
        names.append(f"{PREFIX}{name}")
    register_function(BY_LAYER, attend_by_layer)
    register_function(BY_LAYER_BOOLEAN, attend_by_layer, boolean_mask)
    return names


def register_function(name: str, function: AttentionFunction, mask: Callable[..., Tensor | None] = added_mask) -> None:
    """Register an attention function together with the function that makes its masks."""
    import_transformers()
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(name, function)
    AttentionMaskInterface.register(name, mask)


def check_on_simplex(mapping: object) -> None:
    """Raise an error unless the argument is a mapping onto the simplex.

    Raises:
        ConfigurationError: if it is not a mapping, or its results do not sum to one.
    """
    check_mapping(mapping)
    if not mapping.on_simplex:  # type: ignore[attr-defined]
        raise ConfigurationError(
            f"Expected a mapping onto the simplex, because attention averages values, but got {mapping!r}, whose results do not"
            " sum to one. Use Sparsemax() or TopKSparsemax(k)."
        )


def _mappings_without_arguments() -> dict[str, SparseMapping]:
    """Return this package's mappings onto the simplex that need no arguments, by name."""
    mappings: dict[str, SparseMapping] = {}
    for name in lit_sparse.mappings.__all__:
        kind = getattr(lit_sparse.mappings, name)
        if not (isinstance(kind, type) and issubclass(kind, SparseMapping)) or kind is SparseMapping or not kind.on_simplex:
            continue
        try:
            mapping = kind()
        except TypeError:  # an argument is required
            continue
        if not any(True for _ in mapping.parameters()):
            words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.replace("PNorm", "Pnorm")).lower()
            mappings["entmax15" if kind is Entmax else words] = mapping
    return mappings
