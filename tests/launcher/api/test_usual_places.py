"""Where runs are looked for: here, and where `robust-run` puts them if it cannot write here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from robust_run.errors import PlatformError
from robust_run.launcher.agent.workers.this_machine import RealFiles
from robust_run.launcher.operator.reading.runs import find_run, is_ours, looked_in, runs_folder


class ReadOnly(RealFiles):
    """A machine on which one folder cannot be written."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = str(folder)

    def access(self, path: str, mode: int) -> bool:
        return path != self._folder and super().access(path, mode)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder."""
    path = tmp_path / "here"
    path.mkdir()
    monkeypatch.chdir(path)
    return path


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"TMPDIR": str(tmp_path / "tmp"), "USER": "ann"}


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """The place of runs that cannot be kept in the working folder."""
    path = tmp_path / "tmp" / "ann" / "robust-runs"
    path.mkdir(parents=True)
    return path


def test_in_a_folder_that_cannot_be_written_runs_are_where_they_were_put(
    here: Path, env: dict[str, str], elsewhere: Path
) -> None:
    (elsewhere / "run").mkdir()
    (elsewhere / "run" / "journal.jsonl").touch()
    files = ReadOnly(here)
    assert runs_folder("", env, files) == str(elsewhere)
    assert find_run("", "", env, files) == find_run("run", "", env, files) == str(elsewhere / "run")


def test_in_any_other_folder_they_are_not(here: Path, env: dict[str, str], elsewhere: Path) -> None:
    assert runs_folder("", env) == str(here / "robust-runs")
    assert looked_in("", env) == repr(str(here / "robust-runs"))
    (here / "robust-runs").mkdir()
    assert runs_folder("", env, ReadOnly(here)) == str(here / "robust-runs")
    assert runs_folder("x", env, ReadOnly(here)) == str(here / "x")
    assert elsewhere.exists()


@pytest.mark.parametrize("run", ["", "run"])
def test_where_neither_has_a_run_both_are_named(here: Path, env: dict[str, str], run: str) -> None:
    with pytest.raises(PlatformError) as caught:
        find_run(run, "", env, ReadOnly(here))
    assert f"in '{here}/robust-runs' or '{env['TMPDIR']}/ann/robust-runs'; name" in str(caught.value)


@pytest.mark.parametrize("link", ["ann", "ann/robust-runs"])
def test_a_link_is_not_followed(here: Path, env: dict[str, str], tmp_path: Path, link: str) -> None:
    (tmp_path / "theirs" / "robust-runs").mkdir(parents=True)
    path = tmp_path / "tmp" / link
    path.parent.mkdir(parents=True)
    path.symlink_to(tmp_path / "theirs" / ("robust-runs" if "/" in link else ""))
    assert runs_folder("", env, ReadOnly(here)) == str(here / "robust-runs")
    assert "(which is not this user's and is left alone)" in looked_in("", env, ReadOnly(here))


def test_nor_is_what_belongs_to_another(elsewhere: Path) -> None:
    assert is_ours(str(elsewhere))
    assert not is_ours(str(elsewhere), user=os.geteuid() + 1)
    assert not is_ours(str(elsewhere / "none"))
