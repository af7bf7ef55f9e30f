"""From what a launch read to the hot list of the next: which launches are the same one, which recordings are kept.

A list belongs to an image, an architecture and a *launch fingerprint*: the command line without what changes from run to run, the
interpreter, and whether one process, one node or many run. The fingerprint is coarse on purpose: a list that is a little wrong
costs some bytes, one that is not found costs the whole start.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from robust_run.prefetch import blockmap
from robust_run.prefetch.hotstore import HotStore
from robust_run.prefetch.rules.types import BlockMap, HotKey, HotList, Touch

Layout = Literal["process", "node", "nodes"]
"""One worker; several on one node; several nodes. They import different parts of torch.distributed."""
Ended = Literal["step", "limit", "end"]
"""The window ended with the first training step, at `--record-window`, or with the program."""

#: How many nodes of a launch write a list that they share: the program is the same on all, so a few have read what all read.
MOST_WRITERS = 8
_MOST_WORDS, _LONGEST_WORD = 4096, 4096
_HEX = re.compile(r"(?<![0-9A-Za-z])(?=[0-9a-f]*\d)[0-9a-f]{7,64}(?![0-9A-Za-z])", re.IGNORECASE)
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_NUMBER = re.compile(r"\d+([.,]\d+)*([eE][+-]?\d+)?")


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """What one node read of the image in its window."""

    touches: tuple[Touch, ...]
    window_s: float
    ended: Ended


def layout_of(world_size: int, nodes: int) -> Layout:
    """Return the class of a world."""
    return "nodes" if nodes > 1 else "node" if world_size > 1 else "process"


def fingerprint(argv: Sequence[str], python: str, layout: Layout) -> str:
    """Return the launch fingerprint, 32 hex digits. `argv`: the program and its arguments; `python`: such as cpython-3.11."""
    words = [stable(word) for word in argv[:_MOST_WORDS]]
    text = "\0".join(("robust-run launch 1", python, layout, *words))
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32]


def stable(word: str) -> str:
    """Return an argument without what changes from run to run: numbers, hashes, and the folders that a path leads through."""
    option, equals, value = word[:_LONGEST_WORD].partition("=")
    if equals and option.startswith("-"):
        return f"{option}={stable(value)}"
    word = word[:_LONGEST_WORD]
    if "://" in word:
        scheme, _colon, rest = word.partition("://")
        word = f"{scheme}://{posixpath.basename(rest.partition('?')[0].rstrip('/'))}"
    elif "/" in word:
        word = posixpath.basename(word.rstrip("/"))
    return _NUMBER.sub("#", _HEX.sub("#", _UUID.sub("#", word)))


def hot_key(block_map: BlockMap, launch: str, machine: str) -> HotKey:
    """Return the key of a launch's list."""
    return HotKey(image=blockmap.identity(block_map), launch=launch, machine=machine)


def worth_keeping(recordings: Sequence[Recording], old: HotList | None) -> list[Recording]:
    """Return the recordings that say what a start reads. Pure.

    A launch that died early read little: it must not make others' blocks decay. Its recording counts only where there is none.
    """
    whole = [each for each in recordings if each.ended != "end" and each.touches]
    return whole or ([each for each in recordings if each.touches] if old is None else [])


def launch_id(*parts: str) -> str:
    """Return a name for one launch, from what is the same on all its nodes and not the same in another launch; secrets may be."""
    return hashlib.sha256("\0".join(("robust-run launch id", *parts)).encode("utf-8", "replace")).hexdigest()[:32]


def keep(
    store: HotStore, key: HotKey, recordings: Sequence[Recording], launch: str = "", node: int = 0
) -> tuple[HotList, str] | None:
    """Merge recordings of one launch, each of one node, into its list; return it and where it lies. None: nothing was kept.

    With the same `launch` (see `launch_id`) on all nodes of a job, each may call it with its own recording: together they count
    as one launch. Where lists lie beside the image on a shared file system, the list is that of all nodes; else each node has
    one of its own. `node`: which of them this is; from `MOST_WRITERS` on, a node writes its own list only.

    Raises `StoreError` where the list can be written nowhere.
    """
    old, _problems = store.load(key)
    kept = worth_keeping(recordings, old)
    if not kept:
        return None
    window_s = max(each.window_s for each in kept)
    return store.record(key, [each.touches for each in kept], window_s, launch, own_only=node >= MOST_WRITERS)
