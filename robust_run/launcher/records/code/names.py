"""Which names a tree may have: nothing that leads out of its folder, or means two things. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from robust_run.launcher.records.code.errors import CodeError
from robust_run.launcher.records.code.types import LIMITS, CodeFile, CodeLimits, CodeTree

LONGEST_PATH_BYTES = 1024
LONGEST_NAME_BYTES = 255
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")


def check_path(path: str, limits: CodeLimits = LIMITS) -> str:
    """Return a path that stays inside its folder, as it is. Raises CodeError for any other."""
    why = why_not(path, limits)
    if why:
        raise CodeError(f"the path {path[:200]!r} {why}; rename it, or add it to .robustignore")
    return path


def why_not(path: str, limits: CodeLimits = LIMITS) -> str:
    """Return why a path is no path of a tree, as a clause; empty: it is one."""
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return "is not text"
    parts = path.split("/")
    if not path or "\0" in path or len(encoded) > LONGEST_PATH_BYTES:
        return "is empty, has a NUL byte, or is too long"
    if any(part in ("", ".", "..") for part in parts):
        return "would lead out of the folder, or is not in its shortest form"
    if any(len(part.encode()) > LONGEST_NAME_BYTES for part in parts) or len(parts) > limits.deepest:
        return "is too long or too deep"
    return ""


def why_no_link(path: str, target: str) -> str:
    """Return why a link is none that stays in its tree, as a clause; empty: it does.

    `..` may only come first: after a name it would depend on where that leads.
    """
    parts = target.split("/")
    ups = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
    rest = parts[ups:]
    if not rest or target.startswith("/") or any(part in ("", ".", "..") for part in rest) or "\0" in target:
        return "is a link that may lead out of the folder"
    if ups > path.count("/"):
        return "is a link that leads out of the folder"
    return why_not("/".join((*path.split("/")[:-1][: path.count("/") - ups], *rest)))


def check_tree(tree: CodeTree, limits: CodeLimits = LIMITS) -> CodeTree:
    """Return a tree that may be written to disk, as it is. Raises CodeError: trees come from other machines too."""
    if len(tree.files) > limits.most_files:
        raise CodeError(f"a tree of {len(tree.files)} files is larger than the {limits.most_files} that are taken")
    if sum(max(each.size_bytes, 0) for each in tree.files) > limits.most_bytes:
        raise CodeError(f"a tree of more than {limits.most_bytes >> 20} MiB is not taken")
    seen: set[str] = set()
    for file in tree.files:
        check_path(file.path, limits)
        if file.path in seen:
            raise CodeError(f"the path {file.path!r} is in the tree twice")
        seen.add(file.path)
        _check_file(file, limits)
    _check_no_file_is_a_folder(seen)
    return tree


def _check_file(file: CodeFile, limits: CodeLimits) -> None:
    if file.link:
        why = why_no_link(file.path, file.link)
        if why or file.digest:
            raise CodeError(f"the path {file.path!r} {why or 'is both a link and a file'}")
    elif not is_digest(file.digest):
        raise CodeError(f"the path {file.path!r} has the digest {file.digest[:80]!r}, which is none")
    elif not 0 <= file.size_bytes <= limits.largest_file_bytes:
        raise CodeError(f"the path {file.path!r} has {file.size_bytes} bytes, more than {limits.largest_file_bytes}")


def _check_no_file_is_a_folder(paths: Iterable[str]) -> None:
    known = set(paths)
    for path in known:
        parts = path.split("/")
        for depth in range(1, len(parts)):
            if "/".join(parts[:depth]) in known:
                raise CodeError(f"the path {path!r} lies below a file or a link of the tree")


def is_digest(text: str) -> bool:
    """Whether this is a SHA-256 as it is written here."""
    return _DIGEST.match(text) is not None
