"""A file is replaced whole or not at all, with the mode that was asked for."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from robust_run.atomic_file import write_file


def test_what_is_there_is_replaced_and_no_draft_stays(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for data in (b"first", b"second", b""):
        write_file(str(path), data, durable=data == b"second")
        assert path.read_bytes() == data
        assert os.listdir(tmp_path) == ["file"]


def test_a_secret_is_never_readable_by_others_not_even_in_a_draft_that_lay_there(tmp_path: Path) -> None:
    path, draft = tmp_path / "secret", tmp_path / "draft"
    draft.touch(0o666)
    write_file(str(path), b"secret", draft=str(draft), mode=0o600)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["secret"]


def test_a_link_that_lies_there_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"theirs")
    (tmp_path / "draft").symlink_to(other)
    write_file(str(tmp_path / "file"), b"ours", draft=str(tmp_path / "draft"))
    assert other.read_bytes() == b"theirs"


def test_what_cannot_be_written_leaves_the_old_one_and_no_draft(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_file(str(tmp_path / "folder"), b"data")
    assert os.listdir(tmp_path) == ["folder"]
    with pytest.raises(FileNotFoundError):
        write_file(str(tmp_path / "none" / "file"), b"data")


def test_what_is_no_regular_file_is_left_as_it_is(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for path in (pipe, link):
        with pytest.raises(FileExistsError, match="no regular file"):
            write_file(str(path), b"data")
    assert sorted(os.listdir(tmp_path)) == ["link", "pipe"]
    assert stat.S_ISFIFO(pipe.stat().st_mode) and link.is_symlink()
