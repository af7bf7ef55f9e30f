"""Holds what lies at a destination against what lies at a source, both as they are now: names, kinds and lengths; bytes come
after."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from robust_run.ckpt_io.copying.trees import FolderTree
from robust_run.ckpt_io.copying.types import Differences
from robust_run.ckpt_io.errors import ManifestRefused, NotACheckpoint
from robust_run.ckpt_io.finding import read_manifest
from robust_run.ckpt_io.rules.layout import MANIFEST_PATH, copy_path
from robust_run.ckpt_io.rules.types import Manifest
from robust_run.errors import PlatformError
from robust_run.store.local import kind_of, walk
from robust_run.store.opening import open_store
from robust_run.store.types import Walked


def compare_trees(source: FolderTree, destination: str, task_path: Mapping[str, str]) -> Differences:
    """Compare a folder, or a file if the source's only file has no name, with what was walked of the source.

    `task_path`: by which path of a task a file of the source is known. Raises PlatformError.
    """
    there = {each.path: each for each in walked(destination)}
    wrong, alike = [], set[str]()
    for file in source.files:
        found = there.get(file.path)
        fault = _fault(found, "file", _place(destination, file.path))
        if not fault and found is not None and found.size_bytes != file.size_bytes:
            fault = f"{_place(destination, file.path)}: has {found.size_bytes} bytes, {file.size_bytes} are expected"
        if fault:
            wrong.append(fault)
        else:
            alike.add(task_path[file.path])
    faults = [_fault(there.get(path), "folder", _place(destination, path)) for path in source.empty_folders]
    wrong += [fault for fault in faults if fault]
    for link, target in source.links.items():
        fault = _fault(there.get(link), "link", _place(destination, link))
        if not fault and there[link].target != target:
            fault = f"{_place(destination, link)}: leads to {there[link].target}, {target} is expected"
        if fault:
            wrong.append(fault)
    known = {file.path for file in source.files} | set(source.folders) | set(source.links)
    return Differences(tuple(wrong), tuple(_extra(there.values(), known, destination)), frozenset(alike))


def compare_ours(here: Manifest, folders: Sequence[str], parts: Mapping[str, int]) -> Differences:
    """Compare a checkpoint of ours with what lies in its folders. `parts`: its parts' paths and lengths. Raises PlatformError."""
    wrong = []
    for target, folder in enumerate(folders):
        name = copy_path(here.uuid) if target else MANIFEST_PATH
        if fault := _manifest_fault(here, folder, name):
            wrong.append(fault)
    alike = set[str]()
    for path, size_bytes in parts.items():
        try:
            length = os.stat(path).st_size
        except OSError:
            wrong.append(f"{path}: is missing")
            continue
        if length == size_bytes:
            alike.add(path)
        else:
            wrong.append(f"{path}: has {length} bytes, {size_bytes} are expected")
    extra = list[str]()
    for target, folder in enumerate(folders):
        ours = {os.path.relpath(path, folder) for path in parts}
        ours |= {os.path.dirname(path) for path in ours} | {copy_path(here.uuid) if target else MANIFEST_PATH}
        extra += _extra(walked(folder), ours, folder)
    return Differences(tuple(wrong), tuple(extra), frozenset(alike))


def walked(place: str) -> list[Walked]:
    """Return what lies below a folder of this machine's; of a file, itself, without a name; nothing if nothing is there."""
    try:
        status = os.stat(place)
        if kind_of(status.st_mode) != "folder":
            return [Walked(path="", kind=kind_of(status.st_mode), size_bytes=status.st_size)]
        return sorted(walk(place), key=lambda each: each.path)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise PlatformError(f"{place} cannot be looked at: {error.strerror} ({error.filename})") from error


def _manifest_fault(here: Manifest, folder: str, name: str) -> str:
    path = os.path.join(folder, name)
    store = open_store(folder)
    try:
        found = read_manifest(store, folder, name).manifest
    except NotACheckpoint:
        return f"{path}: is missing"
    except ManifestRefused as error:
        return f"{path}: {error.reason}"
    finally:
        store.close()
    if found.uuid != here.uuid:
        return f"{path}: is of another checkpoint"
    if found.targets[1:] != here.targets[1:] or found.files != here.files:
        elsewhere = ", ".join(found.targets[1:]) or "none"
        return f"{path}: lies in another layout (further targets: {elsewhere}): give the same --also roots"
    same = (found.tensors, found.blobs, found.paths, found.step) == (here.tensors, here.blobs, here.paths, here.step)
    return "" if same else f"{path}: differs"


def _fault(found: Walked | None, kind: str, place: str) -> str:
    if found is None:
        return f"{place}: is missing"
    return "" if found.kind == kind else f"{place}: is a {found.kind}, a {kind} is expected"


def _extra(there: Iterable[Walked], known: set[str], destination: str) -> list[str]:
    """Return what is not known; of a folder that is not, only the folder."""
    found = list[str]()
    unknown = set[str]()
    for each in sorted(there, key=lambda each: each.path):
        if each.path in known:
            continue
        unknown.add(each.path)
        if os.path.dirname(each.path) not in unknown:
            found.append(_place(destination, each.path) + ("/" if each.kind == "folder" else ""))
    return found


def _place(destination: str, path: str) -> str:
    return os.path.join(destination, path) if path else destination
