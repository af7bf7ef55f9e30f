"""What a node does with a set-up at its start: use what is there, say how old it is, resolve it anew, leave it to others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from snapshot.environments import TREE, needs_squashfs_tools
from snapshot.made import key_of, snapshot_of, some_files

from robust_run.errors import PlatformError
from robust_run.snapshot import building, catalog, fetch, lease_files, platforms, starting
from robust_run.snapshot.building import BuildPlan, publish
from robust_run.snapshot.capture import work
from robust_run.snapshot.capture.capturing import CaptureSetup
from robust_run.snapshot.errors import (
    CaptureRefused,
    SetupFailed,
    SnapshotDamaged,
    SnapshotError,
    SnapshotRefused,
    ToolMissing,
)
from robust_run.snapshot.holding import Holder
from robust_run.snapshot.rules import manifest as manifests
from robust_run.snapshot.rules.types import Root, SnapshotManifest
from robust_run.snapshot.starting import FoundSnapshot, RestoreRequest
from robust_run.store.errors import StoreError
from robust_run.store.opening import open_store
from robust_run.store.types import Store

DAY_S = 86400.0


class Hands:
    """A clock that sleeping turns."""

    def __init__(self, unix_s: float) -> None:
        self.now_s = unix_s

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Node(NamedTuple):
    root: Path
    plan: BuildPlan
    store: Store
    manifest: SnapshotManifest
    image: str
    said: list[str]
    clock: Hands

    def find(self, **asked: object) -> FoundSnapshot:
        return starting.find(
            self.plan,
            self.store,
            RestoreRequest(**asked),
            clock=self.clock,
            sleep=self.clock.sleep,
            say=self.said.append,
        )  # type: ignore[arg-type]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    needs_squashfs_tools()
    root, work = tmp_path / "env", tmp_path / "work"
    root.mkdir()
    work.mkdir()
    manifest, image = snapshot_of(tmp_path, str(root), some_files)
    setup = CaptureSetup(
        commands=("echo new > new.txt",), cwd=str(root), roots=(Root(folder="0", path=str(root)),),
        environment={"PATH": os.environ["PATH"]}, python=("/usr/bin/python3",), work_folders=(str(work),),
        way="scan", watch=(),
    )  # fmt: skip
    plan = BuildPlan(key=key_of(str(root)), setup=setup, platform=platforms.here().platform, pinned=False)
    clock = Hands(manifest.built_unix_s)
    return Node(root, plan, open_store(str(tmp_path / "store")), manifest, image, [], clock)


def test_what_is_there_is_used_and_its_age_said(node: Node) -> None:
    publish(node.store, node.manifest, node.image)
    assert node.find() == FoundSnapshot(manifest=node.manifest, was_built=False)
    assert node.said == []
    node.clock.now_s += 9 * DAY_S
    assert not node.find().was_built
    assert node.said == [f"set-up {node.manifest.key[:16]}: resolved 9 days ago; --refresh-setup resolves again"]
    assert not (node.root / "new.txt").exists()


def test_what_has_expired_is_resolved_anew_by_one_who_may(node: Node) -> None:
    publish(node.store, node.manifest, node.image)
    node.clock.now_s += 31 * DAY_S
    assert node.find(may_build=False).manifest == node.manifest
    found = node.find()
    assert found.was_built
    assert catalog.load(node.store, node.manifest.key) == found.manifest
    assert found.manifest.image_sha256 != node.manifest.image_sha256
    assert found.manifest.blocks_sha256
    assert not node.find().was_built


def test_where_that_fails_the_old_one_is_used(node: Node) -> None:
    publish(node.store, node.manifest, node.image)
    node.clock.now_s += 31 * DAY_S
    setup = msgspec.structs.replace(node.plan.setup, commands=("echo no network; exit 1",))
    broken = node._replace(plan=msgspec.structs.replace(node.plan, setup=setup))
    assert broken.find() == FoundSnapshot(manifest=node.manifest, was_built=False)
    assert "what was resolved before is used: set-up command" in node.said[-1]
    with pytest.raises(SetupFailed, match="no network"):
        broken.find(refresh=True)


def test_one_who_must_not_build_waits_and_gives_up(node: Node) -> None:
    with pytest.raises(SnapshotError, match=r"after 60 s, and this node is not to build one"):
        node.find(may_build=False, limit_s=60.0)
    assert not (node.root / "new.txt").exists()


def test_another_node_builds_only_after_the_head_start(node: Node) -> None:
    began_s = node.clock.now_s
    assert node.find(head_start_s=30.0).was_built
    assert node.clock.now_s - began_s >= 30.0


def test_a_builder_at_work_ends_the_head_start(node: Node) -> None:
    key = node.plan.key.digest
    assert lease_files.claim(node.store, key, 1, "node 0")
    holder = Holder(node.store, key, 1, "node 0", lease_s=3600.0)
    holder.start()
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        """The first time that we sleep, the builder is done."""
        waits.append(seconds)
        publish(node.store, node.manifest, node.image)
        holder.end("done")

    try:
        found = starting.find(node.plan, node.store, RestoreRequest(head_start_s=1e6), clock=node.clock, sleep=sleep)
    finally:
        holder.end()
    assert found == FoundSnapshot(manifest=node.manifest, was_built=False)
    assert len(waits) == 1


@pytest.mark.parametrize("data", [b"{}", b"", b"x" * (manifests.LARGEST_BYTES + 1)], ids=["another", "empty", "large"])
def test_a_damaged_manifest_is_built_over_by_one_who_may(node: Node, data: bytes) -> None:
    publish(node.store, node.manifest, node.image)
    node.store.write_all(catalog.manifest_path(node.manifest.key), data)
    with pytest.raises(SnapshotDamaged, match="build it again"):
        node.find(may_build=False)
    assert node.find().was_built
    assert "is damaged, so it is built anew" in node.said[0]
    assert not node.find().was_built


@pytest.mark.parametrize("damage", ["gone", "cut short", "other bytes"])
def test_a_damaged_image_is_found_and_built_over(node: Node, tmp_path: Path, damage: str) -> None:
    publish(node.store, node.manifest, node.image)
    path = tmp_path / "store" / catalog.image_path(node.manifest)
    path.chmod(0o644)
    if damage == "gone":
        path.unlink()
    else:
        data = path.read_bytes()
        path.write_bytes(data[:-100] if damage == "cut short" else data[:1000] + bytes([data[1000] ^ 1]) + data[1001:])
    found = node.find()
    with pytest.raises(SnapshotDamaged, match=r"\.sqsh: "):
        fetch.fetch(node.store, found.manifest, str(tmp_path / "cache"))
    again = node.find(damaged=found.manifest)
    assert again.was_built
    assert fetch.fetch(node.store, again.manifest, str(tmp_path / "cache"))
    assert node.find(damaged=found.manifest) == FoundSnapshot(manifest=again.manifest, was_built=False), (
        "it was mended meanwhile"
    )


def test_an_image_that_is_built_to_the_same_bytes_takes_the_place_of_a_damaged_one(node: Node, tmp_path: Path) -> None:
    publish(node.store, node.manifest, node.image)
    path = tmp_path / "store" / catalog.image_path(node.manifest)
    path.chmod(0o644)
    path.write_bytes(bytes(node.manifest.image_bytes))
    publish(node.store, node.manifest, node.image, replace=True)
    assert path.read_bytes() == Path(node.image).read_bytes()


def test_a_snapshot_that_somebody_else_signed_is_refused_and_not_built_over(node: Node) -> None:
    publish(node.store, node.manifest, node.image, token="the token of others")
    with pytest.raises(SnapshotRefused, match="signature"):
        starting.find(
            node.plan,
            node.store,
            RestoreRequest(),
            clock=node.clock,
            sleep=node.clock.sleep,
            token="a token that is ours",
        )


def test_a_builder_sweeps_what_killed_builds_left(node: Node, tmp_path: Path) -> None:
    """Those of killed ones at once, as their locks show; without a lock, once they are old."""
    work_folder = tmp_path / "work"
    for name in ("robust-setup-old", "robust-setup-new"):
        (work_folder / name / "stage").mkdir(parents=True)
    os.utime(work_folder / "robust-setup-old", (node.clock.now_s - 2 * building.SWEPT_AFTER_S,) * 2)
    os.utime(work_folder / "robust-setup-new", (node.clock.now_s,) * 2)
    code = "import sys; sys.path[:0] = sys.argv[1].split(':')\n"
    code += "from robust_run.snapshot.capture import work; work.make_work(sys.argv[2])"
    subprocess.run([sys.executable, "-c", code, str(TREE), str(work_folder)], check=True, cwd="/", timeout=60)
    in_use = work.make_work(str(work_folder))
    node.find()
    assert sorted(os.listdir(work_folder)) == sorted(["robust-setup-new", os.path.basename(in_use)])
    work.remove_work(in_use)


def test_a_builder_whose_clock_is_a_year_ahead_sweeps_nothing_that_is_in_use(tmp_path: Path) -> None:
    in_use, killed = work.make_work(str(tmp_path)), tmp_path / "robust-setup-without-a-lock"
    killed.mkdir()
    year_ahead_s = os.stat(in_use).st_mtime + 365 * 86400.0
    assert work.sweep(str(tmp_path), building.SWEPT_AFTER_S, year_ahead_s) == [str(killed)]
    assert os.path.isdir(in_use)
    work.remove_work(in_use)


@pytest.mark.parametrize(
    ("error", "runs"),
    [
        (ToolMissing("no mksquashfs"), True),
        (CaptureRefused("outside"), True),
        (StoreError("s", "p", "full"), True),
        (SetupFailed("pip"), False),
        (SnapshotRefused("forged"), False),
    ],
)
def test_commands_are_run_only_where_the_set_up_is_sound(error: PlatformError, runs: bool) -> None:
    assert starting.must_run_commands(error) is runs
