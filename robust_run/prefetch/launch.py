"""What one launch does with an image: which blocks are fetched when, what is recorded. `plan` is pure, `prepare` gathers facts.

first launch     nothing is known: everything is downloaded 16-wide, at once, and what the start reads is recorded
later launches   the hot blocks come 32-wide in the order of their first touch while the program starts; the rest only after
                 the window, and slowly: a download beside the start would cost it more than it brings
all is here      nothing is fetched, and nothing to record. An image of this machine is mounted as it is; blocks in the cache come
                 through the block server all the same: it verifies what it reads of them, and a mount would not
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Literal

import msgspec

from robust_run.errors import UserError
from robust_run.mounts import table
from robust_run.own_folder import stranger_on_the_way
from robust_run.prefetch import belonging
from robust_run.prefetch.cache import Cache
from robust_run.prefetch.errors import BlockMapRefused, CacheRefused
from robust_run.prefetch.hotstore import HotStore
from robust_run.prefetch.maps import fetch_map
from robust_run.prefetch.peers.types import PeerOptions
from robust_run.prefetch.record import hot_key
from robust_run.prefetch.room import shortage
from robust_run.prefetch.rules import hotlist
from robust_run.prefetch.rules.types import BlockMap, BlockRun, FetchLimits, HotKey, HotList
from robust_run.prefetch.server.config import Background, ServeOptions
from robust_run.store.opening import local_path
from robust_run.store.types import StoreOptions

Way = Literal["local", "hot", "first", "lazy"]
"""local: nothing is fetched · hot: by the list · first: everything, to make a list · lazy: what is read, to make a list"""

FIRST_WIDTH, HOT_WIDTH = 16, 32
#: After the window of a later launch.
REST = Background(width=4, bytes_per_s=64e6)
RECORD_WINDOW_S = 120.0
#: What else processors run, by `uname -m`.
_ALSO_RUN = {"x86_64": ("i386",), "i686": ("i386",), "aarch64": ("arm",), "armv7l": ("arm",), "armv8l": ("arm",)}
#: File systems that other machines serve: an image on them is worth a cache.
_REMOTE = frozenset(
    "nfs nfs4 lustre cifs smb3 ceph gpfs beegfs wekafs 9p virtiofs afs orangefs panfs glusterfs".split()
)


class LaunchFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known before a launch."""

    block_map: BlockMap
    remote: bool
    """The image is at an URL or on another machine's file system."""
    have: bytes = b""
    """One byte per block, not 0 where it is in the cache; b"": nothing is."""
    hot: HotList | None = None
    free_bytes: int | None = None
    """On the cache's disk; None: not known."""


class LaunchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is done."""

    way: Way
    why: str
    """In a few words, for people."""
    served: bool
    """Whether a block server is needed."""
    hot: tuple[BlockRun, ...] = ()
    background: Background = Background()
    """From the beginning."""
    after_window: Background = Background()
    record: bool = False
    """Whether what is read makes a list."""
    hot_bytes: int = 0
    """Of the list, in blocks; what is here already included."""
    fetch_bytes: int = 0
    """Of the hot blocks that are not here yet."""
    unkept_bytes: int = 0
    """What is missing of an image that the cache has no room for; 0: it has."""


def plan(facts: LaunchFacts, limits: FetchLimits) -> LaunchPlan:
    """Return what a launch does."""
    block_map = facts.block_map
    missing = block_map.blocks - sum(map(bool, facts.have))
    if not facts.remote:
        return LaunchPlan(way="local", why="the image is a file of this machine", served=False)
    if not missing:
        return LaunchPlan(way="local", why="all of the image is in the cache", served=True)
    needed = missing * block_map.block_bytes + limits.keep_free_bytes
    fits = facts.free_bytes is None or facts.free_bytes >= needed
    missing_bytes = 0 if fits else missing * block_map.block_bytes
    if facts.hot is None or not facts.hot.ranges:
        if fits:
            background = Background(width=min(FIRST_WIDTH, limits.width))
            return LaunchPlan(
                way="first", why="no launch like this was recorded yet", served=True, background=background, record=True
            )
        why = f"no launch like this was recorded yet, and the disk has no room for {needed >> 20} MiB"
        return LaunchPlan(way="lazy", why=why, served=True, record=True, unkept_bytes=missing_bytes)
    room = None if fits else max(0, (facts.free_bytes or 0) - limits.keep_free_bytes)
    have = facts.have
    runs = hotlist.plan(facts.hot, block_map, lambda block: block < len(have) and bool(have[block]), limit_bytes=room)
    return LaunchPlan(
        way="hot",
        why=f"{facts.hot.launches} launch{'es were' if facts.hot.launches > 1 else ' was'} recorded",
        served=True,
        hot=tuple(runs),
        after_window=REST if fits else Background(),
        record=True,
        unkept_bytes=missing_bytes,
        hot_bytes=sum(block_map.block_size_bytes(block) for block in hotlist.hot_blocks(facts.hot, block_map)),
        fetch_bytes=sum(
            block_map.block_size_bytes(block) for run in runs for block in range(run.start, run.start + run.count)
        ),
    )


def is_remote(image_url: str, mounts: str) -> bool:
    """Whether an image is worth a cache of its blocks. `mounts`: the text of /proc/self/mountinfo. Pure, for absolute paths."""
    if "://" in image_url and not image_url.startswith("file://"):
        return True
    found = filter(None, map(table.parse, mounts.split("\n")))
    mount = table.mount_of(image_url.removeprefix("file://"), found)
    return mount is not None and (mount.kind in _REMOTE or mount.kind.startswith("fuse."))


def is_remote_here(url: str) -> bool:
    """Whether an image, or a store of images, is worth a cache of its blocks on this machine. `url`: a path or a URL."""
    path = local_path(url) if url.startswith("file://") else url
    with open(table.TABLE, encoding="utf-8", errors="surrogateescape") as file:
        return is_remote(path if "://" in path else os.path.realpath(path), file.read())


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a launch needs to know of its image."""

    image_url: str
    cache_root: str
    block_map: BlockMap
    key: HotKey
    hot: HotList | None
    plan: LaunchPlan
    options: ServeOptions
    problems: tuple[str, ...]
    """What was wrong and passed over, a sentence each."""

    @property
    def store(self) -> HotStore:
        """Where its hot lists lie."""
        return HotStore(self.image_url, self.cache_root)


