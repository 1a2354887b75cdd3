"""Configs that are refused in one message with file and line, before anything is built from them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from threading import Thread

import pytest
import yaml
from jsonargparse import get_loader

from lit_sparse.cli import build_cli, main
from lit_sparse.cli.configs import Given, read_config
from lit_sparse.errors import ConfigurationError
from tests.conftest import CONFIGS

DIGITS = (CONFIGS / "ssvae" / "digits.yaml").read_text()


BAD = {
    "utf-16": (DIGITS.encode("utf-16"), "a config in UTF-8 but got byte 0xff at position 0 of"),
    "latin-1": (b"# caf\xe9\n", "a config in UTF-8 but got byte 0xe9 at position 5 of"),
    "binary": (bytes(range(128, 256)), "a config in UTF-8 but got byte 0x80"),
    "nul": (b"a: \0", "characters are not allowed"),
    "deeper": (b"trainer: " + b"[" * 30_000 + b"]" * 30_000, "nest"),  # from 6.0.4 on, PyYAML refuses it
    "a list in itself": (b"model: &a [*a]", "contains itself through an alias"),
    "a mapping in itself": (b"trainer: &a\n  max_epochs: *a\n", "contains itself through an alias"),
    "twice": (b"trainer:\n  max_epochs: 3\n  devices: 1\n  max_epochs: 4\n", "'max_epochs' in line 2 and in line 4"),
    "twice in a line": (b"trainer: {devices: 1, devices: 2}\n", "'devices' in line 1 and in line 1"),
    "twice in an alias": (b"a: &a {b: 1}\nc: [*a, *a, {d: 1, d: 2}]\n", "'d' in line 2 and in line 2"),
    "syntax": (b"trainer:\n  max_epochs: [3\nmodel: x\n", "in line 3, column 6 of"),
    "tag": (b"trainer: !!python/object/apply:os.getcwd []\n", "in line 1, column 10 of"),
    "two documents": (b"a: 1\n---\na: 2\n", "another document"),
    "empty": (b"", "lines of `key: value` but got none"),
    "a list": (b"- a\n- b\n", "lines of `key: value` but got none"),
    "no options": (b"trainer: [1]\n", "options of the trainer but got [1]"),
}


@pytest.mark.cases(quick=8)
@pytest.mark.parametrize("content", BAD.values(), ids=[*BAD])
def test_a_bad_config_is_refused_with_its_name(
    content: tuple[bytes, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.yaml").write_bytes(content[0])
    with pytest.raises(ConfigurationError) as caught:
        read_config("bad.yaml")
    assert content[1] in str(caught.value)
    assert "'bad.yaml'" in str(caught.value)
    assert main(["fit", "-c", "bad.yaml"]) == 2
    error = capsys.readouterr().err
    assert error == f"lit-sparse: error: {caught.value}\n"


def test_what_only_the_parser_cannot_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.yaml").write_text("\ufeff\ufeffseed_everything: 0\nmodel: x\n", encoding="utf-8")  # two byte-order marks
    assert main(["fit", "-c", "bad.yaml"]) == 2
    assert "lit-sparse: error: Expected YAML but got, in line" in capsys.readouterr().err


@pytest.mark.cases(quick=3)
@pytest.mark.parametrize("option", ["model", "trainer"])
@pytest.mark.parametrize("kind", ["latin-1", "twice", "syntax"])
def test_configs_that_an_option_names_are_checked_too(
    option: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.yaml").write_bytes(BAD[kind][0])
    assert main(["fit", "-c", str(CONFIGS / "ssvae" / "digits.yaml"), f"--{option}", "bad.yaml"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "Expected" in error
    assert "Union" not in error
    assert ("line" in error) == (kind != "latin-1")


def test_good_configs_are_read_as_before(tmp_path: Path) -> None:
    path = tmp_path / "good.yaml"
    path.write_text("a: &a {x: 1, y: [1e-3, 2]}\nb: *a\nc: {<<: *a, x: 2}\n", encoding="utf-8-sig")
    assert yaml.safe_load(read_config(path))["c"] == {"x": 2, "y": ["1e-3", 2]}
    for config in CONFIGS.rglob("*.yaml"):
        assert read_config(config) == config.read_text()
    path.write_text(
        "a: " + "[" * 60 + "]" * 60 + f"\nb: &b [{', '.join(['x'] * 1000)}]\nc: [{', '.join(['*b'] * 200)}]\n#{'x' * 2**20}"
    )
    assert len(yaml.safe_load(read_config(path))["c"]) == 200, "the user's own config may be as large as they like"
    assert get_loader("yaml")("{a: 1, a: 2}") == {"a": 2}, "parsers of others stay as they are"


def test_a_config_of_holes_does_not_fill_the_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "some.yaml"
    path.touch()
    os.truncate(path, 2**40)
    assert main(["fit", "-c", str(path)]) == 2
    assert "holes, which take no space on the disk" in capsys.readouterr().err


def test_a_config_from_a_pipe_is_read_once(tmp_path: Path) -> None:
    os.mkfifo(path := tmp_path / "pipe")
    Thread(target=path.write_text, args=(f"{DIGITS}\ntrust: torch.linalg.norm\n",)).start()
    cli = build_cli(["fit", "-c", str(path), "--trainer.fast_dev_run=true"])
    assert (type(cli.model).__name__, cli.config["fit"]["trust"]) == ("SemiSupervisedVAE", ["torch.linalg.norm"])


def test_a_checkpoint_may_name_what_models_name_and_use_modules_of_all_configs(tmp_path: Path) -> None:
    (tmp_path / "part.yaml").write_text("class_path: in_a_file.Part\n", encoding="utf-8")
    config = json.dumps(
        {"model": {"a": "of_model.f", "b": "c: in.text\nd: in.line"}, "data": "of_data.Data", "trust": ["by.config", "by.list"]}
    )
    options = ["--model.x", "{class_path: of_option.Mine}", "--data.y=of_data.option", "--trust=by.option"]
    given = Given.of(["-c", config, *options, f"--model.z={tmp_path / 'part.yaml'}"])
    assert given.trusted == ["by.config", "by.list", "by.option"]
    assert {"of_model.f", "in.text", "in.line", "of_option.Mine", "in_a_file.Part", "of_data.", *given.trusted} <= given.names
    assert not {"of_data.Data", "of_data.option"} & given.names
