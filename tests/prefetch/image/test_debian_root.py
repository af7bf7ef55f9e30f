"""A real root file system, and a layer above it with all that is rare: every entry, as umoci unpacks the same image."""

from __future__ import annotations

import os
import stat
import subprocess
import tarfile
import time
from collections import Counter
from pathlib import Path, PurePath

import pytest

from robust_run.prefetch.image import build
from robust_run.prefetch.image.description import DESCRIPTION
from robust_run.prefetch.image.losses import LATEST_S, Loss
from tests.prefetch.image.entries import TreeEntry, entries_of
from tests.prefetch.image.tools import TAG, Layer, layout, needs

#: Few, and among them setuid and setgid programs, owners other than root, hard links, links of folders, sticky folders.
PACKAGES = "base-files,base-passwd,passwd,login,perl-base"
NO_MIRROR = (
    "Temporary failure",
    "Could not resolve",
    "Could not connect",
    "Unable to connect",
    "Connection",
    "Failed to fetch",
)

DEEP = "srv/" + "deep/" * 40 + "f" * 200


def debian_root(folder: Path) -> Path:
    """Return a tar of a root that mmdebstrap made of Debian's packages; skip a test where it cannot have them."""
    needs("mmdebstrap")
    made = folder / "root.tar"
    argv = ["mmdebstrap", "--variant=extract", "--mode=root", f"--include={PACKAGES}", "bookworm", str(made)]
    mirror = "deb http://deb.debian.org/debian bookworm main"
    done = subprocess.run([*argv, mirror], capture_output=True, text=True, timeout=600, check=False)
    if done.returncode and any(said in done.stderr for said in NO_MIRROR):
        pytest.skip("no mirror of Debian answers mmdebstrap")
    assert not done.returncode, done.stderr[-2000:]
    return made


def rare_things() -> Layer:
    """Return a layer that changes the root below it in all the ways that the table in docs/images.md knows of."""
    layer = Layer()
    layer.file("usr/share/doc/passwd", b"a file now").file("usr/share/doc/passwd/.wh.copyright").file("etc/.wh.motd")
    layer.file("usr/share/base-files/.wh..wh..opq").entry("usr/share/base-files/new", b"new", size=3, mtime=1e9)
    layer.folder("srv").folder("var/mail", 0o2775).folder("srv/shared", 0o1777).folder("srv/closed", 0o000).folder(
        "srv/drop", 0o3730
    )
    layer.file("srv/secret", b"secret", 0o000).file("srv/write-only", b"x", 0o200).file("srv/su", b"x", 0o4711)
    layer.entry("srv/other", b"x", size=1, uid=1000, gid=100, mode=0o6755)
    layer.entry("srv/other-folder", type=tarfile.DIRTYPE, uid=33, gid=33, mode=0o2775)
    layer.entry("srv/other-link", type=tarfile.SYMTYPE, linkname="nowhere/at all", uid=33, gid=33)
    layer.entry("srv/pipe", type=tarfile.FIFOTYPE, mode=0o620).hard_link("srv/pipe-again", "srv/pipe")
    layer.entry("srv/block", type=tarfile.BLKTYPE, devmajor=7, devminor=200, mode=0o660)
    layer.entry("srv/char", type=tarfile.CHRTYPE, devmajor=1, devminor=5).hard_link("srv/char-again", "srv/char")
    layer.entry("srv/old", b"x", size=1, mtime=-86400).entry("srv/late", b"x", size=1, mtime=LATEST_S + 5)
    attributes = {
        "SCHILY.xattr.user.note": "kept by umoci",
        "SCHILY.xattr.security.capability": "\1\0\0\2\0\40" + "\0" * 14,
    }
    layer.entry("srv/attributes", b"x", size=1, mode=0o755, pax_headers=attributes)
    layer.file("srv/not utf-8 \udcff\udcfe", b"x").file('srv/"quoted" \\ $(x)', b"x", 0o4755).file(
        "srv/" + "n" * 255, b"x"
    )
    layer.file(DEEP, b"x").file("usr/bin/perl-again", b"x").hard_link("srv/perl", "usr/bin/perl")
    return layer


def in_image(unpacked: TreeEntry) -> TreeEntry:
    """Return what docs/images.md says that becomes of an entry."""
    mode = unpacked.mode
    if unpacked.kind != stat.S_IFDIR:
        mode &= ~(stat.S_ISUID if unpacked.owner[0] else 0) & ~(stat.S_ISGID if unpacked.owner[1] else 0)
    time_s = max(0, min(unpacked.time_s, LATEST_S))
    return unpacked._replace(mode=mode, owner=(0, 0), time_s=time_s, attributes=())


def named_of(unpacked: dict[str, TreeEntry]) -> Counter[str]:
    """Return how many entries change in which way."""
    kept = [entry for entry in unpacked.values() if not entry.is_device]
    return +Counter(
        owners=sum(entry.owner != (0, 0) for entry in kept),
        setuid=sum(in_image(entry).mode != entry.mode for entry in kept),
        times=sum(in_image(entry).time_s != entry.time_s for entry in kept),
        attributes=sum(bool(entry.attributes) for entry in kept),
        devices=sum(entry.is_device for entry in unpacked.values()),
    )


def test_every_entry_of_a_debian_root_is_as_umoci_unpacks_it_or_is_named(tmp_path: Path) -> None:
    needs("umoci", "mksquashfs", "unsquashfs")
    if os.geteuid() != 0:
        pytest.skip("only root may give files away")
    place = layout(tmp_path, debian_root(tmp_path).read_bytes(), rare_things())
    began_s = int(time.time())
    subprocess.run(["umoci", "unpack", "--image", f"{place}:{TAG}", str(tmp_path / "bundle")], check=True, timeout=600)
    unpacked = entries_of(tmp_path / "bundle/rootfs")
    # umoci leaves its own time to what no layer names, and to the root.
    no_layers_time = {path for path, entry in unpacked.items() if began_s <= entry.time_s <= time.time()}
    assert no_layers_time <= {".", *(str(folder) for folder in PurePath(DEEP).parents)}
    lost: list[Loss] = []
    build.build(str(place), str(tmp_path / "i.sqsh"), build.BuildOptions(machine="x86_64"), lost=lost.extend)
    subprocess.run(["unsquashfs", "-q", "-n", "-d", tmp_path / "out", tmp_path / "i.sqsh"], check=True, timeout=600)
    ours = entries_of(tmp_path / "out")
    assert ours.pop(DESCRIPTION).kind == stat.S_IFREG
    wanted = {path: in_image(entry) for path, entry in unpacked.items() if not entry.is_device}
    for path in no_layers_time:
        wanted[path] = wanted[path]._replace(time_s=ours[path].time_s)
    assert len(wanted) > 2000, "it is a real root"
    assert {path for path in wanted if wanted[path].same}, "it has hard links"
    assert {path: ours.get(path) for path in wanted if ours.get(path) != wanted[path]} == {}
    assert ours.keys() - wanted.keys() == set()
    named = named_of(unpacked)
    assert named.keys() == {"owners", "setuid", "times", "attributes", "devices"}, "all of the table happened"
    assert Counter({loss.kind: loss.count for loss in lost}) == named
