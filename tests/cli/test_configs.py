"""Configs that are refused in one message with file and line, before anything is built from them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from jsonargparse import get_loader

from lit_sparse.cli import main
from lit_sparse.cli.configs import MAX_BYTES, MAX_DEPTH, MAX_VALUES, read_config
from lit_sparse.errors import ConfigurationError
from tests.conftest import CONFIGS

DIGITS = (CONFIGS / "ssvae" / "digits.yaml").read_text()


def laughs(levels: int) -> str:
    """Return YAML whose last value stands for 9 ** levels words."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, levels)]
    return "\n".join(lines)


BAD = {
    "utf-16": (DIGITS.encode("utf-16"), "a config in UTF-8 but got byte 0xff at position 0 of"),
    "latin-1": (b"# caf\xe9\n", "a config in UTF-8 but got byte 0xe9 at position 5 of"),
    "binary": (bytes(range(128, 256)), "a config in UTF-8 but got byte 0x80"),
    "nul": (b"a: \0", "control characters are not allowed"),
    "deep": (b"trainer: " + b"[" * 900 + b"]" * 900, f"at most {MAX_DEPTH} levels of nesting but got more in line 1"),
    "deeper": (b"trainer: " + b"[" * 30_000 + b"]" * 30_000, "nesting"),  # from 6.0.4 on, PyYAML refuses it
    "a list in itself": (b"model: &a [*a]", "*a within &a in line 1"),
    "a mapping in itself": (b"trainer: &a\n  max_epochs: *a\n", "*a within &a in line 2"),
    "laughs": (laughs(9).encode(), f"at most {MAX_VALUES:,} values with aliases expanded but got more by line 6"),
    "large": (b"#" * (MAX_BYTES + 1), f"at most {MAX_BYTES:,} bytes"),
    "twice": (b"trainer:\n  max_epochs: 3\n  devices: 1\n  max_epochs: 4\n", "'max_epochs' in line 2 and in line 4"),
    "syntax": (b"trainer:\n  max_epochs: [3\nmodel: x\n", "in line 3, column 6 of"),
    "tag": (b"trainer: !!python/object/apply:os.getcwd []\n", "in line 1, column 10 of"),
    "two documents": (b"a: 1\n---\na: 2\n", "another document"),
    "empty": (b"", "lines of `key: value` but got none"),
    "a list": (b"- a\n- b\n", "lines of `key: value` but got none"),
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


@pytest.mark.cases(quick=3)
@pytest.mark.parametrize("option", ["model", "trainer"])
@pytest.mark.parametrize("kind", ["latin-1", "laughs", "twice", "syntax"])
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
    assert get_loader("yaml")("{a: 1, a: 2}") == {"a": 2}, "parsers of others stay as they are"
