"""From commands to a snapshot in a store, by several at once and by builders that are killed anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from snapshot.environments import TREE, needs_squashfs_tools
from snapshot.made import key_of

from robust_run.clock import SystemClock
from robust_run.snapshot import catalog, fetch, holding, platforms
from robust_run.snapshot.building import BuildPlan, build
from robust_run.snapshot.capture import work
from robust_run.snapshot.capture.capturing import CaptureSetup
from robust_run.snapshot.errors import SnapshotError
from robust_run.snapshot.holding import Holder, claim
from robust_run.snapshot.pack import sha256_of
from robust_run.snapshot.restore import extract
from robust_run.snapshot.rules.types import Root, SnapshotManifest
from robust_run.snapshot.verify import check_tree
from robust_run.store.opening import open_store

_BUILD = """
import os, sys; sys.path[:0] = sys.argv[1].split(':')
import time, msgspec
from robust_run.clock import SystemClock
from robust_run.snapshot import building, holding
from robust_run.store.opening import open_store
plan = msgspec.json.decode(sys.argv[2], type=building.BuildPlan)
store = open_store(sys.argv[3])
left = int(sys.argv[4])
def die_later(event, arguments):
    # a moment at which the machine may stop: before each change to the file system
    global left
    if event in ("os.rename", "os.link", "os.mkdir", "os.remove", "os.rmdir", "os.chmod", "subprocess.Popen") or (
        event == "open" and isinstance(arguments[1], str) and "w" in arguments[1]
    ):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), 9)
sys.addaudithook(die_later)
builds = []
def build(holder):
    builds.append(1)
    return building.build(plan, store, holder, clock=SystemClock())
