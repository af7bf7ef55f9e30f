"""What can be said about an image without running it: its kind, its map, what of it is cached, its hot lists."""

from __future__ import annotations

import os

import msgspec

from robust_run.errors import UserError
from robust_run.prefetch import blockmap
from robust_run.prefetch.cache import Cache
from robust_run.prefetch.errors import HotListRefused
from robust_run.prefetch.fetching.sources import split
from robust_run.prefetch.image import losses, tree
from robust_run.prefetch.image.identify import identify
from robust_run.prefetch.image.losses import Loss
from robust_run.prefetch.maps import fetch_map
from robust_run.prefetch.rules import hotlist, sorting
from robust_run.prefetch.rules.types import HotList
from robust_run.store.errors import StoreError
from robust_run.store.opening import open_store
from robust_run.store.types import StoreOptions

#: Lists of one image that are looked at.
_MOST_LISTS = 1000


class InspectedList(msgspec.Struct, frozen=True, kw_only=True):
    """A hot list."""

    launch: str
    machine: str
    launches: int
    hot_bytes: int
    ranges: int
    window_s: float


class Inspected(msgspec.Struct, frozen=True, kw_only=True):
    """An image."""

    image: str
    kind: str | None
    """squashfs or sif; None where it is not on this machine."""
    compression: str | None
    identity: str
    size_bytes: int
    block_bytes: int
    blocks: int
    cached_blocks: int
    mount_at: str | None
    lists: tuple[InspectedList, ...]
    lost: tuple[Loss, ...]
    """What it does not keep of what it was built of, as far as that lies beside it."""
    problems: tuple[str, ...]


def inspect(image: str, cache_root: str) -> Inspected:
    """Look at an image, by path or URL. Raises `ImageError`, `StoreError`, `UserError`."""
    block_map, problems = fetch_map(image, cache_root, StoreOptions())
    identity = blockmap.identity(block_map)
    try:
        found = identify(image) if "://" not in image else None
    except OSError as error:
        raise UserError(f"{image}: {error.strerror}") from error
    cached = 0
    if os.path.isdir(os.path.join(cache_root, identity)):
        cache = Cache(cache_root, block_map)
        cached = cache.present()
        cache.close()
    lists, more = lists_of(image, cache_root, identity)
    return Inspected(
        image=image,
        kind=found.kind if found else None,
        compression=found.squashfs.compression if found and found.squashfs else None,
        identity=identity,
        size_bytes=block_map.size_bytes,
        block_bytes=block_map.block_bytes,
        blocks=block_map.blocks,
        cached_blocks=cached,
        mount_at=block_map.mount_at,
        lists=tuple(
            InspectedList(
                launch=each.key.launch,
                machine=each.key.machine,
                launches=each.launches,
                hot_bytes=hotlist.hot_bytes(each),
                ranges=len(each.ranges),
                window_s=each.window_s,
            )
            for each in lists
        ),
        lost=_lost(image, block_map.sha256),
        problems=(*problems, *more),
    )


def _lost(image: str, sha256: str) -> tuple[Loss, ...]:
    folder, name = split(losses.sidecar(image))
    try:
        found = losses.decode(open_store(folder).read_all(name, losses.LARGEST_BYTES), sha256)
    except StoreError:
        return ()  # it lost nothing, or was built by others
    return found.lost if found is not None else ()


def lists_of(image: str, cache_root: str, identity: str) -> tuple[list[HotList], tuple[str, ...]]:
    """Return the hot lists of an image, the one of the most launches first, and what was wrong with others."""
    found: dict[tuple[str, str], HotList] = {}
    problems: list[str] = []
    places = [os.path.join(cache_root, "hot")]
    if "?" not in image:
        places.insert(0, f"{image}.hot")
    for place in places:
        try:
            store = open_store(place)
            names = [entry.name for entry in store.list() if entry.name.endswith(".json") and not entry.is_folder]
        except StoreError:
            continue  # there is none, or it is a web server: then it is found by its key alone
        for name in names[:_MOST_LISTS]:
            try:
                each = hotlist.decode(store.read_all(name, hotlist.LARGEST_LIST_BYTES), f"{place}/{name}")
            except (StoreError, HotListRefused) as error:
                problems.append(str(error))
                continue
            key = (each.key.launch, each.key.machine)
            if each.key.image == identity and (key not in found or found[key].launches < each.launches):
                found[key] = each
    return sorted(found.values(), key=lambda each: (-each.launches, each.key.launch)), tuple(problems)


def hot_files_of(image: str, cache_root: str) -> list[str]:
    """Return the files of an image that recorded starts read, the first first. Raises `UserError` where none is recorded."""
    block_map, _problems = fetch_map(image, cache_root, StoreOptions())
    lists, _more = lists_of(image, cache_root, blockmap.identity(block_map))
    if not lists:
        raise UserError(
            f"--from-record {image}: no start of it was recorded; record one with `robust image record {image}`"
        )
    files = list(tree.packed_files(image))
    ordered: dict[str, None] = {}
    for each in lists:
        ordered |= dict.fromkeys(sorting.hot_files(each, files))
    return list(ordered)
