"""The reference: a page for each subpackage, links from any path of an object, and cited sources."""

from __future__ import annotations

import importlib
import inspect
import re
import types
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

#: Groups of pages: file -> title, what the group is for, and its subpackages.
GROUPS = {
    "mappings_and_attention": (
        "Mappings and attention",
        "From scores to sparse weights, ranks and structures: layers, functions and the kernels that they run on.",
        ("mappings", "mappings.functional", "structures", "nn", "kernels"),
    ),
    "objectives": (
        "Latent variables, risks and coresets",
        "Expected losses over latent variables, objectives over the losses of a batch, and weighted subsets of the data.",
        ("estimators", "risks", "coresets", "coresets.posteriors"),
    ),
    "models_and_data": (
        "Models and data",
        "What trains with Lightning: models, data modules, callbacks and metrics.",
        ("models", "text", "data", "transport", "metrics", "callbacks"),
    ),
    "other_packages": (
        "Other packages and formats",
        "Hugging Face models, PyEPO, ONNX and torch.export.",
        ("hf", "pyepo", "export"),
    ),
    "command_line": (
        "The command line from Python",
        "Build or run a command in a script or a notebook.",
        ("cli", "cli.scores"),
    ),
    "own_parts": (
        "Your own parts",
        "Shared tests, checks of arguments, and the errors that they raise.",
        ("testing", "checks", "errors"),
    ),
}
SUBPACKAGES = tuple(name for _, _, names in GROUPS.values() for name in names)
#: Targets outside this package, whose pages this build does not load.
EXTERNAL = [(r"py:.*", r"(?!lit_sparse).*")]

_NUMBER = re.compile(r"\b(arXiv:\d{4}\.\d{4,5}|doi:10\.[^\s,;)]*[^\s,;.)])")


def _contents(title: str, text: str, pages: Iterable[str]) -> list[str]:
    """Return the lines of a page that lists other pages."""
    return [title, "=" * len(title), "", text, "", ".. toctree::", "   :maxdepth: 2", "", *(f"   {page}" for page in pages), ""]


def write_pages(folder: Path) -> None:
    """Write a page for each group, and one for each subpackage: its docstring, and a table of its public names."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = {"index.rst": _contents("API", "A page for each subpackage, in six groups.", GROUPS)}
    pages |= {f"{group}.rst": _contents(*described) for group, described in GROUPS.items()}
    for subpackage in SUBPACKAGES:
        name = f"lit_sparse.{subpackage}"
        module = importlib.import_module(name)
        owned = [entry for entry in module.__all__ if documented()[id(getattr(module, entry))] == f"{name}.{entry}"]
        names = [entry for entry in owned if inspect.isclass(found := getattr(module, entry)) or inspect.isroutine(found)]
        constants = [entry for entry in owned if entry not in names]
        lines = [name, "=" * len(name), "", f".. automodule:: {name}", "   :no-members:", "", f".. currentmodule:: {name}", ""]
        lines += [".. autosummary::", "   :toctree: objects", "", *(f"   {entry}" for entry in names), ""]
        for entry in constants:
            alias = isinstance(getattr(module, entry), types.GenericAlias)
            lines += [f".. py:data:: {entry}", ""] if alias else [f".. autodata:: {entry}", "   :no-value:", ""]
        pages[f"{subpackage}.rst"] = lines
    for file, lines in pages.items():
        text = "\n".join(lines)
        path = folder / file
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


@cache
def documented() -> dict[int, str]:
    """Return the documented name of each public object, by its identity."""
    found = {}
    for subpackage in SUBPACKAGES:
        module = importlib.import_module(f"lit_sparse.{subpackage}")
        for name in module.__all__:
            found.setdefault(id(getattr(module, name)), f"lit_sparse.{subpackage}.{name}")
    return found


def imported(path: str) -> Any:
    """Return the object of a dotted path, or None."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for name in parts[end:]:
            found = getattr(found, name, None)
        return found
    return None


def resolve(app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.Element) -> nodes.Element | None:
    """Link a reference to an object by another path than its documented one; plain text if it has no page."""
    target = node.get("reftarget", "")
    if node.get("refdomain") != "py" or not target.startswith("lit_sparse"):
        return None
    name = documented().get(id(imported(target)))
    if name is None:
        owner, _, member = target.rpartition(".")
        name = documented().get(id(imported(owner)))
        name = None if name is None else f"{name}.{member}"
    domain = env.get_domain("py")
    if name is not None:
        link = domain.resolve_xref(env, node["refdoc"], app.builder, "obj", name, node, content)
        if link is not None:
            return link
    return content if imported(target) is not None else None


def cite(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Cite the numbered sources of a docstring in the bibliography."""
    keys = app.env.lit_sparse_keys  # type: ignore[attr-defined]
    for place, line in enumerate(lines):
        lines[place] = _NUMBER.sub(lambda number: f"{number[1]} :cite:p:`{keys[number[1]]}`", line)


def read_keys(app: Sphinx, env: BuildEnvironment, names: list[str]) -> None:
    """Read which entry of the bibliography has which number."""
    text = (Path(app.srcdir) / "references.bib").read_text(encoding="utf-8")
    keys = {}
    for key, body in re.findall(r"@\w+\{([^,]+),(.*?)\n\}", text, re.DOTALL):
        for field, prefix in (("eprint", "arXiv:"), ("doi", "doi:")):
            if number := re.search(rf"{field}\s*=\s*\{{([^}}]+)\}}", body):
                keys[prefix + number[1]] = key
    env.lit_sparse_keys = keys  # type: ignore[attr-defined]


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the extension."""
    app.connect("missing-reference", resolve)
    app.connect("autodoc-process-docstring", cite)
    app.connect("env-before-read-docs", read_keys)
    app.setup_extension("_ext.configs")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
