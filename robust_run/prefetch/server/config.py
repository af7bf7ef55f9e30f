"""What a server is told at its start, through its standard input, so that no token is seen in a command line; what it answers."""

from __future__ import annotations

import msgspec

from robust_run.prefetch.peers.types import PeerOptions
from robust_run.prefetch.rules.types import BlockMap, BlockRun, FetchLimits
from robust_run.store.turn_table import IMAGE
from robust_run.store.types import StoreOptions

#: Of the line that holds it: the largest block map, its JSON, and a long hot list.
LARGEST_CONFIG_BYTES = 192 << 20


class Background(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the rest of the image is fetched while no read asks for it."""

    width: int = 0
    """Requests at once; 0: not at all."""
    bytes_per_s: float | None = None
    """None: as fast as it goes."""


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How an image is served. The defaults suit a second launch; a first one wants a background."""

    what: str = IMAGE
    """What people call it; see `store.turn_table`."""
    limits: FetchLimits = FetchLimits()
    store_options: StoreOptions = StoreOptions()
    """For the origin: token, headers, certificates."""
    background: Background = Background()
    peers: PeerOptions | None = None
    """Other nodes of the job, with whom blocks are shared; None: there are none."""
    max_readahead_bytes: int = 128 << 10
    """What the kernel may read ahead. Small, or the record lists what no program needed (measured: 3.6 times too much)."""
    start_limit_s: float = 60.0
    """How long the beginning of the image may take to be read."""
    grace_s: float = 10.0
    """How long readers may finish once the keeper is gone."""
    alive_every_s: float = 5.0
    """How often the keeper asks the server whether it lives."""
    alive_limit_s: float = 20.0
    """How long it may take to say so. One that does not is replaced: it holds up all reads."""


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """All that a server needs. Descriptors are inherited from the keeper."""

    image_url: str
    block_map: BlockMap
    cache_root: str
    mount_folder: str
    device: int
    """Descriptor of /dev/fuse, mounted already."""
    shared: int
    """Descriptor of the memory that it shares with its keeper; see `shared`."""
    control: int
    """Descriptor of the socket that it listens on; see `control`."""
    mounted: int
    """Device number of the mount, so that no other mount on the same folder is taken away."""
    options: ServeOptions
    peer_socket: int = -1
    """Descriptor of the socket where peers ask; -1: there are none."""
    hot: tuple[BlockRun, ...]
    """What to prefetch at once."""


class ServerReady(msgspec.Struct, frozen=True):
    """What a server says, as the first line of JSON on its standard output, once it knows."""

    reason: str = ""
    """Why it cannot serve; "" where it can."""


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    """What a server says later, a line each: reads of the image fail, or wait for long."""

    sentence: str
    they_wait: bool = False


class Noted(msgspec.Struct, frozen=True, tag="noted"):
    """The same, for what is worth knowing and fails no read: a block that was damaged in the cache, a cache without room."""

    sentence: str
