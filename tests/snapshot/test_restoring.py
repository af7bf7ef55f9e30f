"""From a manifest in a store to programs in the environment, on each rung; what is refused, and that nothing is left."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from counting_server import counting_server
from jobs import wait_for
from prefetch.private_mounts import give_fuse_to_all, privately
from snapshot.environments import LOOK, TREE, Environment, check_look, needs_squashfs_tools
from snapshot.made import key_of, snapshot_of, some_files

from robust_run.clock import SystemClock
from robust_run.snapshot import fetch, lazy, platforms, rerunning, restoring
from robust_run.snapshot.building import BuildPlan, build, publish
from robust_run.snapshot.capture.capturing import CaptureSetup
from robust_run.snapshot.errors import RestoreRefused, SetupFailed, SnapshotRefused
from robust_run.snapshot.restore import in_place
from robust_run.snapshot.rules.restore_ladder import Rung
from robust_run.snapshot.rules.types import SnapshotManifest
from robust_run.store import turn_table
from robust_run.store.opening import open_store
from robust_run.store.types import Store


class Built(NamedTuple):
    """An environment, and the snapshot of a set-up of it in a store."""

    environment: Environment
    plan: BuildPlan
    store: Store
    manifest: SnapshotManifest


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    needs_squashfs_tools()
    if os.geteuid() != 0:
        pytest.skip("an overlay as root needs root")
    folder = tmp_path_factory.mktemp("restoring")
    environment = Environment(folder)
    plan = environment.plan(environment.setup(way="overlay"))
    store = open_store(str(folder / "store"))
    return Built(environment, plan, store, build(plan, store, None, clock=SystemClock()))


def options(folder: Path, *rungs: Rung, **more: object) -> restoring.RestoreOptions:
    """Options of a node whose folders are all in one."""
    return restoring.RestoreOptions(cache=str(folder / "node"), memory=None, rungs=rungs, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("rung", ["mount", "userns", "extract"])
def test_workers_see_it_at_the_same_path_and_nobody_else_does(built: Built, tmp_path: Path, rung: Rung) -> None:
    environment = built.environment
    try:
        restored = restoring.restore(built.plan, built.manifest, built.store, options(tmp_path, rung))
    except RestoreRefused as error:
        pytest.skip(str(error))
    with restored:
        assert restored.choice.rung == rung
        argv = restored.command([environment.python, "-c", LOOK], str(tmp_path))
        env = restored.environment(environment.environment())
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        check_look(environment, json.loads(done.stdout))
        assert not Path(environment.site, "oddpack").exists()
    assert os.listdir(tmp_path / "node/stage") == []


def test_an_image_that_was_damaged_in_the_cache_is_brought_again(built: Built, tmp_path: Path) -> None:
    """Also if its seal says that nobody has touched it."""
    settings = options(tmp_path, "mount", "extract")
    image = Path(fetch.fetch(built.store, built.manifest, settings.cache))
    good = image.read_bytes()
    image.chmod(0o644)
    image.write_bytes(bytes(len(good)))
    fetch.seal(str(image))
    problems: list[str] = []
    with restoring.restore(built.plan, built.manifest, built.store, settings, on_problem=problems.append) as restored:
        assert restored.choice.rung in ("mount", "extract")
    assert problems == ["the image in the cache of this node was damaged, and was brought anew"]
    assert image.read_bytes() == good


@pytest.mark.parametrize("whose", ["anybody's", "another user's", "below another user's"])
def test_an_image_is_never_taken_from_a_folder_that_others_can_write(small: Small, tmp_path: Path, whose: str) -> None:
    if whose != "anybody's" and os.geteuid() != 0:
        pytest.skip("needs root, to give a folder to another user")
    node = tmp_path / "node"
    chosen = options(node if whose.startswith("below") else tmp_path, "mount", "extract")
    restoring.restore(small.plan, small.manifest, small.store, chosen).stop()
    node.chmod(0o777) if whose == "anybody's" else os.chown(node, 65534, 65534)
    with pytest.raises(RestoreRefused, match=r"only we can write|others can replace it"):
        restoring.restore(small.plan, small.manifest, small.store, chosen)


def test_where_no_image_can_be_kept_the_commands_are_left(small: Small, tmp_path: Path) -> None:
    (tmp_path / "node").write_text("no folder")
    with pytest.raises(RestoreRefused, match=r"not mount: .*name another cache folder"):
        restoring.restore(small.plan, small.manifest, small.store, options(tmp_path, "mount", "extract", "target"))
    restored = restoring.restore(small.plan, small.manifest, small.store, options(tmp_path, "mount", "commands"))
    assert restored.choice.rung == "commands"


@pytest.mark.parametrize("writable", [True, False])
def test_workers_write_to_memory_or_not_at_all(built: Built, tmp_path: Path, writable: bool) -> None:
    with restoring.restore(
        built.plan, built.manifest, built.store, options(tmp_path, "mount", "userns", "extract", writable=writable)
    ) as restored:
        place = f"{built.environment.site}/written"
        argv = restored.command(["/bin/sh", "-c", 'echo x > "$0" && cat "$0"', place], "/")
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        assert done.stdout == ("x\n" if writable else "")
        assert "image" not in done.stderr
    assert not os.path.exists(place)


def names_of_what_came() -> list[str]:
    table = turn_table.opened()
    assert table is not None
    return [each.name for each in table.all() if each.came_bytes]


def test_a_lazy_image_is_mounted_before_it_is_here(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over HTTP: only what is read is brought; a block map that is not the manifest's is refused, and the image brought whole."""
    environment = built.environment
    folder = Path(built.store.url.removeprefix("file://"))
    problems: list[str] = []
    monkeypatch.setenv(turn_table.VARIABLE, turn_table.begin({}))
    with counting_server(folder) as server:
        remote = open_store(server.url)
        settings = options(tmp_path, "mount", "userns", block_cache=str(tmp_path / "blocks"), least_lazy_bytes=0)
        with restoring.restore(built.plan, built.manifest, remote, settings, on_problem=problems.append) as restored:
            assert problems == []
            assert restored.prepared is not None and restored.prepared.plan.way == "first"
            argv = restored.command([environment.python, "-c", LOOK], "/")
            done = subprocess.run(
                argv, env=environment.environment(), capture_output=True, text=True, timeout=120, check=False
            )
            assert done.returncode == 0, done.stderr
            check_look(environment, json.loads(done.stdout))
            assert restored.inside is not None and restored.inside.touches()[0]
            wait_for(
                lambda: turn_table.SET_UP in names_of_what_came(), "what is fetched, under the name that people know"
            )
        assert not (tmp_path / "node/images").exists()

        foreign = msgspec.structs.replace(built.manifest, blocks_sha256="0" * 64)
        with restoring.restore(built.plan, foreign, remote, settings, on_problem=problems.append) as restored:
            assert restored.prepared is None
        assert "its block map is not the one of the manifest" in problems[0]
        assert len(os.listdir(tmp_path / "node/images")) > 0
        remote.close()


