"""The page of all configs, from their first comments."""

from __future__ import annotations

from pathlib import Path

import yaml
from sphinx.application import Sphinx

#: Folder -> its title and what it holds.
FOLDERS = {
    "ssvae": (
        "Semi-supervised variational auto-encoder",
        "``mnist`` is the published experiment, after the overlay ``mnist_warm_start`` on labelled images alone.",
    ),
    "bitvector_vae": (
        "Variational auto-encoder with bits",
        "32 bits on Fashion-MNIST, as published. The overlay ``cut`` takes 5,000 images, which is minutes on a CPU.",
    ),
    "signaling_game": (
        "Signaling game",
        "``imagenet`` is the published game of 16 images and 256 symbols. ``own`` takes your own feature vectors.",
    ),
    "translation": (
        "Translation",
        "The models of Multi30k are for a CPU. ``wmt_style`` is the published setting. ``catalogues`` has program messages.",
    ),
    "summarization": ("Summarization", "Headlines of Gigaword, by the published setting or with 10,000 pairs on a CPU."),
    "entailment": ("Entailment", "SNLI, by the published setting or with a part of the pairs on a CPU."),
    "mapping": ("Mappings", "Overlays with a mapping, behind a base whose model takes one."),
    "soae": (
        "Supervised online auto-encoder",
        "``mnist`` trains in batches and ``mnist_online`` with one image per update. The overlays are the other variants.",
    ),
    "sparse_autoencoder": (
        "Sparse auto-encoder on activations",
        "The weights of the sentence encoder come with the extra ``demo``.",
    ),
    "coreset": (
        "Training on a coreset",
        "``logistic`` and ``gaussian`` need no files. ``mnist_lastlayer`` is trained after its ``mnist_proxy``.",
    ),
    "robust": ("Robust training", "A risk in place of the mean loss. ``california`` and ``mnist`` are published experiments."),
    "transport": ("Entropic optimal transport", "They need no files."),
    "trainer": ("Processes and devices", "Overlays behind any base."),
    "studies": ("Studies", "The published experiments, for ``lit-sparse study NAME``."),
}
COMMAND = "# lit-sparse "


def description(text: str) -> str:
    """Return the first comment of a config, without a last sentence that leads to the next line."""
    first = text.splitlines()[0].removeprefix("# ").removeprefix("Overlay: ")
    if first.endswith(":"):
        first = first[: first.rfind(". ") + 1]
    first = first[:1].upper() + first[1:]
    return first.replace("`", "``").replace("*", r"\*")


def command(text: str) -> str:
    """Return the last command in the first comments of a config, or an empty string."""
    head = text[: text.find("\n", text.rfind(f"\n{COMMAND}") + 1)] if COMMAND in text else ""
    return head.rpartition(f"\n{COMMAND}")[2]


def kind(text: str) -> str:
    """Return whether a config trains by itself, changes another config, or is a study."""
    return "study" if "cells" in yaml.safe_load(text) else "overlay" if text.startswith("# Overlay") else "base"


def page(configs: Path) -> str:
    """Return the page in reStructuredText.

    Args:
        configs: folder of the configs.
    """
    lines = ["Configs", "=======", ""]
    lines += [
        "All configs of the package, with the command that each begins with. A base trains by itself. An overlay goes behind a"
    ]
    lines += [
        "base, as in ``lit-sparse fit -c BASE -c OVERLAY``. Capital words stand for paths of your own. This page is made from"
    ]
    lines += ["the comments of the files.", ""]
    found = {folder.name for folder in configs.iterdir() if folder.is_dir() and any(folder.rglob("*.yaml"))}
    if missing := found - FOLDERS.keys():
        raise LookupError(
            f"Expected a title and a sentence for {', '.join(sorted(missing))} in FOLDERS of docs/_ext/configs.py."
        )
    for folder, (title, about) in FOLDERS.items():
        lines += ["", title, "-" * len(title), "", about, ""]
        lines += [
            ".. list-table::",
            "   :header-rows: 1",
            "   :widths: 24 8 68",
            "",
            "   * - config",
            "     - kind",
            "     - content",
        ]
        for path in sorted((configs / folder).rglob("*.yaml"), key=lambda path: (len(path.parts), path)):
            text = path.read_text(encoding="utf-8")
            name = path.relative_to(configs).with_suffix("").as_posix()
            lines += [f"   * - ``{name}``", f"     - {kind(text)}", f"     - {description(text)}"]
            if used := command(text):
                lines += ["", f"       ``lit-sparse {used}``"]
    return "\n".join([*lines, ""])


def write_page(app: Sphinx) -> None:
    """Write the page before the builder looks for pages."""
    path = Path(app.srcdir) / "reference" / "configs.rst"
    text = page(Path(app.srcdir).parent / "configs")
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the extension."""
    app.connect("builder-inited", write_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
