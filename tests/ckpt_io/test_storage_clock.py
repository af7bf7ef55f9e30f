"""Leftovers are told by the clock of storage where this node's own is ahead of it: a save that is under way is none."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from robust_run.ckpt_io.catalog import prune
from robust_run.ckpt_io.storage_clock import earlier_s, storage_s
from robust_run.store.errors import StoreError
from robust_run.store.opening import open_store
from robust_run.store.types import Entry

DAY_S = 86400.0


class Behind:
    """A store whose clock is some days behind this node's."""

    def __init__(self, url: str, days: float) -> None:
        self._store, self._days = open_store(url), days

    def list(self, path: str = "") -> list[Entry]:
        return [
            msgspec.structs.replace(each, modified_s=each.modified_s - self._days * DAY_S)
            for each in self._store.list(path)
            if each.modified_s is not None
        ]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def unfinished(root: Path, number: int, age_s: float = 0.0) -> Path:
    """What a save has written so far, or left when it died."""
    folder = root / f"step-{number}"
    part = folder / f"parts-{number:032x}"
    part.mkdir(parents=True)
    (part / "00000").write_bytes(b"x")
    for each in (part / "00000", part):
        os.utime(each, (time.time() - age_s,) * 2)
    return folder


@pytest.mark.parametrize("days", [0.0, 2.0, -2.0])
def test_storage_is_asked_and_nothing_is_left_there(tmp_path: Path, days: float) -> None:
    def stores(url: str) -> Any:
        return Behind(url, days)

    said_s = storage_s(str(tmp_path), stores)
    assert said_s is not None and abs(said_s - (time.time() - days * DAY_S)) < 60.0
    assert earlier_s(str(tmp_path), stores) <= time.time()
    assert list(tmp_path.iterdir()) == []


def test_where_nothing_can_be_written_the_own_clock_counts(tmp_path: Path) -> None:
    assert storage_s(f"{tmp_path}/nothing", open_store) is None
    assert list(tmp_path.iterdir()) == []

    class ReadOnly(Behind):
        def write_all(self, path: str, data: bytes, **_: Any) -> None:
            raise StoreError(str(tmp_path), path, "it can only be read")

    assert storage_s(str(tmp_path), lambda url: ReadOnly(url, 0.0)) is None


def test_a_node_whose_clock_is_ahead_removes_no_save_that_is_under_way(tmp_path: Path) -> None:
    saving, died = unfinished(tmp_path, 1), unfinished(tmp_path, 2, age_s=2 * DAY_S)

    def stores(url: str) -> Any:
        return Behind(url, 1.5)

    assert {each.name for each in prune(str(tmp_path), dry_run=True, stores=stores)} == {saving.name, died.name}
    assert [each.name for each in prune(str(tmp_path), stores=stores)] == [died.name]
    assert saving.exists() and not died.exists()