def test_what_is_small_or_near_is_brought_as_a_whole() -> None:
    found = msgspec.structs.replace(restoring_manifest(), blocks_sha256="a" * 64, image_bytes=1 << 30)
    assert lazy.why_not(found, remote=True, cached=False) == ""
    assert lazy.why_not(found, remote=False, cached=False)
    assert lazy.why_not(found, remote=True, cached=True)
    assert lazy.why_not(msgspec.structs.replace(found, image_bytes=1000), remote=True, cached=False)
    assert lazy.why_not(msgspec.structs.replace(found, blocks_sha256=""), remote=True, cached=False)


def restoring_manifest() -> SnapshotManifest:
    from snapshot.made import manifest_of

    return manifest_of()


# --- without namespaces ----------------------------------------------------------------------------------------------


class Small(NamedTuple):
    """A folder with a few files captured, in a store."""

    root: Path
    plan: BuildPlan
    store: Store
    manifest: SnapshotManifest


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Small]:
    needs_squashfs_tools()
    root = tmp_path / "env"
    root.mkdir()
    manifest, image = snapshot_of(tmp_path, str(root), some_files)
    store = open_store(str(tmp_path / "store"))
    publish(store, manifest, image)
    setup = CaptureSetup(
        commands=("echo ran >> ran.txt; echo said",), cwd=str(root), roots=manifest.roots,
        environment={"PATH": os.environ["PATH"]}, python=("/usr/bin/python3",), work_folders=(),
    )  # fmt: skip
    plan = BuildPlan(key=key_of(str(root)), setup=setup, platform=platforms.here().platform, pinned=False)
    yield Small(root, plan, store, manifest)


