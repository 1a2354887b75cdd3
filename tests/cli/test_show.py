"""The commands ``configs`` and ``list``."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

from lit_sparse.cli import main
from lit_sparse.cli.show_parts import KINDS, _first_sentence
from lit_sparse.testing import concrete_subclasses
from tests.conftest import CONFIGS

HEAVY = {"torch", "pytorch_lightning", "numpy", "jsonargparse", "yaml"}


def printed(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(list(args)) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(list(args)) == 2
    return capsys.readouterr().err


def modules_of(*args: str) -> set[str]:
    code = f"import sys; from lit_sparse.cli import main; main({list(args)}); print('loaded', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return {name.split(".")[0] for name in done.stdout.splitlines()[-1].split()}


@pytest.mark.parametrize("command", [["configs"], ["list", "configs"]])
def test_all_configs_are_listed_in_their_folders(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    *blocks, hint = printed(capsys, *command).rstrip().split("\n\n")
    assert "--copy" in hint
    found = {}
    for block in blocks:
        heading, *lines = block.splitlines()
        for line in lines:
            name, text = line.split(maxsplit=1)
            assert name.rpartition("/")[0] == heading.removesuffix(":")
            found[name] = text
    assert {CONFIGS / f"{name}.yaml" for name in found} == set(CONFIGS.rglob("*.yaml"))
    assert all(f"# {text}\n" in (CONFIGS / f"{name}.yaml").read_text() for name, text in found.items())


def test_a_config_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("ssvae/digits", "configs/ssvae/digits.yaml"):
        assert printed(capsys, "configs", name) == (CONFIGS / "ssvae" / "digits.yaml").read_text()
    assert "Did you mean 'ssvae/digits'?" in refused(capsys, "configs", "ssvae/digts")


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (["ssvae/digits", "--copy"], "configs/ssvae/digits.yaml"),
        (["ssvae/digits", "--copy", "new/own.yaml"], "new/own.yaml"),
        (["ssvae/digits", "--copy", "."], "digits.yaml"),
        (["studies/ssvae", "--copy"], "configs/studies/ssvae.yaml"),
    ],
)
def test_a_config_is_copied_once(words: list[str], path: str, capsys: pytest.CaptureFixture[str]) -> None:
    told, command = printed(capsys, "configs", *words).splitlines()
    assert told == path
    assert command.endswith(f"study {path}" if "studies" in path else f"fit -c {path}")
    copy = Path(path)
    assert copy.read_text() == (CONFIGS / f"{words[0]}.yaml").read_text()
    copy.write_text("changed: 1\n")
    assert f"Expected to write the new file {path!r} but it exists. Give another path with --copy PATH" in refused(
        capsys, "configs", *words
    )
    assert copy.read_text() == "changed: 1\n"


def test_a_copy_needs_a_name_and_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Expected the name of a config" in refused(capsys, "configs", "--copy")
    Path("file").touch()
    assert "Expected to write the new file 'file/own.yaml' but got: " in refused(
        capsys, "configs", "ssvae/digits", "--copy", "file/own.yaml"
    )


def test_a_copy_that_the_disk_has_no_room_for_leaves_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    resource = pytest.importorskip("resource")
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, former[1]))
    try:
        message = refused(capsys, "configs", "ssvae/digits", "--copy", "own.yaml")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)
    assert "Expected to write the new file 'own.yaml' but got: File too large. " in message
    assert not Path("own.yaml").exists()


@pytest.mark.parametrize("kind", [kind for kind, (_, room, _) in KINDS.items() if room])
def test_every_part_of_a_kind_is_listed(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = dict(line.split(maxsplit=1) for line in printed(capsys, "list", kind).splitlines())
    _, room, path = KINDS[kind]
    classes = concrete_subclasses(pkgutil.resolve_name(path))
    public = importlib.import_module(room).__all__
    assert set(lines) == {part.__name__ for part in classes if part.__name__ in public}
    assert len(lines) > 4
    for part in classes:
        text = " ".join((inspect.getdoc(part) or "").split()).replace("`", "")
        shown = lines.get(part.__name__) or _first_sentence(part)
        assert shown.endswith((".", "!", "?")), shown
        assert ":class:" in text or ":func:" in text or text.startswith(shown)


def test_the_kinds_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "list")
    for kind, (option, _, _) in KINDS.items():
        assert f"  {kind}" in text
        assert option in text
    assert "Did you mean 'risks'?" in refused(capsys, "list", "risk")


@pytest.mark.slow
def test_what_needs_no_model_loads_no_model() -> None:
    for command in (["configs"], ["configs", "ssvae/digits"], ["list"], ["list", "configs"]):
        assert not HEAVY & modules_of(*command), command
    for kind in ("mappings", "structures", "risks", "estimators", "selectors"):
        assert not {"pytorch_lightning", "jsonargparse", "datasets", "matplotlib"} & modules_of("list", kind), kind
