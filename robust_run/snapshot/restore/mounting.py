"""Restoring by mounting: the image somewhere, then an overlay of it over each captured root, at the same path.

Nothing is copied, so it takes milliseconds. Mount in a private mount namespace (`mounts.namespace`): the mounts then end with the
processes that see them. As root the kernel reads the image; else, and without loop devices, `squashfuse_ll`
does, which is killed when the thread that mounted ends.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from typing import Literal

import msgspec

from robust_run.mounts import overlay, squashfs, syscalls
from robust_run.mounts.errors import MountRefused
from robust_run.mounts.table import points_below
from robust_run.snapshot.errors import RestoreRefused
from robust_run.snapshot.rules import listing
from robust_run.snapshot.rules.types import SnapshotManifest

Reader = Literal["kernel", "squashfuse"]
_READY_S = 15.0


class MountedSnapshot:
    """A snapshot that is mounted."""

    def __init__(self, image_at: str, server: subprocess.Popen[bytes] | None) -> None:
        self.image_at = image_at
        self.targets: list[str] = []
        self._server = server

    def undo(self) -> None:
        """Take all mounts away at once; who has a file open keeps it. Never raises."""
        for target in (*reversed(self.targets), self.image_at):
            with suppress(OSError):
                syscalls.detach(target)
        self.targets.clear()
        if self._server is not None:
            try:
                self._server.wait(_READY_S)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait()


class WriteArea(msgspec.Struct, frozen=True, kw_only=True):
    """Where what is written to the environment goes; it needs no room before that."""

    folder: str
    """Of a local file system or memory, outside the roots. It is used by one restore only."""


def mount(
    manifest: SnapshotManifest,
    image: str,
    at: str,
    *,
    reader: Reader,
    userns: bool,
    scratch: WriteArea | None = None,
) -> MountedSnapshot:
    """Mount an image at an empty folder and over all its roots; without `scratch` the environment is read-only then.

    `userns`: whether this is a user namespace of our own. Raises `RestoreRefused`, after which nothing is mounted.
    """
    _check(manifest)
    mounted = MountedSnapshot(at, _mount_image(image, at, reader))
    try:
        lay_over(manifest, at, mounted, userns=userns, scratch=scratch)
    except BaseException:
        mounted.undo()
        raise
    return mounted


def lay_over(
    manifest: SnapshotManifest, at: str, mounted: MountedSnapshot, *, userns: bool, scratch: WriteArea | None = None
) -> None:
    """Mount an overlay of what lies at a folder over each root. Adds them to `mounted`; raises `RestoreRefused`."""
    _check(manifest)
    if not os.path.isfile(os.path.join(at, listing.NAME)):
        raise RestoreRefused(f"{at}: there is no {listing.NAME} in the image")
    for root in manifest.roots:
        if not root.changed and not root.removed:
            continue
        layers = [os.path.join(at, f"r{root.folder}")] if root.changed else []
        layers += [os.path.join(at, f"w{root.folder}")] if root.removed else []
        upper = work = None
        if scratch is not None:
            upper, work = (os.path.join(scratch.folder, f"{name}{root.folder}") for name in ("upper", "work"))
            os.makedirs(upper, exist_ok=True)
            os.makedirs(work, exist_ok=True)
        try:
            overlay.mount(root.path, [*layers, root.path], upper=upper, work=work, userns=userns)
        except MountRefused as error:
            raise RestoreRefused(str(error)) from error
        mounted.targets.append(root.path)


def _check(manifest: SnapshotManifest) -> None:
    for root in manifest.roots:
        if root.removed and not manifest.has_whiteouts:
            raise RestoreRefused(f"{root.path}: {root.removed} names were removed, and the image has no whiteouts")
    reason = not_the_same_path(manifest)
    if reason:
        raise RestoreRefused(reason)


def not_the_same_path(manifest: SnapshotManifest) -> str:
    """Return why the snapshot cannot be where it was captured; "": it can."""
    for root in manifest.roots:
        if not os.path.isdir(root.path) or os.path.realpath(root.path) != root.path:
            return f"{root.path} is no folder of this machine"
        below = points_below(root.path)
        if below:
            return f"{below[0]} is mounted in {root.path} and would be hidden"
    return ""


def _mount_image(image: str, at: str, reader: Reader) -> subprocess.Popen[bytes] | None:
    try:
        if reader == "squashfuse":
            tool = squashfs.squashfuse_in(os.environ)
            if tool is None:
                raise RestoreRefused("squashfuse_ll is not installed: install squashfuse")
            if not os.access("/dev/fuse", os.R_OK | os.W_OK):
                raise RestoreRefused("/dev/fuse is not there for us: have the container given the device")
            return squashfs.by_squashfuse(tool, image, at, limit_s=_READY_S)
        with suppress(OSError):  # then mount(8) says why, or knows a way that we do not
            squashfs.by_loop(image, at)
            return None
        squashfs.by_kernel(image, at, limit_s=_READY_S)
    except MountRefused as error:
        raise RestoreRefused(str(error)) from error
    return None