def test_the_commands_are_run_once_where_nothing_else_is_possible(small: Small, tmp_path: Path) -> None:
    """Here no rung but `target` is allowed before, and there are no packages."""
    heard: list[bytes] = []
    for _ in range(2):
        restored = restoring.restore(
            small.plan, small.manifest, small.store, options(tmp_path, "target", "commands"), on_output=heard.append
        )
        assert restored.choice.sentence() == "commands (not target: it has no packages of Python)"
        assert restored.command(["x"], "/") == ["x"]
    assert (small.root / "ran.txt").read_text() == "ran\n"
    assert heard == [b"said\n"]


def test_commands_that_fail_leave_a_mark_and_are_run_again(small: Small, tmp_path: Path) -> None:
    setup = msgspec.structs.replace(small.plan.setup, commands=("echo ran >> ran.txt", "test -e ready"))
    plan = msgspec.structs.replace(small.plan, setup=setup)
    with pytest.raises(SetupFailed, match="'test -e ready' ended with 1"):
        rerunning.run_commands(plan, "mksquashfs is not installed")
    (small.root / "ready").touch()
    restored = rerunning.run_commands(plan, "mksquashfs is not installed")
    assert "mksquashfs is not installed" in restored.choice.sentence()
    assert (small.root / "ran.txt").read_text() == "ran\nran\n"


def test_nothing_worse_is_built_on_an_environment_that_was_half_copied(small: Small, tmp_path: Path) -> None:
    if in_place.why_not(str(small.root)):
        kind = in_place.file_system_of(str(small.root), "/proc/self/mountinfo")
        walk = options(tmp_path, "in-place")
        with pytest.raises(RestoreRefused, match=f"not in-place: .* is on {kind}"):
            restoring.restore(small.plan, small.manifest, small.store, walk)
        return
    (small.root / "bin").write_text("")  # becomes a folder
    restored = restoring.restore(small.plan, small.manifest, small.store, options(tmp_path, "in-place", "commands"))
    assert restored.choice.rung == "in-place"
    assert in_place.state_of(small.manifest) == "done"


def test_a_snapshot_of_another_key_is_refused(small: Small, tmp_path: Path) -> None:
    plan = msgspec.structs.replace(small.plan, key=key_of("/elsewhere"))
    with pytest.raises(SnapshotRefused, match="asked for was"):
        restoring.restore(plan, small.manifest, small.store, options(tmp_path, "commands"))


def test_only_a_file_system_of_a_container_is_copied_into(tmp_path: Path) -> None:
    table = tmp_path / "mounts"
    table.write_text(
        "1 0 0:1 / / rw - overlay overlay rw\n2 1 0:2 / /opt rw - nfs4 server:/opt rw\n3 2 0:3 / /opt/a\\040b rw - tmpfs x rw\n"
    )
    assert in_place.file_system_of("/usr/lib", str(table)) == "overlay"
    assert in_place.file_system_of("/opt/env", str(table)) == "nfs4"
    assert in_place.file_system_of("/opt/a b/env", str(table)) == "tmpfs"
    assert in_place.file_system_of("/optional", str(table)) == "overlay"


@privately
def test_without_root_it_is_the_same_in_a_user_namespace(tmp_path: Path) -> None:
    """Workers keep the numbers of their user and group."""
    needs_squashfs_tools()
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    python = "/usr/bin/python3"
    said = subprocess.run(
        [python, "-c", "import venv,sys;print(*sys.version_info[:2])"], capture_output=True, text=True
    )
    if said.stdout.split() != [str(part) for part in sys.version_info[:2]]:
        pytest.skip(f"{python} is not this Python, which other users could run")
    if not shutil.which("squashfuse_ll") or not os.path.exists("/dev/fuse"):
        pytest.skip("there is no squashfuse_ll, or no /dev/fuse")
    give_fuse_to_all(tmp_path)
    packages = os.path.dirname(os.path.dirname(msgspec.__file__))
    folder = tempfile.mkdtemp(prefix="robust-test-", dir="/tmp")
    try:
        os.chown(folder, 65534, 65534)
        env = {"PATH": os.environ["PATH"], "HOME": folder, "TMPDIR": folder, "PYTHONPATH": f"{TREE}:{packages}"}
        argv = [python, str(Path(__file__).with_name("restored_way.py")), folder]
        done = subprocess.run(
            argv, cwd=folder, env=env, user=65534, group=65534, extra_groups=[], capture_output=True, text=True,
            timeout=150,
        )  # fmt: skip
        if "no private" in done.stderr:
            pytest.skip("user namespaces are forbidden here")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == {"userns": "65534 65534", "extract": "65534 65534", "after": False}
    finally:
        shutil.rmtree(folder)
