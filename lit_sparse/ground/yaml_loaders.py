"""Loaders of YAML: one for files that the user names, one for files that may come from anyone."""

from __future__ import annotations

import re
from typing import Any

import yaml

__all__ = ["Loader", "SecondKeyError", "StoredLoader", "written_out"]

#: Numbers that YAML 1.1 reads as text, such as ``1e-3``; command lines read them as numbers, too.
EXPONENT = re.compile(r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)[eE][-+]?[0-9]+$")
#: Largest number of characters of a number.
MAX_DIGITS = 100


class SecondKeyError(yaml.constructor.ConstructorError):
    """Error for a key that occurs twice in a YAML mapping.

    Args:
        node: the second key.
        first: line of the first key, from 0.
    """

    def __init__(self, node: yaml.ScalarNode, first: int) -> None:
        super().__init__(None, None, f"a second key {node.value[:80]!r}", node.start_mark)
        self.key, self.first, self.second = node.value, first, node.start_mark.line


class Loader(yaml.SafeLoader):
    """YAML loader that refuses second keys in a mapping, values that contain themselves, and integers that no file stores.

    Args:
        text: YAML text.
    """

    def __init__(self, text: Any) -> None:
        super().__init__(text)
        self.begun: list[Any] = []

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Read a YAML value, unless it is an alias of a value that contains it."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        anchor, mark = getattr(event, "anchor", None), event.start_mark
        if isinstance(event, yaml.AliasEvent) and anchor in self.begun:
            raise yaml.composer.ComposerError(None, None, "a value that contains itself through an alias", mark)
        self.begun.append(anchor)
        node = super().compose_node(parent, index)
        self.begun.pop()
        return node

    def compose_mapping_node(self, anchor: Any) -> Any:
        """Read a YAML mapping, and check that its keys are distinct."""
        node: Any = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in lines:
                    raise SecondKeyError(key, lines[key.value])
                lines[key.value] = key.start_mark.line
        return node

    def construct_integer(self, node: yaml.ScalarNode) -> int:
        """Read an integer of at most 64 bits."""
        value: int = self.construct_yaml_int(node)
        if value.bit_length() > 64:
            raise yaml.constructor.ConstructorError(None, None, "a number of more than 64 bits", node.start_mark)
        return value


def written_out(node: yaml.Node | None, known: dict[int, int] | None = None) -> int:
    """Return how many values a node has with its aliases expanded, since nested aliases may stand for billions."""
    known = {} if known is None else known
    if id(node) not in known:
        inner = getattr(node, "value", ())
        pairs = inner if isinstance(inner, list) else ()
        known[id(node)] = 1 + sum(written_out(one, known) for it in pairs for one in (it if isinstance(it, tuple) else (it,)))
    return known[id(node)]


class StoredLoader(Loader):
    """YAML loader for files that may come from anyone, which refuses merges (``<<``) and whatever is slow to read.

    Args:
        text: YAML text.
        most: maximum number of values, and of nested levels.
        refusal: description, for the message, of a file that exceeds it.
    """

    def __init__(self, text: str, most: tuple[int, int], refusal: str) -> None:
        super().__init__(text)
        self.most, self.refusal = most, refusal
        self.values = self.level = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Read a YAML value, and count it and its nested values."""
        self.values, self.level = self.values + 1, self.level + 1
        if self.values > self.most[0] or self.level > self.most[1]:
            raise yaml.composer.ComposerError(None, None, self.refusal, self.peek_event().start_mark)  # type: ignore[no-untyped-call]
        node = super().compose_node(parent, index)
        self.level -= 1
        return node

    def construct_number(self, node: yaml.ScalarNode) -> Any:
        """Read a number of limited length, since many digits, or digits to the base 60, take quadratic time."""
        if len(node.value) > MAX_DIGITS:
            raise yaml.constructor.ConstructorError(None, None, "a number of more than 64 bits", node.start_mark)
        whole = node.tag.endswith(":int")
        return self.construct_integer(node) if whole else self.construct_yaml_float(node)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Raise an error for merges (``<<``)."""
        for key, _ in node.value:
            if key.tag.endswith(":merge"):
                raise yaml.constructor.ConstructorError(None, None, "a merge by `<<`", key.start_mark)
        super().flatten_mapping(node)


StoredLoader.yaml_implicit_resolvers = yaml.SafeLoader.yaml_implicit_resolvers  # PyYAML writes such text unquoted
Loader.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENT, [*"-+.0123456789"])
Loader.add_constructor("tag:yaml.org,2002:int", Loader.construct_integer)
for _tag in ("int", "float"):
    StoredLoader.add_constructor(f"tag:yaml.org,2002:{_tag}", StoredLoader.construct_number)
