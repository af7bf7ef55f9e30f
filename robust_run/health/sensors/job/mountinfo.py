"""Reads what is mounted where, as a process sees it (/proc/PID/mountinfo), and which file system a path is on."""

from __future__ import annotations

import os
import re

import msgspec

from robust_run.health.sensors.files import read_text
from robust_run.health.sensors.types import SensorWorld

MOST_BYTES = 4 << 20
_ESCAPED = re.compile(r"\\([0-7]{3})")
#: What answers from another machine, and so may not answer at all.
NETWORK_TYPES = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "9p", "afs", "orangefs")
)
#: Programs that serve files over FUSE from another machine.
_NETWORK_FUSE = re.compile(
    r"^fuse\.(?:sshfs|s3fs|gcsfuse|glusterfs|ceph|juicefs|alluxio|hdfs|mfs|rclone|goofys|blobfuse|seaweedfs)"
)


class MountinfoLine(msgspec.Struct, frozen=True, kw_only=True):
    """One mounted file system."""

    where: str
    kind: str
    source: str
    device: str
    """`major:minor`."""
    read_only: bool
    root: str = "/"
    options: str = ""

    @property
    def is_remote(self) -> bool:
        """Whether another machine serves it."""
        return self.kind in NETWORK_TYPES or _NETWORK_FUSE.match(self.kind) is not None


def read(world: SensorWorld) -> tuple[MountinfoLine, ...]:
    """Return all mounts of the process that is watched. Raises OSError."""
    return parse(read_text(f"{world.process}/mountinfo", MOST_BYTES))


def parse(text: str) -> tuple[MountinfoLine, ...]:
    """Return the mounts in a mountinfo file; lines in no known form are left out."""
    mounts = []
    for line in text.split("\n"):
        left, separator, right = line.partition(" - ")
        front, back = left.split(" "), right.split(" ")
        if not separator or len(front) < 6 or len(back) < 3:
            continue
        options = front[5].split(",") + back[2].split(",")
        mounts.append(
            MountinfoLine(
                where=_plain(front[4]),
                kind=back[0],
                source=_plain(back[1]),
                device=front[2],
                read_only="ro" in options,
                root=_plain(front[3]),
                options=back[2],
            )
        )
    return tuple(mounts)


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match.group(1), 8)), text)


def mount_of(path: str, mounts: tuple[MountinfoLine, ...]) -> MountinfoLine | None:
    """Return the mount that a path lies on, going by its name alone: no file system is asked, so none can hang."""
    plain = os.path.normpath(path)
    best: MountinfoLine | None = None
    for mount in mounts:  # of two on one place the later one is on top
        inside = mount.where in ("/", plain) or plain.startswith(mount.where + "/")
        if inside and (best is None or len(mount.where) >= len(best.where)):
            best = mount
    return best
