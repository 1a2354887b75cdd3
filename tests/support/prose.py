"""The prose of a file: docstrings, comments and messages of Python code, the text of a page, the comments of a config."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple


class Passage(NamedTuple):
    """A paragraph, an entry of a list, a cell of a table, a comment or a message."""

    line: int
    text: str


_ENTRY = re.compile(r"\s*(?:\*{0,2}[a-z_]\w*(?:, \*{0,2}[a-z_]\w*)*: |``[^`]+``: |[-*] |\d+\. |\|)")


def _plain(text: str) -> str:
    """Return a text with each code span or formula as one word, and each link as its text."""
    text = re.sub(r"``.*?``|[:{][\w:]+[:}]`.*?`|`.*?`|\$.*?\$", "CODE", " ".join(text.split()))
    return re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)


def _without_code(text: str) -> str:
    """Return a text with fenced code, doctests and formulas replaced by empty lines."""
    for pattern in (
        r"^[ ]*```.*?^[ ]*```[^\n]*$",
        r"^[ ]*>>> .*?(?=\n[ ]*\n|\Z)",
        r"^([ ]*)(?:\.\. math|\.\. code|[^\n]*::[ ]*$)[^\n]*\n(?:[ ]*\n|\1 [^\n]*(?:\n|\Z))*",
    ):
        text = re.sub(pattern, lambda code: "\n" * code.group().count("\n"), text, flags=re.MULTILINE | re.DOTALL)
    return text


def paragraphs(text: str, line: int = 1) -> Iterator[Passage]:
    """Yield the paragraphs of a docstring or a page that starts at a line."""
    held: list[str] = []
    start = line
    for number, row in enumerate([*_without_code(text).split("\n"), ""], line):
        entry = _ENTRY.match(row)
        if held and (entry or not row.strip() or row.startswith("#")):
            yield Passage(start, " ".join(held))
            held = []
        if row.lstrip().startswith("|"):
            yield from (Passage(number, cell.strip()) for cell in row.strip().strip("|").split("|") if re.search(r"\w", cell))
        elif row.strip():
            start = start if held else number
            held.append(row[entry.end() :] if entry else row.lstrip("#> "))


def _comments(text: str) -> Iterator[Passage]:
    """Yield Python's comments; those on lines of their own that follow each other are one passage."""
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type == tokenize.COMMENT]
    block = 0
    keys: list[int] = []
    for i, token in enumerate(tokens):
        own = not token.line[: token.start[1]].strip()
        follows = own and i > 0 and tokens[i - 1].start == (token.start[0] - 1, token.start[1])
        block += not follows
        keys.append(block)
    for _, group in groupby(zip(keys, tokens, strict=True), key=lambda pair: pair[0]):
        members = [token for _, token in group]
        prose = " ".join(token.string.lstrip("#: ") for token in members)
        if not re.match(r"(noqa|type:|pragma|ruff)", prose):
            yield Passage(members[0].start[0], prose)


def _string(node: ast.AST) -> str | None:
    """Return the text of a string literal, with braces for what a format fills in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return None


def python_passages(text: str, *, literals: bool) -> Iterator[Passage]:
    """Yield the passages of Python code; `literals` takes every string of four words for a message."""
    yield from _comments(text)
    tree = ast.parse(text)
    documentation: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and (docstring := _string(node.value)) is not None:
            documentation.add(id(node.value))
            yield from paragraphs(docstring, node.lineno)
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    raised = [node for node in ast.walk(tree) if isinstance(node, ast.Raise)]
    for root in [tree] if literals else raised:
        for node in ast.walk(root):
            message = _string(node)
            if message is None or id(node) in documentation or id(node) in inside:
                continue
            if len(re.findall(r"[a-z]+ ", message)) > 3:
                assert isinstance(node, ast.expr)
                yield Passage(node.lineno, message)


def config_passages(text: str) -> Iterator[Passage]:
    """Yield the comments of a YAML file; those on lines that follow each other are one passage."""
    held: list[str] = []
    start = 0
    for number, row in enumerate([*text.split("\n"), ""], 1):
        comment = re.match(r"\s*#\s*(.*)", row)
        if comment is None and held:
            yield Passage(start, " ".join(held))
            held = []
        if comment:
            start = start if held else number
            held.append(comment.group(1))
        elif trailing := re.search(r"\s#\s+(.*)", row):
            yield Passage(number, trailing.group(1))


def passages(path: Path, *, literals: bool) -> Iterator[Passage]:
    """Yield the passages of a file, without code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        found = python_passages(text, literals=literals)
    else:
        found = config_passages(text) if path.suffix == ".yaml" else paragraphs(text)
    return (Passage(line, _plain(words)) for line, words in found)
