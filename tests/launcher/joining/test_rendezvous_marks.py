"""Marks on a node's disk: kept over a power loss, private, and not fooled by what others put there."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from robust_run.errors import PlatformError
from robust_run.launcher.records.rendezvous_marks import (
    MOST_MARK_BYTES,
    RendezvousMark,
    marks_folder,
    read_marks,
    remove_mark,
    write_mark,
)

KEY, OTHER = "a" * 32, "b" * 32
MARK = RendezvousMark(key=KEY, agent="0" * 16, run_id="x", log_dir="/runs", addresses=("n0:1", "n1:2"))


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return marks_folder({"XDG_STATE_HOME": str(tmp_path / "state")}, "node-0")


def path(folder: str, mark: RendezvousMark = MARK) -> Path:
    return Path(folder) / f"{mark.key}.{mark.agent}.json"


def test_a_mark_is_found_again_and_is_the_users_alone(folder: str) -> None:
    assert read_marks(folder, KEY, "/runs") == []
    write_mark(folder, MARK)
    assert read_marks(folder, KEY, "/runs") == [MARK]
    assert path(folder).stat().st_mode & 0o777 == 0o600
    assert Path(folder).stat().st_mode & 0o777 == 0o700
    remove_mark(folder, MARK)
    remove_mark(folder, MARK)
    assert os.listdir(folder) == []


def test_marks_of_other_jobs_and_of_other_log_folders_are_none(folder: str) -> None:
    write_mark(folder, msgspec.structs.replace(MARK, key=OTHER))
    write_mark(folder, msgspec.structs.replace(MARK, log_dir="/other", agent="1" * 16))
    assert read_marks(folder, KEY, "/runs") == []


def test_the_newest_mark_is_the_last(folder: str) -> None:
    newer = msgspec.structs.replace(MARK, agent="1" * 16, run_id="y")
    write_mark(folder, newer)
    write_mark(folder, MARK)
    os.utime(path(folder, MARK), (1, 1))
    assert [mark.run_id for mark in read_marks(folder, KEY, "/runs")] == ["x", "y"]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"schema": 99, "key": "%s", "agent": "0", "run_id": "x"}', b"x" * (MOST_MARK_BYTES + 1)],
)
def test_what_is_damaged_newer_or_too_large_is_no_mark(folder: str, content: bytes) -> None:
    write_mark(folder, MARK)
    path(folder).write_bytes(content)
    assert read_marks(folder, KEY, "/runs") == []


def test_links_and_pipes_in_place_of_a_mark_are_not_followed_and_hold_nobody_up(folder: str, tmp_path: Path) -> None:
    write_mark(folder, MARK)
    elsewhere = tmp_path / "planted"
    path(folder).rename(elsewhere)
    path(folder).symlink_to(elsewhere)
    os.mkfifo(path(folder, msgspec.structs.replace(MARK, agent="1" * 16)))
    assert read_marks(folder, KEY, "/runs") == []


def test_a_folder_that_others_can_write_is_not_used(folder: str) -> None:
    write_mark(folder, MARK)
    os.chmod(folder, 0o777)
    assert read_marks(folder, KEY, "/runs") == []
    with pytest.raises(PlatformError, match=r"cannot note in .* that this node has a part in run x"):
        write_mark(folder, MARK)


def test_a_link_in_place_of_the_folder_is_not_used(folder: str, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    os.makedirs(os.path.dirname(folder), mode=0o700)
    os.symlink(elsewhere, folder)
    with pytest.raises(PlatformError):
        write_mark(folder, MARK)
    assert os.listdir(elsewhere) == []


def test_without_a_folder_of_state_it_is_below_var_tmp_and_a_host_name_leads_nowhere_else() -> None:
    assert marks_folder({}, "n0") == f"/var/tmp/robust-run-{os.geteuid()}/rendezvous/n0"
    assert marks_folder({"XDG_STATE_HOME": "relative"}, "../x").endswith("/rendezvous/_x")
