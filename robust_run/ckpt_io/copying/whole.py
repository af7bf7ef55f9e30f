"""Whether files that others wrote are all there, as far as they say themselves: looked at before anything is copied."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec

from robust_run.ckpt_io.copying.sources import PlainSource, read_range
from robust_run.ckpt_io.copying.trees import FolderTree, PlainFile, named
from robust_run.ckpt_io.errors import CheckpointError
from robust_run.ckpt_io.foreign.ends import end_of
from robust_run.ckpt_io.rules.manifest import FILES
from robust_run.decoders import json_decoder

_FORMATS = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".npz", ".zip")
#: Others call files so, too.
_MAYBE_EMPTY = ".bin"
#: Says which file each tensor of a repository of the Hugging Face hub is in.
_INDEX = ".index.json"
_INDEX_BYTES = 256 << 20
_LOOKS = 16


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str] = {}


def check_whole(source: PlainSource, doing: str, done: str) -> None:
    """See that nothing of a source is cut off or missing that its files speak of. `doing`, `done`: `convert`, `converted`.

    Raises:
        CheckpointError: A file is shorter than its header says, has no end, or is named by an index and not there; or there are
            more files than a checkpoint can have.
    """
    if len(source.files) > FILES:
        raise CheckpointError(f"{source.url} has {len(source.files)} files; a checkpoint has {FILES} at most")
    if wrong := faults(source):
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise CheckpointError(
            f"{wrong[0]}{more}: nothing was {done}; bring it there whole, or {doing} what is whole by itself"
        )


def faults(source: PlainSource, known: Collection[str] = ()) -> list[str]:
    """Return what is cut off or missing of a source, a sentence each; at the files in `known` nobody looks again."""
    looked_at = [file for file in source.files if file.path not in known]
    with ThreadPoolExecutor(_LOOKS, thread_name_prefix="look") as threads:
        found = [*threads.map(lambda file: _cut_off(source, file), looked_at), *_items_missing(source)]
    return [fault for fault in (*found, *_missing(source)) if fault]


def linked_files(tree: FolderTree, notes: list[str]) -> tuple[PlainFile, ...]:
    """Return the files that links in a tree lead to, under the links' names; of other links, say in `notes` that they go."""
    files = {file.path: file for file in tree.files}
    found = []
    for link in tree.links:
        file = files.get(_end_of_link(link, tree.links))
        if file is not None:
            found.append(PlainFile(link, file.size_bytes, file.modified_s))
        else:
            notes.append(f"{link} is a link to {tree.links[link]}, which is no file: what that holds has its own names")
    return tuple(found)


def _end_of_link(link: str, links: dict[str, str]) -> str:
    at = link
    for _ in range(len(links)):
        if at not in links:
            break
        at = posixpath.normpath(posixpath.join(posixpath.dirname(at), links[at]))
    return at


def _cut_off(source: PlainSource, file: PlainFile) -> str:
    if not file.path.endswith(_FORMATS):
        return ""
    if not file.size_bytes:
        return "" if file.path.endswith(_MAYBE_EMPTY) else f"{file.path} is empty"
    end, why = end_of(lambda offset, size: read_range(source, file, offset, size), file.size_bytes)
    return f"{file.path} is cut off: {why}" if end == "cut off" else ""


def _items_missing(source: PlainSource) -> Iterator[str]:
    """Yield what the metadata of torch.distributed.checkpoint says is in a file, and is not."""
    if source.dcp is None:
        return
    lengths = {file.path: file.size_bytes for file in source.files}
    ends: dict[str, int] = {}
    for item in (*source.dcp.items, *(blob.item for blob in source.dcp.blobs)):
        ends[item.path] = max(ends.get(item.path, 0), item.offset_bytes + item.size_bytes)
    for path, end in sorted(ends.items()):
        if path not in lengths:
            yield f"{path} is missing, and .metadata names it"
        elif lengths[path] < end:
            yield f"{path} is cut off: it has {lengths[path]} bytes, and by .metadata something in it ends at {end}"


def _missing(source: PlainSource) -> list[str]:
    """Return what an index names that is not there. Where nothing of it is, another format was brought, without this one."""
    there = {file.path for file in source.files} | set(source.tree.links)
    found = []
    for file in source.files if source.is_listed else ():
        if not file.path.endswith(_INDEX) or file.size_bytes > _INDEX_BYTES:
            continue
        try:
            index = json_decoder(_Index).decode(read_range(source, file, 0, file.size_bytes))
        except (msgspec.MsgspecError, ValueError, RecursionError):
            continue  # of another kind
        folder = posixpath.dirname(file.path)
        shards = set(index.weight_map.values())
        gone = {name for name in shards if posixpath.join(folder, name) not in there}
        if gone and gone != shards:
            found.append(f"{named(gone)}: missing, and {file.path} says that there are tensors in it")
    return found
