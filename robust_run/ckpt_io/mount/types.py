"""The words of mounts."""

from __future__ import annotations

import msgspec

from robust_run.ckpt_io.rules.types import UNIT_BYTES, Codec


class MountOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is mounted where, and how. Given to the serving process as JSON."""

    url: str
    """A checkpoint, or a folder of checkpoints."""
    point: str
    """Absolute path of an empty folder."""
    also: tuple[str, ...] = ()
    """Further targets: for what is saved, and for reading where manifests name other hosts."""
    writable: bool = False
    """New files may be written; each is a checkpoint of one file once it is closed."""
    direct_io: bool = False
    """Past the page cache: about twice as fast for who reads once, and no sharing between readers."""
    allow_other: bool = False
    """Also for other users of this machine."""
    cache_bytes: int = 256 << 20
    unit_bytes: int = UNIT_BYTES
    """Of files that are written."""
    codec: Codec = "none"
    """Of files that are written."""
    refresh_s: float = 1.0
    """For so long, what was seen of a folder is believed."""
    read_ahead_bytes: int = 4 << 20
    """What the kernel asks for ahead, where we may set it (root) and not with `direct_io`."""
    lifeline: bool = False
    """End when standard input does: when the process that started us is gone."""


class ServingReady(msgspec.Struct, frozen=True, kw_only=True):
    """What the serving process says when it serves, as a line of JSON."""

    pid: int
    error: str = ""
    """Why it does not; empty if it does."""
