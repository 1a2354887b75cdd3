"""The help of the commands that run a model: examples first, then the options in groups."""

from __future__ import annotations

import re
from argparse import Action, _ArgumentGroup
from collections.abc import Iterable, Sequence
from typing import TypeVar

__all__ = ["USAGES", "grouped", "plain"]

Group = TypeVar("Group", bound=_ArgumentGroup)

#: Options -> their effect.
_FIT = {
    "-c ssvae/digits": "train with a config; `lit-sparse configs` lists them",
    "-c ssvae/digits -c ssvae/estimator/sfe": "change a config by an overlay",
    "-c ssvae/digits --model.mapping Softmax --model.optimizer.lr 1e-4 --trainer.max_epochs 5": "change single options",
    "-c ssvae/digits --ckpt_path last": "continue the newest run of this config",
}
_SCORE = {
    "-c ssvae/digits --ckpt_path best": "use the best checkpoint of the newest run of this config",
    "-c RUN/config.yaml --ckpt_path RUN/checkpoints/last.ckpt": "use the last checkpoint of the run folder RUN",
    "-c ssvae/digits --ckpt_path best --data.eval_batch_size 100": "change an option of the data",
}
_SELECT = {
    "-c coreset/logistic": "select the coreset that `fit` would train on",
    "-c ssvae/digits --selector NonnegativeOMP --k 100 --vectors my_vectors.pixels": "select from other data",
    "-c coreset/logistic --sizes [10,20,40,80]": "select these sizes for the picture, too",
    "-c coreset/logistic --resume true": "continue the newest selection of this config after it was killed",
}


def _usage(command: str, options: str, examples: dict[str, str]) -> str:
    """Return the usage of a command, followed by examples."""
    shown = [f"  lit-sparse {command} {example}\n      {effect}" for example, effect in examples.items()]
    return "\n".join([f"lit-sparse {command} {options} [options]", "", "examples:", *shown])


#: Command -> usage with examples.
USAGES = {
    "fit": _usage("fit", "-c CONFIG [-c OVERLAY ...]", _FIT),
    "select": _usage("select", "-c CONFIG", _SELECT),
    **{name: _usage(name, "-c CONFIG --ckpt_path CHECKPOINT", _SCORE) for name in ("validate", "test", "predict")},
}

#: An option of a group -> its heading and a sentence about it; in the order of the help.
_GROUPS = {
    "help": ("config", "A config sets the options below; an option of the command line changes it."),
    "output_dir": ("run folder", "A run writes its config, metrics, pictures and checkpoints to OUTPUT_DIR/NAME/NUMBER."),
    "selector": ("selection", "These are for data modules other than CoresetDataModule, which has them as its own options."),
    "ckpt_path": ("checkpoint", None),
    "model": (
        "model and optimizer",
        "Parts of a model and their arguments are options: --model.mapping Entmax --model.mapping.alpha 1.3. So are its"
        " optimizer and scheduler, also without `model`: --optimizer Adam --optimizer.lr 1e-3.",
    ),
    "data": ("data", "Arguments of the data module are options: --data DigitsDataModule --data.batch_size 32."),
    "trainer": ("trainer", "These are arguments of Lightning's Trainer, such as epochs, devices and callbacks."),
}
_HELP = {
    "config": "File of a config, or its name in `lit-sparse configs`; later ones change earlier ones.",
    "seed_everything": "Seed of all random numbers, or true for a random seed.",
    "model": "Class of the model; `lit-sparse list models` lists them. A config may be given in its place.",
    "data": "Class of the data module; `lit-sparse list data` lists them. A config may be given in its place.",
    "ckpt_path": "Path or URL of a checkpoint, or `best` or `last` for one of the newest run of the config.",
}


def plain(text: str) -> str:
    """Return the text of a docstring without roles, links and code quotes.

    Example:
        >>> plain("A :class:`~a.Part`, not ``x``; see `notes <https://a.org>`_.")
        'A Part, not x; see notes.'
    """
    text = re.sub(r":\w+:`(?:[^`<]*<|~[\w.]*\.)?([^`>]*)>?`", r"\1", text)
    return re.sub(r"`([^`<]*) <[^`]*>`_", r"\1", text).replace("``", "")


def grouped(groups: Sequence[Group], actions: Iterable[Action]) -> list[Group]:
    """Return the groups of a command's options in the order of its help, with headings.

    Args:
        groups: groups of a parser.
        actions: options of the parser; some of them get a shorter help.
    """
    for action in actions:
        action.help = _HELP.get(action.dest, action.help)
    named = [(group, action.dest.split(".")[0]) for group in groups for action in group._group_actions]  # also `model.help`
    found = {name: group for group, name in named if name in _GROUPS}
    for name, group in found.items():
        group.title, group.description = _GROUPS[name]
    ordered = [found[name] for name in _GROUPS if name in found]
    return ordered + [group for group in groups if group not in ordered]
