"""What has become of an installation since a process started."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from robust_run.installation import Installation, ended_by, mark, replaced


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "site-packages" / "robust_run"
    install(made, "1.2.3")
    return made


def install(folder: Path, version: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / "version.py.new"
    new.write_text(f'"""The version."""\n\n__version__ = "{version}"\n')
    new.replace(folder / "version.py")


def test_one_that_is_as_it_was_has_not_changed(folder: Path) -> None:
    assert Installation(str(folder), "1.2.3").change() == ""


def test_a_newer_version_in_its_place_is_named(folder: Path) -> None:
    here = Installation(str(folder), "1.2.3")
    install(folder, "1.3.0")
    assert here.change() == f"robust-run 1.2.3 was replaced by 1.3.0 in {folder.parent}"


def test_the_same_version_installed_anew_is_other_files(folder: Path) -> None:
    here = Installation(str(folder), "1.2.3")
    install(folder, "1.2.3")
    assert here.change() == f"robust-run 1.2.3 was installed anew in {folder.parent}"


def test_one_that_is_gone_and_comes_back_is_as_it_was(folder: Path) -> None:
    here = Installation(str(folder), "1.2.3")
    away = folder.with_name("away")
    folder.rename(away)
    assert here.change() == f"robust-run 1.2.3 is not in {folder.parent} any more"
    away.rename(folder)
    assert here.change() == ""


def test_what_never_lay_in_a_folder_cannot_change(tmp_path: Path) -> None:
    assert Installation(str(tmp_path / "archive.zip" / "robust_run"), "1.2.3").change() == ""


def test_the_end_of_a_job_names_what_changed_and_what_to_do(folder: Path) -> None:
    here = Installation(str(folder), "1.2.3")
    shutil.rmtree(folder)
    said = ended_by(ModuleNotFoundError("No module named 'robust_run.judge'"), here.change())
    assert "\n" not in said
    assert said.startswith(f"robust-run 1.2.3 is not in {folder.parent} any more since this job was started")
    assert "No module named 'robust_run.judge'" in said
    assert "--resume RUN_DIR" in said


def test_files_count_as_replaced_where_another_lies_in_their_place_not_where_they_cannot_be_seen(folder: Path) -> None:
    first, second = folder / "version.py", folder / "second.py"
    second.touch()
    marks = {str(each): seen for each in (first, second) if (seen := mark(str(each)))}
    assert replaced(marks) == ""
    second.unlink()
    assert replaced(marks) == ""
    install(folder, "9")
    assert replaced(marks) == str(first)