def default_cache(env: Callable[[str], str | None]) -> str:
    """Return the folder for blocks where none was named: ROBUST_IMAGE_CACHE, else one of this user in /var/tmp.

    Not in the home folder: that is often on a shared file system, and blocks must be on a disk of this node.
    """
    return env("ROBUST_IMAGE_CACHE") or f"/var/tmp/robust-run-{os.geteuid()}"  # noqa: S108 - see `own_folder`


def own_folder(path: str) -> str:
    """Make the folder for blocks where it is not there, and return its absolute path.

    Raises `CacheRefused` if it is not ours, or others can write it: in /var/tmp, another user may have made it before us.
    """
    path = os.path.abspath(path)
    if stranger := stranger_on_the_way(path):
        raise CacheRefused(f"{stranger.path}: {stranger.why}: name another --image-cache folder")
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        found = os.stat(path)
    except OSError as error:
        raise CacheRefused(f"{path}: {error.strerror}: name another --image-cache folder") from error
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise CacheRefused(f"{path}: it is not a folder that only we can write: name another --image-cache folder")
    return path


def refuse_hopeless(image_url: str, block_map: BlockMap, machine: str) -> None:
    """Raise `BlockMapRefused` for an image of another architecture, and for one that would be shown in a folder of the system."""
    if block_map.machine not in (None, machine, *_ALSO_RUN.get(machine, ())):
        raise BlockMapRefused(
            f"{image_url}: it was made for {block_map.machine}, and this machine is {machine}: use an image for {machine}"
        )
    for path in (block_map.mount_at, block_map.mount_at and os.path.realpath(block_map.mount_at)):
        if path and (reason := belonging.why_not(path)):
            raise BlockMapRefused(
                f"{image_url}: its block map has it shown at {path}: {reason}; build it with another --mount-at"
            )


def refuse_cut_short(path: str, block_map: BlockMap) -> None:
    """Raise `BlockMapRefused` for an image file that ends before its block map does: what mounts it would not say that."""
    with contextlib.suppress(OSError):  # it is said later what cannot be read
        wanted, found = block_map.offset_bytes + block_map.size_bytes, os.stat(path).st_size
        if found < wanted:
            raise BlockMapRefused(
                f"{path}: the file has {found} bytes, its block map is of {wanted}: it was cut short; copy it again"
            )


def prepare(
    image_url: str,
    cache_root: str,
    launch: str,
    machine: str,
    *,
    limits: FetchLimits | None = None,
    store_options: StoreOptions | None = None,
    peers: PeerOptions | None = None,
) -> Prepared:
    """Look at an image, the cache and the hot list, and return what a launch does with them. Starts nothing.

    Raises `BlockMapRefused`, `StoreError` where there is no usable map, `CacheRefused`, `UserError`.
    """
    limits = limits or FetchLimits()
    if not image_url:
        raise UserError("--image names no image: give the path or URL of one")
    if image_url.startswith("file://"):
        image_url = local_path(image_url)
    image_url = image_url if "://" in image_url else os.path.abspath(image_url)
    cache_root = own_folder(cache_root)
    block_map, problems = fetch_map(image_url, cache_root, store_options or StoreOptions())
    refuse_hopeless(image_url, block_map, machine)
    if "://" not in image_url:
        refuse_cut_short(image_url, block_map)
    key = hot_key(block_map, launch, machine)
    remote = is_remote_here(image_url)
    hot, have, free_bytes = None, b"", None
    if remote:
        hot, more = HotStore(image_url, cache_root).load(key)
        problems = (*problems, *more)
        cache = Cache(cache_root, block_map)
        have, free_bytes = bytes(cache.scan()), cache.free_bytes()
        cache.close()
    made = plan(LaunchFacts(block_map=block_map, remote=remote, have=have, hot=hot, free_bytes=free_bytes), limits)
    if made.unkept_bytes and free_bytes is not None:
        said = shortage(cache_root, free_bytes, limits.keep_free_bytes, made.unkept_bytes)
        problems = (*problems, said)
    options = ServeOptions(
        limits=limits, store_options=store_options or StoreOptions(), background=made.background, peers=peers
    )
    return Prepared(
        image_url=image_url,
        cache_root=cache_root,
        block_map=block_map,
        key=key,
        hot=hot,
        plan=made,
        options=options,
        problems=problems,
    )
