"""What all processes that write one checkpoint have to agree on. Plain data."""

from __future__ import annotations

import msgspec

from robust_run.ckpt_io.address import Address
from robust_run.ckpt_io.types import UNIT_BYTES, Codec


class SavePlan(msgspec.Struct, frozen=True, kw_only=True):
    """One save. Made once, by `begin_save`, and handed to every process that writes."""

    url: str
    """The checkpoint's folder on its primary target: an absolute path or a URL."""
    also: tuple[str, ...] = ()
    """Roots of the other targets."""
    uuid: str
    unit_bytes: int = UNIT_BYTES
    codec: Codec = "none"
    item_bytes: int = 1
    """Width of the elements that `zstd_shuffle` groups, of files that say nothing else."""
    durable: bool = True
    """All is synced before the manifest is written: a power loss after `commit` loses nothing."""

    @property
    def where(self) -> Address:
        """Where it is written to."""
        return Address(self.url, self.also)

    @property
    def folders(self) -> tuple[str, ...]:
        """The checkpoint's folder on each target."""
        return self.where.folders
