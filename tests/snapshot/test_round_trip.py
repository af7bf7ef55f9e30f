"""An environment with all that installers make, captured, packed, and restored on each rung: a program sees the same."""

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

import pytest
from prefetch.private_mounts import give_fuse_to_all, privately
from snapshot.environments import TREE, Environment, check_look, needs_squashfs_tools

from robust_run.snapshot.capture.capturing import capture, discard
from robust_run.snapshot.capture.types import Captured
from robust_run.snapshot.errors import RestoreRefused
from robust_run.snapshot.pack import pack
from robust_run.snapshot.restore import extract, in_place, mounting
from robust_run.snapshot.rules.types import SnapshotManifest
from robust_run.snapshot.verify import check_tree


class Built(NamedTuple):
    """An environment as it was before the set-up, and the snapshot of what the set-up makes of it."""

    environment: Environment
    captured: Captured
    manifest: SnapshotManifest
    image: str


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    needs_squashfs_tools()
    if os.geteuid() != 0:
        pytest.skip("an overlay as root needs root")
    folder = tmp_path_factory.mktemp("round trip")
    environment = Environment(folder)
    setup = environment.setup(way="overlay")
    captured = capture(setup)
    try:
        packed = pack(captured, str(folder / "image.sqsh"))
        yield Built(environment, captured, environment.manifest(captured, packed, setup), packed.path)
    finally:
        discard(captured)


def test_a_capture_over_overlays_leaves_the_environment_as_it_was(built: Built) -> None:
    assert built.captured.method == "overlay"
    site = Path(built.environment.site)
    assert not (site / "oddpack").exists()
    assert (site / "replaced/before.txt").read_text() == "before"


def test_what_was_resolved_is_in_the_manifest(built: Built) -> None:
    found = {package.name: package for package in built.manifest.packages}
    assert (found["upgraded"].version, found["oddpack"].version) == ("2.0", "1.0")
    assert found["inplace"].editable and found["inplace"].source.startswith("file://")
    assert len(found["oddpack"].record_sha256) == 64


def test_removed_names_are_listed_and_special_files_named(built: Built) -> None:
    removed = {os.path.basename(item.path) for item in built.captured.items if item.kind == "w"}
    assert {"old.py", "gone", "before.txt", "deep"} <= removed
    assert [os.path.basename(path) for path in built.manifest.dropped] == ["pipe"]


@pytest.mark.parametrize("reader", ["kernel", "squashfuse"])
@privately
def test_mounted_at_the_same_path_it_is_what_was_installed(
    built: Built, tmp_path: Path, reader: mounting.Reader
) -> None:
    environment = built.environment
    try:
        mounted = mounting.mount(built.manifest, built.image, str(tmp_path), reader=reader, userns=False)
    except RestoreRefused as error:
        pytest.skip(str(error))
    try:
        check_look(environment, environment.look())
        items = extract.items_of(str(tmp_path), built.manifest)
        assert check_tree([root.path for root in built.manifest.roots], items, digests=1.0, exact=False) == []
        with pytest.raises(OSError, match="Read-only"):
            Path(environment.site, "new").touch()
    finally:
        mounted.undo()
    assert not Path(environment.site, "oddpack").exists()


@privately
def test_with_scratch_the_environment_can_be_written_and_nothing_stays(built: Built, tmp_path: Path) -> None:
    (tmp_path / "at").mkdir()
    scratch = mounting.WriteArea(folder=str(tmp_path / "scratch"))
    mounted = mounting.mount(
        built.manifest, built.image, str(tmp_path / "at"), reader="kernel", userns=False, scratch=scratch
    )
    try:
        new = Path(built.environment.site, "new")
        new.write_text("by a worker")
        assert new.read_text() == "by a worker"
    finally:
        mounted.undo()
    assert not new.exists()


def test_unpacked_it_is_file_by_file_what_was_captured(built: Built, tmp_path: Path) -> None:
    folder = extract.extract(built.manifest, built.image, str(tmp_path))
    items = extract.items_of(folder, built.manifest)
    assert tuple(items) == built.captured.items
    assert check_tree([f"{folder}/r0"], items, digests=1.0, exact=True) == []


def test_a_scan_finds_what_an_overlay_finds_and_a_copy_over_it_gives_the_same(tmp_path: Path) -> None:
    """One environment: overlay first, which leaves it alone; copied over a twin; then a scan, which installs for real."""
    needs_squashfs_tools()
    if os.geteuid() != 0:
        pytest.skip("needs root, for an overlay that leaves the environment alone")
    environment = Environment(tmp_path)
    setup = environment.setup(way="overlay")
    by_overlay = capture(setup)
    try:
        packed = pack(by_overlay, str(tmp_path / "image.sqsh"))
        manifest = environment.manifest(by_overlay, packed, setup)
    finally:
        discard(by_overlay)
    twin = tmp_path / "twin"
    shutil.copytree(environment.path, twin, symlinks=True)

    by_scan = capture(environment.setup(way="scan"))
    discard(by_scan)
    assert by_scan.method == "scan"
    seen = [[(item.path, item.kind, item.mode) for item in found.items] for found in (by_overlay, by_scan)]
    assert sorted(seen[0]) == sorted(seen[1])

    shutil.rmtree(environment.path)
    twin.rename(environment.path)
    unpacked = extract.extract(manifest, packed.path, str(tmp_path / "cache"))
    items = extract.items_of(unpacked, manifest)
    in_place.copy_over(manifest, items, unpacked)
    check_look(environment, environment.look())
    assert in_place.state_of(manifest) == "done"
    assert check_tree([str(environment.path)], items, digests=1.0, exact=False) == []


@privately
def test_without_root_all_of_it_happens_in_a_user_namespace(tmp_path: Path) -> None:
    needs_squashfs_tools()
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    python = "/usr/bin/python3"
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    said = subprocess.run(
        [python, "-c", "import venv,sys;print(sys.version[:4].strip('.'))"], capture_output=True, text=True
    )
    if said.stdout.strip() != version:
        pytest.skip(f"{python} is not Python {version}, which other users could run")
    if not shutil.which("squashfuse_ll"):
        pytest.skip("squashfuse_ll is not installed")
    give_fuse_to_all(tmp_path)
    import msgspec

    packages = os.path.dirname(os.path.dirname(msgspec.__file__))
    folder = tempfile.mkdtemp(prefix="robust-test-", dir="/tmp")
    try:
        os.chown(folder, 65534, 65534)
        environment = {"PATH": os.environ["PATH"], "HOME": folder, "TMPDIR": folder, "PYTHONPATH": f"{TREE}:{packages}"}
        argv = [python, str(Path(__file__).with_name("whole_way.py")), folder]
        done = subprocess.run(
            argv, cwd=folder, env=environment, user=65534, group=65534, extra_groups=[], capture_output=True, text=True,
            timeout=150,
        )  # fmt: skip
        if "no private user and mount namespace" in done.stderr:
            pytest.skip("user namespaces are forbidden here")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
    finally:
        shutil.rmtree(folder)
    assert found["uid"] == 65534
    assert (found["method"], found["userns"], found["writable"], found["after"]) == (
        "userns-overlay",
        True,
        False,
        False,
    )
    assert found["left"] == []
