"""Unpacking and mounting small images: hostile ones, killed half-way, no room; and what verification sees."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from prefetch.private_mounts import privately
from snapshot.environments import TREE, needs_squashfs_tools
from snapshot.made import described, manifest_of, snapshot_of, some_files, stage_of

from robust_run.snapshot import verify
from robust_run.snapshot.errors import RestoreRefused, SnapshotRefused
from robust_run.snapshot.pack import pack, sha256_of, tool_version
from robust_run.snapshot.restore import confined, extract, in_place, mounting
from robust_run.snapshot.rules.types import Item, Root, SnapshotManifest


@pytest.fixture(autouse=True)
def tools() -> None:
    needs_squashfs_tools()


def image_with(
    folder: Path, manifest: SnapshotManifest, change: Callable[[Path], None], *options: str
) -> tuple[SnapshotManifest, str]:
    """Pack the stage of `manifest` again, changed, so that digests fit and the listing does not."""
    stage = folder / "made" / "stage"
    change(stage)
    image = folder / "hostile.sqsh"
    subprocess.run(
        ["mksquashfs", str(stage), str(image), "-noappend", "-quiet", "-no-progress", *options], check=True, timeout=60
    )
    digest, size_bytes = sha256_of(str(image))
    return msgspec.structs.replace(manifest, image_sha256=digest, image_bytes=size_bytes), str(image)


def left_in(cache: Path) -> list[str]:
    return [name for name in os.listdir(cache / "unpacked") if not name.endswith(".lock")]


def test_unpacked_once_and_used_again(tmp_path: Path) -> None:
    manifest, image = snapshot_of(tmp_path, "/opt/env")
    folder = extract.extract(manifest, image, str(tmp_path / "cache"))
    assert os.readlink(f"{folder}/r0/pkg/link") == "data.bin"
    assert stat.S_IMODE(os.stat(f"{folder}/r0/bin/tool").st_mode) == 0o755
    os.unlink(image)
    assert extract.extract(manifest, image, str(tmp_path / "cache")) == folder


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda stage: (stage / "r0/pkg/more.py").write_text("evil"), "more.py is not listed"),
        (lambda stage: (stage / "r0/pkg/__init__.py").write_text("longer than before\n"), "has 19 bytes instead of 6"),
        (lambda stage: (stage / "r0/bin/tool").chmod(0o4755), "has mode 4755 instead of 755"),
        (lambda stage: (stage / "r0/bin/tool").unlink(), "cannot be read"),
        (
            lambda stage: ((stage / "r0/bin/tool").unlink(), (stage / "r0/bin/tool").symlink_to("/etc/passwd")),
            "no regular file",
        ),
        (
            lambda stage: ((stage / "r0/pkg/link").unlink(), (stage / "r0/pkg/link").symlink_to("/etc")),
            "points to '/etc'",
        ),
        (lambda stage: (stage / "listing.json").write_text("[]"), "its sha256 is"),
        (lambda stage: (stage / "listing.json").unlink(), "listing.json"),
    ],
)
def test_an_image_that_holds_something_else_than_its_listing_is_refused(
    tmp_path: Path, change: Callable[[Path], None], reason: str
) -> None:
    if "4755" in reason and os.geteuid() != 0:
        pytest.skip("needs root: who unpacks as another user gets no set-user-ID bits")
    manifest, _ = snapshot_of(tmp_path, "/opt/env")
    hostile, image = image_with(tmp_path, manifest, change)
    with pytest.raises(SnapshotRefused, match=re.escape(reason)):
        extract.extract(hostile, image, str(tmp_path / "cache"))
    assert left_in(tmp_path / "cache") == []


def test_an_entry_whose_name_leads_out_of_the_folder_is_written_nowhere(tmp_path: Path) -> None:
    """mksquashfs makes no such image, so a name is changed in one whose tables are not compressed."""

    def add(stage: Path) -> None:
        (stage / "r0/pkg/aaabescaped").write_text("evil")

    manifest, _ = snapshot_of(tmp_path, "/opt/env")
    hostile, image = image_with(tmp_path, manifest, add, "-noI", "-noD", "-noF", "-noX")
    data = Path(image).read_bytes()
    assert data.count(b"aaabescaped") == 1
    Path(image).write_bytes(data.replace(b"aaabescaped", b"../.escaped"))
    digest, _ = sha256_of(image)
    with pytest.raises(SnapshotRefused):
        extract.extract(msgspec.structs.replace(hostile, image_sha256=digest), image, str(tmp_path / "cache"))
    assert list(tmp_path.rglob("*escaped")) == [tmp_path / "made/stage/r0/pkg/aaabescaped"]


def test_a_tool_that_would_write_elsewhere_cannot(tmp_path: Path) -> None:
    if not confined.version():
        pytest.skip("this kernel has no Landlock")
    manifest, image = snapshot_of(tmp_path, "/opt/env")
    tool = tmp_path / "unsquashfs"
    tool.write_text(
        f"#!/bin/sh\necho evil > {tmp_path}/escaped; mkdir {tmp_path}/escaped.d; ln -s x {tmp_path}/escaped.l; exit 0\n"
    )
    tool.chmod(0o755)
    with pytest.raises(SnapshotRefused):
        extract.extract(manifest, image, str(tmp_path / "cache"), which=lambda _: str(tool))
    assert list(tmp_path.glob("escaped*")) == []


def test_what_a_killed_process_left_is_removed_and_never_used(tmp_path: Path) -> None:
    manifest, image = snapshot_of(tmp_path, "/opt/env")
    unpacked = tmp_path / "cache/unpacked"
    for name in (manifest.image_sha256, f"{manifest.image_sha256}.0123.part"):
        (unpacked / name / "r0").mkdir(parents=True)
        (unpacked / name / "r0/half").touch()
    folder = extract.extract(manifest, image, str(tmp_path / "cache"))
    assert not Path(folder, "r0/half").exists()
    assert left_in(tmp_path / "cache") == [manifest.image_sha256]


def test_after_another_boot_all_is_compared_before_it_is_used(tmp_path: Path) -> None:
    manifest, image = snapshot_of(tmp_path, "/opt/env")
    boots = [tmp_path / "boot1", tmp_path / "boot2", tmp_path / "boot3"]
    for number, boot in enumerate(boots):
        boot.write_text(str(number))
    cache = str(tmp_path / "cache")
    folder = extract.extract(manifest, image, cache, boot_file=str(boots[0]))
    inode = os.stat(folder).st_ino
    extract.extract(manifest, image, cache, boot_file=str(boots[1]))
    assert os.stat(folder).st_ino == inode
    data = Path(folder, "r0/pkg/data.bin")
    data.write_bytes(b"\0" * data.stat().st_size)  # as after a power loss
    extract.extract(manifest, image, cache, boot_file=str(boots[2]))
    assert data.read_bytes().strip(b"\0")


def test_without_room_it_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    manifest, image = snapshot_of(tmp_path, "/opt/env")
    huge = msgspec.structs.replace(manifest, content_bytes=1 << 50)
    with pytest.raises(RestoreRefused, match="are free: name another cache folder"):
        extract.extract(huge, image, str(tmp_path / "cache"))


def test_no_unsquashfs_is_said(tmp_path: Path) -> None:
    manifest, image = snapshot_of(tmp_path, "/opt/env")
    from robust_run.snapshot.errors import ToolMissing

    with pytest.raises(ToolMissing, match="unsquashfs is not installed"):
        extract.extract(manifest, image, str(tmp_path / "cache"), which=lambda _: None)
    assert tool_version("/bin/false") == (0, 0, 0)


def copied(tmp_path: Path) -> tuple[SnapshotManifest, list[Item], str, Path]:
    root = tmp_path / "env"
    (root / "old").mkdir(parents=True)
    (root / "old/file").touch()
    manifest, image = snapshot_of(tmp_path, str(root), some_files, ("old", "linked/precious"))
    unpacked = extract.extract(manifest, image, str(tmp_path / "cache"))
    return manifest, extract.items_of(unpacked, manifest), unpacked, root


def test_a_copy_over_an_environment_is_marked_and_can_be_done_again(tmp_path: Path) -> None:
    manifest, items, unpacked, root = copied(tmp_path)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    (root / "linked").symlink_to(outside)  # a removed name below it must not be followed there
    (root / "pkg").symlink_to(outside)  # nor a folder
    assert in_place.state_of(manifest) == "none"
    in_place.copy_over(manifest, items, unpacked)
    assert in_place.state_of(manifest) == "done"
    assert os.listdir(outside) == ["precious"]
    assert (
        verify.check_tree(
            [str(root)], [item for item in items if item.path != "linked/precious"], digests=1.0, exact=False
        )
        == []
    )
    mark = root / in_place.MARK
    mark.write_bytes(mark.read_bytes().replace(b'"done"', b'"copying"'))
    (root / "bin/tool").unlink()
    assert in_place.state_of(manifest) == "copying"
    in_place.copy_over(manifest, items, unpacked)
    assert (root / "bin/tool").exists()


def test_an_environment_that_got_another_snapshot_is_refused(tmp_path: Path) -> None:
    manifest, items, unpacked, _ = copied(tmp_path)
    in_place.copy_over(manifest, items, unpacked)
    with pytest.raises(RestoreRefused, match="was copied into this environment before"):
        in_place.copy_over(msgspec.structs.replace(manifest, image_sha256="f" * 64), items, unpacked)


def test_verification_names_what_differs(tmp_path: Path) -> None:
    manifest, items, _, root = copied(tmp_path)
    unpacked = tmp_path / "cache/unpacked" / manifest.image_sha256 / "r0"
    assert verify.check_tree([str(unpacked)], items, digests=1.0, exact=True) == []
    data = unpacked / "pkg/data.bin"
    data.write_bytes(b"\0" * data.stat().st_size)
    assert verify.check_tree([str(unpacked)], items, digests=0.0, exact=True) == []
    assert verify.check_tree([str(unpacked)], items, digests=1.0, exact=True) == [f"{data} has other content"]
    found = verify.check_tree([str(root)], items, digests=0.0, exact=False)
    assert f"{root}/old should have been removed" in found


@privately
def test_what_cannot_be_mounted_is_refused_and_leaves_no_mount(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    root, at = tmp_path / "env", tmp_path / "at"
    root.mkdir()
    at.mkdir()
    manifest, image = snapshot_of(tmp_path, str(root))

    def refused(reason: str, made: SnapshotManifest, path: str = image) -> None:
        for reader in ("kernel", "squashfuse"):
            with pytest.raises(RestoreRefused, match=reason):
                mounting.mount(made, path, str(at), reader=reader, userns=False)
            assert os.listdir(at) == []
            assert os.listdir(root) == []

    refused(
        "no folder of this machine",
        msgspec.structs.replace(manifest, roots=(Root(folder="0", path="/no/env", changed=1),)),
    )
    refused(
        "has no whiteouts",
        msgspec.structs.replace(manifest, has_whiteouts=False, roots=(Root(folder="0", path=str(root), removed=1),)),
    )
    two = (*manifest.roots, Root(folder="1", path=str(tmp_path / "made"), changed=1))
    refused("no overlay can be mounted", msgspec.structs.replace(manifest, roots=two))
    noise = tmp_path / "noise"
    noise.write_bytes(os.urandom(10_000))
    refused("mount", manifest, str(noise))


_HOLDER = """
import sys, time; sys.path[:0] = sys.argv[1].split(':')
import msgspec
from robust_run.mounts import namespace
from robust_run.snapshot.restore import mounting
from robust_run.snapshot.rules.types import SnapshotManifest
userns = namespace.enter_as_oneself()
manifest = msgspec.json.decode(sys.argv[2], type=SnapshotManifest)
mounted = mounting.mount(manifest, sys.argv[3], sys.argv[4], reader="squashfuse", userns=userns)
print(mounted._server.pid, open(manifest.roots[0].path + "/pkg/__init__.py").read().strip(), flush=True)
time.sleep(600)
"""


def test_when_who_mounted_is_killed_nothing_is_left(tmp_path: Path) -> None:
    if shutil.which("squashfuse_ll") is None:
        pytest.skip("squashfuse_ll is not installed")
    (tmp_path / "env").mkdir()
    (tmp_path / "at").mkdir()
    manifest, image = snapshot_of(tmp_path, str(tmp_path / "env"))
    argv = [
        sys.executable,
        "-c",
        _HOLDER,
        str(TREE),
        msgspec.json.encode(manifest).decode(),
        image,
        str(tmp_path / "at"),
    ]
    holder = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/")
    assert holder.stdout is not None
    said = holder.stdout.readline().split()
    holder.kill()
    errors = holder.communicate(timeout=60)[1]
    if "Refused" in errors:
        pytest.skip(errors.splitlines()[-1])
    assert said[1:] == ["V", "=", "1"], errors
    deadline_s = time.monotonic() + 60
    while Path(f"/proc/{said[0]}/exe").exists():
        assert time.monotonic() < deadline_s, "squashfuse outlives who mounted"
        time.sleep(0.01)
    assert os.listdir(tmp_path / "env") == []


def test_a_listing_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    captured = stage_of(tmp_path, "/opt/env", some_files)
    packed = pack(captured, str(tmp_path / "image.sqsh"))
    made = described(captured, packed)
    (tmp_path / "x").mkdir()
    (tmp_path / "x/listing.json").symlink_to(tmp_path / "made/stage/listing.json")
    with pytest.raises(SnapshotRefused, match="cannot be read"):
        extract.items_of(str(tmp_path / "x"), made)
    assert extract.items_of(str(tmp_path / "made/stage"), made) == list(captured.items)
    assert manifest_of().items == 1
