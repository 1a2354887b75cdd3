"""Imports transformers when it is used."""

from __future__ import annotations

import re
from importlib import import_module
from types import ModuleType

from lit_sparse.errors import MissingExtraError

__all__ = ["OLDEST", "import_transformers"]

#: First major version of transformers whose models share one interface of attention and one of masks.
OLDEST = 5


def import_transformers() -> ModuleType:
    """Return the module ``transformers``, imported when it is first used.

    Raises:
        MissingExtraError: if it is not installed, or older than version 5.
    """
    try:
        transformers = import_module("transformers")
    except ImportError as error:
        raise MissingExtraError("Models of Hugging Face", "hf") from error
    major = re.match(r"\d+", transformers.__version__)
    if major is not None and int(major[0]) < OLDEST:
        but = f" with transformers {OLDEST} or newer but got {transformers.__version__}"
        raise MissingExtraError("Models of Hugging Face", "hf", but)
    return transformers
