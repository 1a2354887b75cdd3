"""Writing into folders whose content comes from elsewhere."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from lit_sparse.errors import CheckpointError, ConfigurationError, refusal_of_system
from lit_sparse.ground.files import open_to_append, replaced
from lit_sparse.runs.folders import claim_folder, differences, find_checkpoint, numbered
from lit_sparse.runs.status import check_plain


def test_text_is_appended_to_plain_files(tmp_path: Path) -> None:
    for line in ("a", "b"):
        with open_to_append(tmp_path / "log") as file:
            file.write(f"{line}\n")
    assert (tmp_path / "log").read_text() == "a\nb\n"


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "device", "folder"])
def test_nothing_is_appended_through_links_pipes_and_devices(kind: str, tmp_path: Path) -> None:
    path, victim = tmp_path / "log", tmp_path / "victim"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/null")
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(victim)
        if kind == "link":
            victim.write_text("precious")
    with pytest.raises(ConfigurationError, match="plain file"):
        open_to_append(path)
    assert (victim.read_text() == "precious") if kind == "link" else not victim.exists()


def test_a_file_is_replaced_without_following_a_link(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "table.md"
    victim.write_text("precious")
    path.symlink_to(victim)
    (tmp_path / ".table.md.part").symlink_to(victim)
    with replaced(path, "w") as file:
        file.write("new")
    assert path.read_text() == "new"
    assert victim.read_text() == "precious"


def test_a_folder_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    with pytest.raises(ConfigurationError, match="but it is a folder"), replaced(tmp_path / "log", "w"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


@pytest.mark.parametrize("hidden", [False, True])
def test_a_full_disk_is_told_with_the_file(hidden: bool, tmp_path: Path) -> None:
    """The system names no file, and torch puts an error of its own in place of the system's."""
    full = OSError(errno.ENOSPC, "full")
    with pytest.raises(OSError, match="full") as caught, replaced(tmp_path / "a", "w"):
        if hidden:
            raise RuntimeError("unexpected position") from full
        raise full
    text = f"Expected to use '{tmp_path / 'a'}' but got: full. Choose another place, or free space."
    assert refusal_of_system(caught.value) == text
    assert not [*tmp_path.iterdir()]


def test_numbered_folders_have_names_of_decimal_digits(tmp_path: Path) -> None:
    for name in ("10", "9", "²", "x", "1.0", "00", "010", "\u0663", "1_0", "9" * 243):
        (tmp_path / name).mkdir()
    (tmp_path / "11").symlink_to(tmp_path / "x")  # the newest run would be elsewhere
    assert [path.name for path in numbered(tmp_path)] == ["9", "10"]


def test_a_file_with_another_name_is_not_appended_to(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "log").hardlink_to(tmp_path / "victim")
    with pytest.raises(ConfigurationError, match="with one name"):
        open_to_append(tmp_path / "log")
    with pytest.raises(ConfigurationError, match="hard link"):
        check_plain(tmp_path)


def test_a_long_name_is_that_of_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no such file"):
        find_checkpoint("a" * 5000, tmp_path)


def test_a_command_makes_no_folder_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "select").symlink_to(tmp_path / "other")
    with pytest.raises(ConfigurationError, match="to be a folder but it is a link"):
        claim_folder(tmp_path, "select", first_process=True)


def test_an_absent_key_equals_none_also_in_lists() -> None:
    callback = {"class_path": "EarlyStopping", "init_args": {"patience": 3}}
    whole = {"class_path": "EarlyStopping", "init_args": {"patience": 3, "stopping_threshold": None}}
    other = {"class_path": "EarlyStopping", "init_args": {"patience": 4}}
    assert differences({"callbacks": [whole]}, {"callbacks": [callback]}) == []
    assert differences({"callbacks": [whole]}, {"callbacks": [other]}) == [("callbacks", [whole], [other])]
    assert differences({"callbacks": [whole]}, {"callbacks": [callback, callback]})
