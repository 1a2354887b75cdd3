"""The help of a command has examples first and options in groups, and its short options work."""

from __future__ import annotations

import re

import pytest
import torch

from lit_sparse.cli import build_cli, main
from lit_sparse.runs.config_files import find_config

GROUPS = ["config", "run folder", "checkpoint", "model and optimizer", "data", "trainer"]
#: Option -> heading of its group.
PLACES = {
    "-c": "config",
    "--seed_everything": "config",
    "--output_dir": "run folder",
    "--name": "run folder",
    "--ckpt_path": "checkpoint",
    "--model CONFIG": "model and optimizer",
    "--data CONFIG": "data",
    "--trainer.max_epochs": "trainer",
}


def help_of(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", ["fit", "validate", "test", "predict"])
def test_examples_come_first_and_options_in_groups(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(command, capsys)
    usage, examples, *_ = text.split("\n\n")
    assert usage.startswith(f"usage: lit-sparse {command} -c CONFIG")
    assert examples.startswith("examples:\n")
    commands = re.findall(r"^  (lit-sparse .*)$", examples, re.MULTILINE)
    assert 3 <= len(commands) <= 4
    assert all(line.startswith(f"lit-sparse {command} -c ") for line in commands)
    for name in re.findall(r"-c (\S+)", examples):
        assert name == "RUN/config.yaml" or find_config(name, folder=None)
    headings = list(re.finditer(r"^([a-z][\w ]+):$", text, re.MULTILINE))
    assert [heading[1] for heading in headings][1:] == GROUPS
    for option, group in PLACES.items():
        place = text.index(f"\n  {option}")
        assert [heading[1] for heading in headings if heading.start() < place][-1] == group


def test_the_commands_of_the_help_are_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    commands = re.findall(r"^  lit-sparse (fit .*)$", help_of("fit", capsys), re.MULTILINE)
    found = [build_cli(command.split()) for command in commands if "ckpt_path" not in command]
    assert [type(cli.model.estimator).__name__ for cli in found] == ["Marginalize", "ScoreFunction", "Marginalize"]
    assert type(found[2].model.mapping).__name__ == "Softmax"
    assert found[2].trainer.max_epochs == 5


def test_options_need_no_init_args() -> None:
    cli = build_cli(
        [
            *("fit", "-c", "ssvae/digits", "--trainer.max_epochs", "2"),
            *("--model.mapping", "Entmax", "--model.mapping.alpha", "1.3"),
            *("--model.estimator", "SumAndSample", "--model.estimator.k", "2"),
            *("--model.optimizer", "SGD", "--model.optimizer.lr", "0.25"),
            *("--data.batch_size", "30", "--data.labelled", "0.5"),
        ]
    )
    assert (type(cli.model.mapping).__name__, cli.model.mapping.alpha) == ("Entmax", 1.3)
    assert (type(cli.model.estimator).__name__, cli.model.estimator.k) == ("SumAndSample", 2)
    optimizer = cli.model.configure_optimizers()
    assert isinstance(optimizer, torch.optim.SGD)
    assert optimizer.param_groups[0]["lr"] == 0.25
    assert cli.datamodule.batch_size == 30


def test_the_help_of_a_class_has_its_own_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["fit", "-c", "ssvae/digits", "--model.help", "SignalingGame"])
    text = capsys.readouterr().out
    assert "--model.receiver" in text
    assert "examples:" not in text
    assert not set(GROUPS) & set(re.findall(r"^([a-z][\w ]+):$", text, re.MULTILINE))


def test_the_help_of_a_class_has_ranges(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["fit", "-c", "ssvae/digits", "--model.mapping.help", "TopKEntmax"])
    text = " ".join(capsys.readouterr().out.split())
    assert "(required, type: int, range: >= 1)" in text
    assert "(type: float, default: 1.5, range: (1, 100])" in text
    assert "(type: float, default: 1.0, range: > 0)" in text
    assert "(type: int, default: -1)" in text
