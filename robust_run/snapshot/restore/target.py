"""Restoring by `sys.path`: what was unpacked comes before the environment, which stays as it is. Decisions are pure.

It needs no right and no writable folder, and cannot do all that an overlay can: what was removed stays visible, and a package of
which only some files changed would hide the others. So it is refused where a program would see half of something.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence

from robust_run.snapshot.rules.types import Item, SnapshotManifest

_ARM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "arm")
FOLDERS_VARIABLE = "ROBUST_SETUP_FOLDERS"
_SITE = re.compile(r"(?:local/)?lib(?:64)?/python[0-9.]+/(?:site|dist)-packages")
_IN_SITE = re.compile(rf"({_SITE.pattern})/(.+)")
_INFO = re.compile(r"(?P<name>.+?)-[^-]+\.(?:dist|egg)-info")


def sites(manifest: SnapshotManifest, items: Iterable[Item]) -> list[tuple[int, str]]:
    """Return where packages are: root and path in it ("" for a root that is such a folder itself), in the order of the roots."""
    found = {
        (index, "")
        for index, root in enumerate(manifest.roots)
        if root.changed and posixpath.basename(root.path) in ("site-packages", "dist-packages")
    }
    found |= {(item.root, item.path) for item in items if item.kind == "d" and _SITE.fullmatch(item.path)}
    return sorted(found)


def why_not(manifest: SnapshotManifest, items: Sequence[Item], base: Mapping[str, Iterable[str]]) -> str:
    """Return why a snapshot cannot be put on `sys.path`; "": it can. Pure.

    `base`: for each folder that `shared` names, what lies in it in the environment as it is, relative to it.
    """
    places = sites(manifest, items)
    if not places:
        return "it has no packages of Python"
    new = {(item.root, item.path) for item in items if item.kind != "w"}
    new_names = {_distribution(posixpath.basename(path)) for _root, path in new}
    for item in items:
        if item.kind != "w" or (item.root, item.path) in new:
            continue
        site = _site_of(item, places)
        if site is None:
            continue
        top = item.path[len(site) :].lstrip("/").split("/")[0]
        is_replaced = "/" in item.path[len(site) :].lstrip("/") and _is_regular(item.root, site, top, new)
        if not is_replaced and _distribution(top) not in new_names:
            return f"{item.path} was removed, and would still be imported"
    for root, place in shared(manifest, items):
        path = posixpath.join(manifest.roots[root].path, place)
        for name in base.get(path, ()):
            if (root, posixpath.join(place, name)) not in new and not _is_removed(root, place, name, items):
                return f"{path}: only a part of this package changed: {name} would not be found"
    return ""


def shared(manifest: SnapshotManifest, items: Sequence[Item]) -> list[tuple[int, str]]:
    """Return the packages, by root and path, that hide those of the same name in the environment: all but namespaces."""
    new = {(item.root, item.path) for item in items if item.kind != "w"}
    found = []
    for root, site in sites(manifest, items):
        tops = {
            path[len(site) :].lstrip("/").split("/")[0]
            for number, path in new
            if number == root and path != site and (not site or path.startswith(site + "/"))
        }
        found += [(root, posixpath.join(site, top)) for top in sorted(tops)]
    return [
        (root, path) for root, path in found if any((root, f"{path}/__init__{end}") in new for end in (".py", ".pyc"))
    ]


def base_of(manifest: SnapshotManifest, items: Sequence[Item]) -> dict[str, list[str]]:
    """Look at what the environment has of the packages that would be hidden. For `why_not`."""
    found = {}
    for root, place in shared(manifest, items):
        path = os.path.join(manifest.roots[root].path, place)
        names = []
        for folder, _folders, files in os.walk(path):
            if os.path.basename(folder) != "__pycache__":
                relative = os.path.relpath(folder, path)
                names += [os.path.normpath(os.path.join(relative, name)) for name in files]
        if names:
            found[path] = names
    return found


def environment(
    manifest: SnapshotManifest, items: Sequence[Item], unpacked: str, env: Mapping[str, str]
) -> dict[str, str]:
    """Return what a program is started with, so that it imports what was unpacked and finds its scripts. Pure.

    A `sitecustomize` of ours adds the folders as site-packages, because `.pth` files are read in such only; it hands over to the
    program's own.
    """
    folders = [
        os.path.join(unpacked, f"r{manifest.roots[root].folder}", place).rstrip("/")
        for root, place in sites(manifest, items)
    ]
    programs = [
        os.path.join(unpacked, f"r{manifest.roots[item.root].folder}", item.path)
        for item in items
        if item.kind == "d" and item.path == "bin"
    ]
    before = env.get("PYTHONPATH")
    made = {**env, FOLDERS_VARIABLE: os.pathsep.join(folders)}
    made["PYTHONPATH"] = os.pathsep.join([_ARM, *folders, *([before] if before else [])])
    if programs:
        made["PATH"] = os.pathsep.join([*programs, env.get("PATH", os.defpath)])
    return made


def _site_of(item: Item, places: Sequence[tuple[int, str]]) -> str | None:
    """Return the folder of packages that a removed name was in; also one of which nothing is left."""
    for root, place in places:
        if root == item.root and (not place or item.path.startswith(place + "/")):
            return place
    matched = _IN_SITE.fullmatch(item.path)
    return matched[1] if matched else None


def _is_regular(root: int, site: str, top: str, new: set[tuple[int, str]]) -> bool:
    return any((root, posixpath.join(site, top, name)) in new for name in ("__init__.py", "__init__.pyc"))


def _is_removed(root: int, place: str, name: str, items: Sequence[Item]) -> bool:
    parts = posixpath.join(place, name).split("/")
    above = {"/".join(parts[:count]) for count in range(1, len(parts) + 1)}
    return any(item.kind == "w" and item.root == root and item.path in above for item in items)


def _distribution(name: str) -> str:
    """Return whose metadata it is, as names of distributions are compared; "-" for what is none."""
    matched = _INFO.fullmatch(name)
    return re.sub(r"[-_.]+", "-", matched["name"]).lower() if matched else f"- {name}"
