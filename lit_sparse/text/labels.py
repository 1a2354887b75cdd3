"""Classes of natural-language inference."""

from __future__ import annotations

from collections.abc import Sequence

from lit_sparse.errors import ConfigurationError

__all__ = ["LABELS", "UNDECIDED", "check_labels"]

#: Names of the classes in the order of the numbers that the hub's SNLI and MultiNLI have.
LABELS = ("entailment", "neutral", "contradiction")
#: Labels of pairs on which annotators did not agree.
UNDECIDED = ("-", -1, None)


def check_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """Return the names of classes after checking that they are at least two, and distinct.

    Raises:
        ConfigurationError: if they are fewer, or repeat.
    """
    names = () if isinstance(labels, str) else tuple(labels)
    if len(set(names)) < max(2, len(names)) or not all(isinstance(name, str) and name not in UNDECIDED for name in names):
        raise ConfigurationError(f"Expected argument `labels` to be at least two different names but got {labels!r}.")
    return names
