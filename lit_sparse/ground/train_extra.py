"""Raises :class:`~lit_sparse.errors.MissingExtraError` when it is imported and the extra ``train`` is not installed.

The subpackages of the extra import it first. It looks the packages up and imports none of them.
"""

from __future__ import annotations

from importlib.util import find_spec

from lit_sparse.errors import MissingExtraError

__all__ = ["MODULES"]

#: Modules of the extra besides Lightning, which has two names.
MODULES = (
    *("datasets", "jsonargparse", "matplotlib", "pandas", "PIL", "rich", "rouge_score", "sacrebleu", "scipy", "sklearn"),
    *("tensorboard", "tokenizers", "torchmetrics", "yaml"),
)

_missing = [name for name in MODULES if find_spec(name) is None]
if find_spec("pytorch_lightning") is None and find_spec("lightning") is None:
    _missing = ["pytorch_lightning", *_missing]
if _missing:
    raise MissingExtraError(
        "The command line, models, data modules, callbacks and metrics", "train", f" but got no module {_missing[0]!r}"
    )
