"""Configs by name: three spellings are equal, a file on disk comes first, and a name never leads out of the configs."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from lit_sparse.cli import build_cli, main
from lit_sparse.errors import ConfigurationError
from lit_sparse.runs.config_files import FOLDER, config_names, find_config, first_line
from lit_sparse.studies.plan.load import load_study
from lit_sparse.studies.plan.study import Cell, Study
from tests.conftest import CONFIGS, ROOT

SPELLINGS = ("ssvae/digits", "ssvae/digits.yaml", "configs/ssvae/digits.yaml", "configs/ssvae/digits", "./ssvae/digits")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def test_the_top_level_folder_is_a_link_to_the_packages() -> None:
    assert FOLDER == CONFIGS
    link = ROOT / "configs"
    assert link.is_symlink() and not link.readlink().is_absolute()
    assert link.resolve() == CONFIGS


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_is_the_packages_config(name: str) -> None:
    assert find_config(name) == CONFIGS / "ssvae" / "digits.yaml"


@pytest.mark.parametrize("name", SPELLINGS[:4])
def test_a_copy_in_the_current_folder_comes_first(name: str) -> None:
    copy = Path("configs/ssvae/digits.yaml")
    copy.parent.mkdir(parents=True)
    copy.write_text("own: 1\n")
    assert find_config(name) == copy
    assert find_config(name, folder=None) == CONFIGS / "ssvae" / "digits.yaml"


@pytest.mark.parametrize("name", ["ssvae/digits", "ssvae/digits.yaml"])
def test_a_file_at_the_path_itself_comes_before_that(name: str) -> None:
    for path in (Path("configs/ssvae/digits.yaml"), Path("ssvae/digits.yaml")):
        path.parent.mkdir(parents=True)
        path.touch()
    assert find_config(name) == Path("ssvae/digits.yaml")


def test_all_names_are_found_and_described() -> None:
    names = config_names()
    assert {path.relative_to(CONFIGS) for path in CONFIGS.rglob("*.yaml")} == {Path(f"{name}.yaml") for name in names}
    for name in names:
        assert find_config(name) == CONFIGS / f"{name}.yaml"
        assert f"# {first_line(find_config(name))}" == (CONFIGS / f"{name}.yaml").read_text().splitlines()[0]


@pytest.mark.parametrize(
    "name",
    [
        "../cli/app.py",
        "configs/../version.py",
        "ssvae/../../version.py",
        "../configs/ssvae/digits.yaml",
        "../ssvae/digits",
        "studies/../../version.py",
        "/ssvae/digits",
        "ssvae",
        "configs",
        "..",
        "",
        "a\0b",
        "a" * 5000,
    ],
)
def test_a_name_never_leads_out_of_the_configs(name: str) -> None:
    with pytest.raises(ConfigurationError, match="Expected a file or the name of a config"):
        find_config(name)


def test_a_name_in_a_study_may_lead_out_of_its_folder_alone() -> None:
    assert find_config("../ssvae/digits", kind="studies") == CONFIGS / "ssvae" / "digits.yaml"
    for name in ("../../version.py", "../../configs/ssvae/digits"):
        with pytest.raises(ConfigurationError, match="Expected a file or the name of a study"):
            find_config(name, kind="studies")


@pytest.mark.parametrize(
    ("name", "kind", "hint"),
    [
        ("ssvae/digit", "", "but got 'ssvae/digit'. Did you mean 'ssvae/digits'? `lit-sparse configs` lists the names."),
        ("configs/ssvea/digits.yaml", "", "Did you mean 'ssvae/digits'?"),
        ("mine/owm.yaml", "", "Did you mean 'own.yaml'?"),
        ("ssva", "studies", "the name of a study but got 'ssva'. Did you mean 'ssvae'? Choose from: "),
    ],
)
def test_unknown_names_get_a_hint(name: str, kind: str, hint: str) -> None:
    Path("mine").mkdir()
    Path("mine/own.yaml").touch()
    with pytest.raises(ConfigurationError) as error:
        find_config(name, kind=kind)
    assert hint in str(error.value)


@pytest.mark.cases(quick=4)
@pytest.mark.parametrize("spelled", [("-c", "{}"), ("--config", "{}"), ("-c={}",), ("--config={}",)])
@pytest.mark.parametrize("name", SPELLINGS[:3])
def test_commands_take_names_and_their_runs_are_named_alike(spelled: tuple[str, ...], name: str) -> None:
    cli = build_cli(["fit", *(word.format(name) for word in spelled), "--trainer.logger=false"])
    assert cli.config["fit"]["name"] == "ssvae/digits"
    assert type(cli.model).__name__ == "SemiSupervisedVAE"


def test_overlays_have_names_and_content_is_still_content() -> None:
    cli = build_cli(["fit", "-c", "ssvae/digits", "-c", "mapping/softmax", "-c", "{trainer: {max_epochs: 3}}"])
    assert type(cli.model.mapping).__name__ == "Softmax"
    assert cli.trainer.max_epochs == 3
    assert cli.config["fit"]["name"] == "ssvae/digits"


@pytest.mark.parametrize("command", [["fit"], ["test", "--ckpt_path", "best"], ["sweep", "--metric", "val/nelbo", "-s", "x"]])
def test_all_commands_explain_unknown_names(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "-c", "ssvae/digit"]) == 2
    assert "Did you mean 'ssvae/digits'?" in capsys.readouterr().err


def settings_of(path: Path) -> object:
    study = load_study(path).scheduled(None)
    return {name: study.settings(name, []) for name in study.cells}


@pytest.mark.parametrize("place", ["ssvae.yaml", "configs/studies/ssvae.yaml"])
def test_a_copied_study_finds_the_packages_configs(place: str) -> None:
    copy = Path(place)
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text((CONFIGS / "studies" / "ssvae.yaml").read_text())
    assert settings_of(copy) == settings_of(CONFIGS / "studies" / "ssvae.yaml")


def test_configs_of_a_study_are_relative_to_it_first() -> None:
    Path("mine/ssvae").mkdir(parents=True)
    Path("mine/ssvae/digits.yaml").write_text("own: 1\n")
    study = Study(cells={"a": Cell(config="ssvae/digits.yaml"), "b": Cell(config="ssvae/mnist")}, path=Path("mine/study.yaml"))
    first, second = (study.change_of(name, None).config for name in ("a", "b"))
    assert first is not None and yaml.safe_load(Path(first).read_text()) == {"own": 1}
    assert second == str(CONFIGS / "ssvae" / "mnist.yaml")
