"""The classes that a stored description may name: stored files come from third parties, and an imported name may run code.

Each place of a description has a base class, which the annotation of the argument declares
(:mod:`lit_sparse.runs.builder`). A class may stand there if it is a subclass of that base, and one of:

- a part of this package: a public class of one of :data:`PARTS`;
- a public class of ``torch.nn`` or ``torch.optim``;
- a class of a module that the program has imported already, other than this package's dependencies;
- a class that the user names (:func:`trusting`). A function is allowed only in this way.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import nn

from lit_sparse.errors import CheckpointError
from lit_sparse.ground.arguments import checked

__all__ = ["find_imported", "is_allowed", "mentioned", "trusted", "trusting"]

#: Subpackages whose public classes a description may name.
PARTS = (
    *("lit_sparse.coresets", "lit_sparse.data", "lit_sparse.estimators", "lit_sparse.hf", "lit_sparse.mappings"),
    *("lit_sparse.metrics", "lit_sparse.models", "lit_sparse.nn", "lit_sparse.risks", "lit_sparse.structures"),
    *("lit_sparse.text", "lit_sparse.transport"),
)
#: Packages that this package imports; that they are imported does not show that the user trusts them.
DEPENDENCIES = {
    *("accelerate", "datasets", "fsspec", "h5py", "huggingface_hub", "jinja2", "joblib", "jsonargparse", "lightning"),
    *("lightning_fabric", "lightning_utilities", "matplotlib", "mpl_toolkits", "numba", "numpy", "onnx", "onnxscript"),
    *("optuna", "pandas", "peft", "PIL", "polib", "pyarrow", "pytorch_lightning", "sacremoses", "safetensors", "scipy"),
    *("sentence_transformers", "shtab", "sklearn", "sqlalchemy", "tensorboard", "tokenizers", "torch", "torchmetrics"),
    *("transformers", "triton", "typing_extensions", "yaml"),
}
#: Modules of both Lightnings with the scheduler that they wrap.
LIGHTNING_CLI = ("pytorch_lightning.cli", "lightning.pytorch.cli")
TORCH_BASES = nn.Module | torch.optim.Optimizer | torch.optim.lr_scheduler.LRScheduler

_TRUSTED: ContextVar[frozenset[str]] = ContextVar("_TRUSTED", default=frozenset())


@checked
@contextmanager
def trusting(names: Collection[str]) -> Iterator[None]:
    """Allow stored descriptions to use further import paths, within a context.

    Args:
        names: import paths such as ``"my_package.my_function"``.

    Raises:
        CheckpointError: if there is nothing at one of these paths.
    """
    with mentioned([name for name in names if isinstance(name, str)]):
        for name in names:
            if not isinstance(name, str) or find_imported(name) is None:
                raise CheckpointError(
                    f"Expected import paths to trust, such as my_package.my_function, but found no {name!r}. Give the path of"
                    " the module that defines it."
                )
        yield


@contextmanager
def mentioned(names: Collection[str]) -> Iterator[None]:
    """Allow stored descriptions to use the import paths among words of configs and options, within a context."""
    token = _TRUSTED.set(_TRUSTED.get() | frozenset(names))
    try:
        yield
    finally:
        _TRUSTED.reset(token)


def trusted() -> frozenset[str]:
    """Return the import paths that the user trusts in this context."""
    return _TRUSTED.get()


def is_allowed(found: type) -> bool:
    """Return whether a stored description may name a class."""
    module = found.__module__
    root = module.partition(".")[0]
    if root == "lit_sparse":
        return any(
            found.__name__ in getattr(known, "__all__", ()) and vars(known).get(found.__name__) is found
            for name in PARTS
            if (known := sys.modules.get(name)) is not None
        )
    if root == "torch":
        public = (torch.nn, torch.optim, torch.optim.lr_scheduler)
        return issubclass(found, TORCH_BASES) and any(vars(one).get(found.__name__) is found for one in public)
    if root in DEPENDENCIES or root in sys.stdlib_module_names:
        return module in LIGHTNING_CLI and issubclass(found, torch.optim.lr_scheduler.LRScheduler)
    return True


def find_imported(name: str) -> Any:
    """Return the object at an import path, if its module is imported, or a part of this package or the user's; else None.

    Raises:
        CheckpointError: if a module that the user names cannot be imported.
    """
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        return None
    for end in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:end])
        known = f"{module}.".startswith(tuple(f"{part}." for part in PARTS))
        if module not in sys.modules and (known or any(text.startswith(f"{module}.") for text in trusted())):
            try:
                import_module(module)
            except Exception as error:
                if isinstance(error, ImportError) and (known or f"{module}.".startswith(f"{error.name}.")):
                    continue  # the extra is not installed, or this is the name of a class, not of a module
                raise CheckpointError(
                    f"Expected to import {module!r}, which your config or options name, but got {type(error).__name__}: {error}"
                ) from error
        if module in sys.modules:
            found: Any = sys.modules[module]
            for part in parts[end:]:  # not getattr, which imports submodules in some packages
                found = vars(found).get(part) if isinstance(found, type | ModuleType) else None
            return found
    return None
