"""The list of evicted nodes: written by jobs, edited by people, and never misread in silence."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from robust_run.errors import PlatformError, UserError
from robust_run.launcher.core.state import Eviction
from robust_run.launcher.records.evictions import LARGEST_BYTES, forget, load, remember

XID = Eviction(reason="Xid 79 \u2192 fell off the bus\nagain", by="operator", at_unix_s=1767225600.5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "evicted.jsonl"


def test_no_list_is_an_empty_one(path: Path) -> None:
    assert load(str(path)) == {}
    assert not path.exists()


def test_what_is_remembered_is_known_to_the_next_job(path: Path) -> None:
    remember(str(path), "gpu-17", XID)
    remember(str(path), "gpu-18", Eviction(reason="", by="rule"))
    assert load(str(path)) == {"gpu-17": XID, "gpu-18": Eviction(reason="", by="rule")}


def test_a_node_comes_and_goes(path: Path) -> None:
    remember(str(path), "gpu-17", XID)
    forget(str(path), "gpu-17", by="ann", at_unix_s=2.0)
    assert load(str(path)) == {}
    remember(str(path), "gpu-17", Eviction(reason="again", by="ann"))
    assert load(str(path))["gpu-17"].reason == "again"


def test_people_write_names_reasons_and_comments(path: Path) -> None:
    path.write_text("# rack 3\n\n  gpu-1\ngpu-2  waits for # 2 cables\ngpu-3\tbroken\r\n fd00::1\n")
    assert load(str(path)) == {
        "gpu-1": Eviction(reason="", by=""),
        "gpu-2": Eviction(reason="waits for", by=""),
        "gpu-3": Eviction(reason="broken", by=""),
        "fd00::1": Eviction(reason="", by=""),
    }


def test_a_line_that_an_editor_left_open_stays_a_line_of_its_own(path: Path) -> None:
    path.write_text("gpu-1 broken")
    remember(str(path), "gpu-2", XID)
    assert set(load(str(path))) == {"gpu-1", "gpu-2"}
    assert load(str(path))["gpu-1"].reason == "broken"


def test_fields_of_a_later_release_do_no_harm(path: Path) -> None:
    path.write_text('{"node":"gpu-1","colour":"red"}\n')
    assert set(load(str(path))) == {"gpu-1"}


@pytest.mark.parametrize(
    "line", ['{"node":"gpu-1"', "{}", '{"node":7}', '{"node":""}', '{"node":"a b"}', "gpu/1", "\u001b[31m", "[1]"]
)
def test_a_line_that_means_nothing_is_named(path: Path, line: str) -> None:
    path.write_text(f"gpu-0\n{line}\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"evicted\.jsonl line 2") as caught:
        load(str(path))
    assert str(caught.value).isprintable()


def test_jobs_that_write_at_once_lose_nothing(path: Path) -> None:
    names = {f"gpu-{number}" for number in range(64)}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: remember(str(path), name, XID), sorted(names)))
    assert set(load(str(path))) == names


def test_a_long_reason_is_cut_and_broken_text_is_written_somehow(path: Path) -> None:
    remember(str(path), "gpu-1", Eviction(reason="\udcff" + "x" * 5000, by="operator"))
    assert load(str(path))["gpu-1"].reason == "?" + "x" * 999


def test_what_is_no_node_does_not_spoil_the_list(path: Path) -> None:
    with pytest.raises(PlatformError, match="is not the name of a node"):
        remember(str(path), "gpu 1\n", XID)
    assert not path.exists()


def test_trouble_with_the_file_is_one_line(tmp_path: Path, path: Path) -> None:
    with pytest.raises(PlatformError, match="cannot add gpu-1 to the evict list"):
        remember(str(tmp_path / "none" / "list"), "gpu-1", XID)
    with pytest.raises(UserError, match="cannot read the evict list"):
        load(str(tmp_path))
    with open(path, "wb") as file:
        file.truncate(LARGEST_BYTES + 1)
    with pytest.raises(UserError, match="has more than 16 MiB"):
        load(str(path))


def test_a_line_that_means_nothing_is_found_before_anything_is_made(tmp_path: Path, path: Path) -> None:
    path.write_text("gpu-1 broken\n{ no eviction\n")
    (tmp_path / "train.py").touch()
    place = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:1")
    command = [sys.executable, "-m", "robust_run", "--nnodes", "2", *place, "--evict-list", str(path), "train.py"]
    env = {**os.environ, "HOME": str(tmp_path)}
    ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert "line 2 is no eviction" in ended.stderr
    assert sorted(each.name for each in tmp_path.iterdir()) == ["evicted.jsonl", "train.py"]
