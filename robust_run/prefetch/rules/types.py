"""The words of lazy images: blocks and their map, touches and hot lists, runs to fetch, what a server says of itself."""

from __future__ import annotations

from enum import IntEnum
from typing import Literal

import msgspec

from robust_run.prefetch.peers.types import PeerCounts

#: What is verified and kept at once is at most so much; smaller in small images, see `blockmap.block_bytes_for`.
BLOCK_BYTES = 1 << 20
#: What is fetched at once, for a read and of a hot list: fewest requests for few bytes too many (256 KiB: 3x the requests).
STRETCH_BYTES = 1 << 20
#: What a touch is recorded in: the kernel's read-ahead. Finer than a block, so that a list survives another block size.
QUANTUM_BYTES = 128 << 10


class Priority(IntEnum):
    """Why a block is wanted; the smaller goes first."""

    DEMAND = 0
    """A read is waiting for it."""
    HOT = 1
    """An earlier launch read it."""
    BACKGROUND = 2
    """No read asked; it is part of the image."""


class BlockMap(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the bytes of an image must be, block by block. Lies beside it as `<image>.blocks.json`; see `blockmap`."""

    schema: Literal["robust-blocks"] = "robust-blocks"
    version: int = 1
    size_bytes: int
    """Length of the image: of the squashfs, not of the file around it."""
    offset_bytes: int = 0
    """Where in the stored file the image begins: 0 for squashfs, the partition's offset in a SIF."""
    block_bytes: int = BLOCK_BYTES
    """A power of two; the last block may be shorter."""
    sha256: str
    """Of the image's bytes, in lower-case hex. For people and `verify`; blocks are judged by `digests`."""
    digests: bytes
    """16 bytes per block: the beginning of its sha256. In JSON as base64."""
    mount_at: str | None = None
    """The folder where an image of an environment belongs; None: anywhere."""
    machine: str | None = None
    """For which architecture it is, as `uname -m` prints it; None: its format does not tell."""

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return -(-self.size_bytes // self.block_bytes)

    def block_size_bytes(self, index: int) -> int:
        """Return the length of a block: `block_bytes`, but for the last."""
        return min(self.block_bytes, self.size_bytes - index * self.block_bytes)


class BlockRun(msgspec.Struct, frozen=True, array_like=True):
    """Neighbouring blocks, fetched with one request."""

    start: int
    count: int
    first_touch_ms: int = 0
    """When the first of them was first read, in milliseconds from the mount."""


class Touch(msgspec.Struct, frozen=True, array_like=True):
    """One quantum of the image that was read."""

    quantum: int
    """Offset // `QUANTUM_BYTES`."""
    first_ms: int
    """Milliseconds from the mount to the first read."""


class HotKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """For which starts a hot list holds."""

    image: str
    """`blockmap.identity` of the image."""
    launch: str
    """Fingerprint of what is launched, in hex."""
    machine: str
    """Architecture, as `uname -m` prints it."""


class HotRange(msgspec.Struct, frozen=True, array_like=True):
    """Neighbouring quanta that were first read at about the same time."""

    start: int
    count: int
    first_touch_ms: int
    weight: float
    """1.0: read in the latest launch; halved for each launch since that did not."""


class HotList(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What starts of a program read of an image, merged over ranks and launches; see `hotlist`."""

    schema: Literal["robust-hot"] = "robust-hot"
    version: int = 1
    key: HotKey
    quantum_bytes: int = QUANTUM_BYTES
    window_s: float
    """How long the latest recording ran, in seconds from the mount."""
    launches: int
    """How many launches have been merged."""
    latest: str = ""
    """Which launch was the last, so that what several nodes read of it counts once; "": it was not said."""
    ranges: tuple[HotRange, ...]


class FetchLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How hard to fetch. The defaults suit an object store."""

    width: int = 32
    """Requests at once for hot and background blocks together."""
    demand_width: int = 8
    """More requests at once that only demands may use."""
    run_bytes: int = 2 << 20
    """The most that one request asks for."""
    first_width: int = 16
    """How many requests prefetching begins with; each that came allows one more, up to `width`."""
    first_small: int = 32
    """How many of its first requests are for one stretch: with all of `width` at once the link is shared by so many that what
    is needed first comes late (50 ms, 25 MB/s each, 200 MB/s together: 0.17 s instead of 0.36 s of waiting in a start)."""
    stretch_bytes: int = STRETCH_BYTES
    """What is fetched for a read: the blocks around it up to multiples of this, where they are missing too."""
    aligned: bool = False
    """Whether requests end where multiples of `run_bytes` do: nodes that share blocks must ask for the same ones."""
    read_limit_s: float = 60.0
    """After this a read that could not be served ends with EIO."""
    request_limit_s: float = 30.0
    """After this a request is called off and made again, however alive it seems."""
    stall_s: float = 5.0
    """Seconds without a byte, or without a connection, after which a request is called off."""
    hedge_after_s: float = 2.0
    """A block that is demanded and whose request is older than this is asked for a second time."""
    back_off_s: float = 5.0
    """The longest that a source which fails again and again is left alone."""
    wrong_s: float = 30.0
    """How long a source that sent a wrong block is left alone while there are others."""
    tries: int = 4
    """How often a source may fail for good (wrong bytes, not found) at one block before the block is given up."""
    refusal_s: float = 10.0
    """How long a read waits at least for a block that all who have it refuse (no access), if they gave others before."""
    keep_free_bytes: int = 256 << 20
    """Space on the cache's disk that is left to others; below it blocks are passed through and not kept."""


class SourceCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What one source has done so far."""

    name: str
    requests: int = 0
    """Requests that gave bytes, right or wrong."""
    good_bytes: int = 0
    wrong_blocks: int = 0
    failures: int = 0
    """Requests that gave none."""


class FetchCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What a block server has fetched so far."""

    reads: int
    """Reads by the kernel since this server started."""
    waited: int
    """Those of them that had to wait for a block."""
    waited_s: float
    """How long they waited, together."""
    failed: int
    """Those that ended with EIO."""
    hot_total: int
    """Blocks that were given to prefetch since this server started."""
    hot_left: int
    """Those still to be fetched."""
    given_up: int
    """Blocks that were to be prefetched and could not be."""
    background: bool
    """Whether the rest of the image may be fetched."""
    passing_through: bool
    """The cache's disk is full: blocks are fetched but not kept."""
    repaired: int = 0
    """Blocks in the cache that were damaged, and were fetched again."""
    sources: tuple[SourceCounts, ...]
    problems: tuple[str, ...]
    """The latest things that went wrong, oldest first, for people."""


class Status(FetchCounts, frozen=True, kw_only=True):
    """What a block server says of itself."""

    pid: int
    image: str
    """`blockmap.identity` of what it serves."""
    blocks: int
    present: int
    """Blocks that are in the cache."""
    window_open: bool
    """Whether touches are still recorded."""
    peers: PeerCounts | None = None
    """None: this server shares with no peer."""