nap = lambda seconds: time.sleep(min(seconds, 0.05))
found = holding.obtain(store, plan.key.digest, build, clock=SystemClock(), sleep=nap, lease_s=float(sys.argv[5]))
print(len(builds), found.image_sha256, -left)
"""


@pytest.fixture
def plan(tmp_path: Path) -> BuildPlan:
    needs_squashfs_tools()
    root, work = tmp_path / "env", tmp_path / "work"
    root.mkdir()
    work.mkdir()
    (root / "old").write_text("old")
    # time and process in it, so that two builds are never the same
    command = "mkdir pkg; date +%N > pkg/when; echo $$ > pkg/who; rm old; echo 'V = 1' > pkg/__init__.py"
    setup = CaptureSetup(
        commands=(command,),
        cwd=str(root),
        roots=(Root(folder="0", path=str(root)),),
        environment={"PATH": os.environ["PATH"]},
        python=(sys.executable,),
        work_folders=(str(work),),
        way="overlay" if os.geteuid() == 0 else "scan",
        watch=(),
    )
    return BuildPlan(key=key_of(str(root)), setup=setup, platform=platforms.here().platform, pinned=True)


def start(plan: BuildPlan, store: str, kill_at: int = 0, lease_s: float = 0.6) -> subprocess.Popen[str]:
    argv = [
        sys.executable,
        "-c",
        _BUILD,
        str(TREE),
        msgspec.json.encode(plan).decode(),
        store,
        str(kill_at),
        str(lease_s),
    ]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/")


def obtain(plan: BuildPlan, url: str) -> bool:
    """Be the next builder, in this process, which saves a start of Python. Return whether there was something to build."""
    store = open_store(url)
    builds: list[Holder] = []

    def build_it(holder: Holder) -> SnapshotManifest:
        builds.append(holder)
        return build(plan, store, holder, clock=SystemClock())

    def nap(seconds: float) -> None:
        time.sleep(min(seconds, 0.05))

    holding.obtain(store, plan.key.digest, build_it, clock=SystemClock(), sleep=nap, lease_s=0.6)
    return bool(builds)


def check_restores(plan: BuildPlan, store_url: str, cache: Path) -> None:
    store = open_store(store_url)
    manifest = catalog.load(store, plan.key.digest)
    assert manifest is not None
    unpacked = extract.extract(manifest, fetch.fetch(store, manifest, str(cache)), str(cache))
    items = extract.items_of(unpacked, manifest)
    assert check_tree([f"{unpacked}/r0"], items, digests=1.0, exact=True) == []
    assert {(item.path, item.kind) for item in items} >= {("old", "w"), ("pkg/when", "f"), ("pkg/__pycache__", "d")}


def test_who_builds_need_not_bring_what_it_built(plan: BuildPlan, tmp_path: Path) -> None:
    url, cache = tmp_path / "store", tmp_path / "cache"
    manifest = build(plan, open_store(str(url)), None, clock=SystemClock(), keep_in=str(cache))
    (image,) = (url / plan.key.digest).glob("*.sqsh")
    image.unlink()
    check_restores(plan, str(url), cache)
    assert sha256_of(fetch.cached_path(str(cache), manifest)) == (manifest.image_sha256, manifest.image_bytes)


@pytest.mark.parametrize("writable", [True, False], ids=["others may write it", "it cannot be made"])
def test_a_cache_that_cannot_be_trusted_keeps_nothing_and_the_build_succeeds(
    plan: BuildPlan, tmp_path: Path, writable: bool
) -> None:
    cache = tmp_path / "cache"
    if writable:
        cache.mkdir()
        cache.chmod(0o777)
    else:
        cache.write_text("no folder")
    build(plan, open_store(str(tmp_path / "store")), None, clock=SystemClock(), keep_in=str(cache))
    assert not list(tmp_path.glob("cache/**/*.sqsh"))
    check_restores(plan, str(tmp_path / "store"), tmp_path / "other")


def test_two_jobs_that_build_one_key_at_once_produce_one_snapshot(plan: BuildPlan, tmp_path: Path) -> None:
    if plan.setup.way == "scan":
        pytest.skip("two builds in one environment need overlays")
    url = str(tmp_path / "store")
    jobs = [start(plan, url, lease_s=30.0) for _ in range(3)]
    said = [job.communicate(timeout=120) for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0, 0], said
    words = [out.split() for out, _ in said]
    assert sum(int(word[0]) for word in words) == 1
    assert len({word[1] for word in words}) == 1
    assert len([name for name in os.listdir(f"{url}/{plan.key.digest}") if name.endswith(".sqsh")]) == 1
    assert os.listdir(tmp_path / "work") == []
    check_restores(plan, url, tmp_path / "cache")


def test_a_builder_killed_anywhere_leaves_nothing_half_and_the_next_one_builds(plan: BuildPlan, tmp_path: Path) -> None:
    if plan.setup.way == "scan":
        pytest.skip("a killed build leaves the environment as it was only with overlays")
    whole = start(plan, str(tmp_path / "whole"))
    said = whole.communicate(timeout=120)
    assert whole.returncode == 0, said
    moments = int(said[0].split()[2])
    killed = 0
    for number, moment in enumerate(range(1, moments + 1, max(1, moments // 9))):
        url = str(tmp_path / f"store{number}")
        builder = start(plan, url, moment)
        said = builder.communicate(timeout=120)
        assert builder.returncode in (0, -9), said
        killed += builder.returncode == -9
        assert os.listdir(plan.setup.cwd) == ["old"]
        was_built = obtain(plan, url)
        check_restores(plan, url, tmp_path / f"cache{number}")
        if was_built:
            assert all(name.endswith(".new") for name in os.listdir(tmp_path / "work")), (
                "who builds removes what was left"
            )
    assert killed >= 5
    work.sweep(str(tmp_path / "work"), -1.0, SystemClock().unix_s())
    assert os.listdir(tmp_path / "work") == []


def test_a_builder_that_lost_its_term_publishes_nothing(plan: BuildPlan, tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    assert claim(store, plan.key.digest, 1, "me")
    assert not claim(store, plan.key.digest, 1, "another")
    assert claim(store, plan.key.digest, 2, "another")
    with pytest.raises(SnapshotError, match="another node took over"):
        build(plan, store, Holder(store, plan.key.digest, 1, "me", 30.0), clock=SystemClock())
    assert catalog.load(store, plan.key.digest) is None
    assert os.listdir(tmp_path / "work") == []
