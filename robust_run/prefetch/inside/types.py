"""The words of running inside an image: what is bound into it, and the plan of it. What became of it: `mounts.holding`."""

from __future__ import annotations

import msgspec

from robust_run.prefetch.rules.mount_ladder import LADDER, Rung
from robust_run.prefetch.rules.types import BlockMap, BlockRun
from robust_run.prefetch.server.config import ServeOptions

#: Folder of the cache on which a place is made, in its own namespace only, and where in it the image is as it is.
STAGE, IMAGE = "stage", "tree"


class Bind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file or folder of the host that programs in the image see."""

    source: str
    """Absolute path on the host."""
    destination: str
    """Absolute path in the image. It need not exist there."""
    read_only: bool = False
    optional: bool = False
    """Leave it out where the host has none."""


class LaidBlocks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How changes to an image are shown that are not on this node yet. See `InsidePlan` for the names."""

    image_url: str
    block_map: BlockMap
    cache_root: str
    hot: tuple[BlockRun, ...] = ()
    serve_options: ServeOptions = ServeOptions()


class Laid(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes to an image that are seen as if they were part of it, in a squashfs file."""

    path: str
    """Of one on this node, verified; "": `blocks` says where it is."""
    blocks: LaidBlocks | None = None
    layers: tuple[str, ...]
    """Folders in it, the uppermost first. Each is the image's tree, as far as something of it is changed, or removed."""


class InsidePlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that is needed to make a place for workers. See `binds.standard` for what is usually bound."""

    image_url: str
    """Path or URL of the image file."""
    block_map: BlockMap
    cache_root: str
    """Where blocks are kept. A folder `stage` in it is mounted on, in the private namespace only."""
    binds: tuple[Bind, ...] = ()
    writable: str | None = None
    """None: the image is read-only. "memory": changes live in memory and end with the job. A folder: they are kept there."""
    laid: Laid | None = None
    """What a set-up changed in the image. What workers write lies above it."""
    hot: tuple[BlockRun, ...] = ()
    serve_options: ServeOptions = ServeOptions()
    served: bool = True
    """False: an image file of this machine is mounted as it is: no block server, nothing is recorded."""
    rungs: tuple[Rung, ...] = LADDER
    """Those that may be used."""
    limit_s: float = 300.0
    """How long all of it may take."""
