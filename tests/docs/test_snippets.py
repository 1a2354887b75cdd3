"""The code of each page runs, in the page's order and in one folder, and prints what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from lit_sparse.cli import main
from tests.conftest import ROOT

from .pages import DOCS, PAGES, Block, blocks, label

#: Programs that a page may name and that other tests run: of the gate, of the wheel and of the scripts.
ELSEWHERE = (
    "pip",
    "python",
    "apt-get",
    "git",
    "source",
    ".",
    "cd",
    "docker",
    "tensorboard",
    "optuna-dashboard",
    "eval",
    "ruff",
    "mypy",
)
LIMITS = {
    "fit": "--trainer.max_epochs=1 --trainer.check_val_every_n_epoch=1 --trainer.limit_train_batches=2"
    " --trainer.limit_val_batches=2",
    "validate": "--trainer.limit_val_batches=2",
    "test": "--trainer.limit_test_batches=2",
    "predict": "--trainer.limit_predict_batches=2",
}
#: Most how-to guides train for minutes in total and are slow. Those that add a part, and other pages, are in the gate.
SLOW = re.compile("how_to/(?!add_a)")
CASES = [
    pytest.param(page, id=label(page), marks=pytest.mark.slow if SLOW.search(label(page)) else pytest.mark.gate)
    for page in PAGES
    if blocks(page)
]
QUIET = "--trainer.enable_progress_bar=false --trainer.accelerator=cpu"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder, whose modules are forgotten at the end."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def run_python(text: str, module: types.ModuleType, name: str, printed: pytest.CaptureFixture[str]) -> None:
    printed.readouterr()
    exec(compile(text, name, "exec"), module.__dict__)
    output = printed.readouterr().out
    for promised in re.findall(r"^print\(.*\)(?:  |\n)# (.*)$", text, re.MULTILINE):
        assert promised in output


def run_shell(block: Block, request: pytest.FixtureRequest) -> None:
    given = dict(pair.split("=") for pair in block.notes.get("data", "").split())
    if given:
        shared: Path = request.getfixturevalue("shared")
        given = {name: str(shared / "data" / path) for name, path in given.items()}
    for words in block.commands():
        words = [re.sub(r"\b[A-Z]{3,}[A-Z0-9_]*\b", lambda name: given.get(name[0], name[0]), word) for word in words]
        if words[0] == "python" and Path(words[1]).is_file():  # a script of the page
            subprocess.run([sys.executable, *words[1:]], check=True, timeout=250)
            continue
        if words[0] != "lit-sparse":
            assert words[0] in ELSEWHERE, f"{words[0]} is run by no test"
            continue
        arguments = words[1:]
        more = LIMITS.get(arguments[0])
        arguments += [] if more is None else [*more.split(), *QUIET.split()]
        arguments += block.notes.get("options", "").split()
        assert status_of(arguments) == 0, " ".join(arguments)


def status_of(arguments: list[str]) -> int:
    """Run a command; one that only prints, such as `--print_config`, exits."""
    try:
        return main(arguments)
    except SystemExit as stop:
        assert isinstance(stop.code, int)
        return stop.code


@pytest.mark.filterwarnings("ignore::lightning_fabric.utilities.warnings.PossibleUserWarning")
@pytest.mark.filterwarnings("ignore:The number of training batches:UserWarning")
@pytest.mark.filterwarnings("ignore:.*(does not reach its end|left the temperature at):UserWarning")  # after two steps
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of torch.compile
@pytest.mark.parametrize("page", CASES)
def test_the_code_of_a_page_runs(
    page: Path,
    folder: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = "page_" + re.sub(r"\W", "_", page.stem)
    module = types.ModuleType(name)  # classes of a checkpoint are found by their module
    monkeypatch.setitem(sys.modules, name, module)
    for number, block in enumerate(blocks(page)):
        if "not run" in block.notes:
            continue
        if "needs" in block.notes:
            pytest.importorskip(block.notes["needs"], reason="the page needs an extra that is not installed")
        if block.file is not None:
            (folder / block.file).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.file).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            run_python(block.text, module, f"{label(page)}, block {number}", capsys)
        elif block.language == "bash":
            run_shell(block, request)
        elif block.language == "yaml":
            yaml.safe_load(block.text)


def test_code_that_is_not_run_has_a_reason() -> None:
    for page in PAGES:
        for block in blocks(page):
            assert len(block.notes.get("not run", "a reason")) > 5
            assert block.language in {"python", "bash", "yaml", "text", "bibtex", "toml", "json", "csv"}, label(page)


def test_configs_that_are_named_exist() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        short = re.findall(r"-c ([a-z0-9_]+(?:/[a-z0-9_]+)+)(?![\w./<])", text)
        for name in [*re.findall(r"configs/[a-z0-9_/]+\.yaml", text), *(f"configs/{name}.yaml" for name in short)]:
            assert (ROOT / name).is_file(), f"{label(page)}: {name}"


def test_each_source_with_a_number_is_in_the_bibliography() -> None:
    known = set(re.findall(r"(?:eprint|doi) = \{([^}]+)\}", (DOCS / "references.bib").read_text(encoding="utf-8")))
    for path in (ROOT / "lit_sparse").rglob("*.py"):
        for number in re.findall(r"\b(?:arXiv:|doi:)(\d{4}\.\d{4,5}|10\.[^\s,;)]*[^\s,;.)])", path.read_text(encoding="utf-8")):
            assert number in known, f"{path}: {number}"
