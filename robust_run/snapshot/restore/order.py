"""What the process is told that puts a snapshot into a namespace, and keeps it there."""

from __future__ import annotations

from typing import Any

import msgspec

from robust_run.snapshot.restore.ladder import NAMESPACED, Rung
from robust_run.snapshot.restore.unpacked import Folder
from robust_run.snapshot.types import Manifest

LARGEST_ORDER_BYTES = 256 << 20


class Order(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that is needed to make a place in which a snapshot is restored."""

    manifest: Manifest
    image: str
    """Path of the verified image; its URL if it is lazy."""
    image_url: str
    """For messages."""
    stage: str
    """An empty folder of ours, which is mounted on in the private namespace only."""
    unpack_in: tuple[Folder, ...] = ()
    """Where images may be unpacked."""
    lazy: msgspec.Raw = msgspec.Raw(b"null")
    """An `InsidePlan` of `prefetch`, if the image is shown by a block server; read only then, as that imports much."""
    rungs: tuple[Rung, ...] = NAMESPACED
    """Those that may be used."""
    writable: bool = True
    """Whether workers may write to the environment; what they write is in memory and ends with the job."""
    limit_s: float = 600.0
    """How long all of it may take."""
    binds: tuple[Any, ...] = ()
    """Nothing of the host is bound: all of it is seen."""

    @property
    def is_lazy(self) -> bool:
        """Whether the image is not here yet."""
        return bytes(self.lazy) != b"null"
