"""From what an overlay or a scan found to what is packed: plain modes, whiteouts in a tree of their own, a listing.

Modes: set-user-id, set-group-id and sticky bits are dropped, and what the owner may read or run all may, as a snapshot has no
owner. Times, owners and extended attributes are not kept.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable

from robust_run.mounts import overlay
from robust_run.snapshot.errors import CaptureRefused
from robust_run.snapshot.rules.types import Item, Root
from robust_run.store.digests import digest_of

MOST_ITEMS = 2_000_000
_OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")
_PIECE_BYTES = 1 << 20


def plain_mode(mode: int) -> int:
    """Return the permission bits that are kept of a mode."""
    owner = mode & 0o500
    return (mode & 0o777) | (owner >> 3) | (owner >> 6)


def split_whiteouts(upper: str, lower: Callable[[str], set[str]]) -> tuple[list[str], list[str]]:
    """Take whiteouts and special files out of an overlay's upper folder. Returns the names removed, and those dropped.

    A folder that replaces one of the same name (opaque) hides what is in that one: each such name is removed. `lower`: the names
    in a folder below the overlay; only asked for those that `opaque_folders` returns.
    """
    removed: list[str] = []
    dropped: list[str] = []

    def visit(relative: str, is_opaque: bool) -> None:
        here = os.path.join(upper, relative)
        names = set()
        for item in list(os.scandir(here)):
            path = os.path.join(relative, item.name)
            status = item.stat(follow_symlinks=False)
            names.add(item.name)
            if overlay.is_whiteout(status):
                os.unlink(item.path)
                if not is_opaque:
                    removed.append(path)
                else:
                    names.discard(item.name)
            elif stat.S_ISDIR(status.st_mode):
                _open_folder(item.path, status.st_mode)
                visit(path, is_opaque or _is_opaque(item.path))
            elif not (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
                os.unlink(item.path)
                dropped.append(path)
        if is_opaque:
            removed.extend(os.path.join(relative, name) for name in lower(relative) - names)

    visit("", _is_opaque(upper))
    return sorted(removed), sorted(dropped)


def opaque_folders(upper: str) -> list[str]:
    """Return the folders of an overlay's upper folder that hide what lies below them, with all folders in those."""
    found: list[str] = []
    waiting = [("", _is_opaque(upper))]
    while waiting:
        relative, is_opaque = waiting.pop()
        found += [relative] if is_opaque else []
        waiting += [
            (os.path.join(relative, item.name), is_opaque or _is_opaque(item.path))
            for item in list(os.scandir(os.path.join(upper, relative)))
            if item.is_dir(follow_symlinks=False)
        ]
    return found


def _open_folder(path: str, mode: int) -> None:
    """A folder that its owner may not write cannot be cleaned; its mode is restored by `listed`, which knows it."""
    if mode & 0o700 != 0o700 and os.geteuid() != 0:
        os.chmod(path, stat.S_IMODE(mode) | 0o700)


def _is_opaque(path: str) -> bool:
    for name in _OPAQUE:
        try:
            if os.getxattr(path, name, follow_symlinks=False) == b"y":
                return True
        except OSError:
            continue
    return False


def names_in(top: str, path: str) -> set[str]:
    """Return the names in a folder below another; none where there is no such folder."""
    try:
        return set(os.listdir(os.path.join(top, path)))
    except OSError:
        return set()


def make_whiteouts(folder: str, removed: Iterable[str]) -> bool:
    """Write whiteouts of the names into a folder of their own. False: this kernel does not let us."""
    os.makedirs(folder, exist_ok=True)
    for path in removed:
        place = os.path.join(folder, path)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        if not overlay.make_whiteout(place):
            return False
    return True


def listed(stage: str, roots: Iterable[Root], removed: Iterable[Iterable[str]]) -> list[Item]:
    """Give everything in the stage its plain mode, and return the listing, ordered by root and path.

    Raises `CaptureRefused` beyond the limit, and for a name that is no text.
    """
    items: list[Item] = []
    for index, (root, gone) in enumerate(zip(roots, removed, strict=True)):
        found = [Item(root=index, path=_text(path), kind="w") for path in gone]
        found += _entries(os.path.join(stage, f"r{root.folder}"), index)
        items += sorted(found, key=lambda item: item.path)
        if len(items) > MOST_ITEMS:
            raise CaptureRefused(f"{root.path}: the set-up changed more than {MOST_ITEMS} files: capture fewer folders")
    return items


def _entries(top: str, index: int) -> list[Item]:
    found = []
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        for item in list(os.scandir(os.path.join(top, folder))):
            path = os.path.join(folder, item.name)
            status = item.stat(follow_symlinks=False)
            mode = plain_mode(status.st_mode)
            if stat.S_ISLNK(status.st_mode):
                found.append(Item(root=index, path=_text(path), kind="l", content=_text(os.readlink(item.path))))
                continue
            if stat.S_ISDIR(status.st_mode):
                waiting.append(path)
                os.chmod(item.path, mode | 0o700)
                found.append(Item(root=index, path=_text(path), kind="d", mode=mode | 0o700))
                continue
            os.chmod(item.path, mode | 0o400)  # or it could not be packed
            digest, size_bytes = file_digest(item.path)
            os.chmod(item.path, mode | 0o444)
            found.append(
                Item(root=index, path=_text(path), kind="f", mode=mode | 0o444, size_bytes=size_bytes, content=digest)
            )
    return found


def file_digest(path: str) -> tuple[str, int]:
    """Return xxh3_128 of a file in hex, and its length. Raises OSError; a link is refused as one."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(descriptor, "rb", buffering=0) as file:
        size_bytes = 0

        def pieces() -> Iterable[bytes]:
            nonlocal size_bytes
            while piece := file.read(_PIECE_BYTES):
                size_bytes += len(piece)
                yield piece

        return digest_of(pieces()).hex(), size_bytes


def _text(path: str) -> str:
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise CaptureRefused(
            f"{path[:200]!r}: its name is no valid UTF-8: have the set-up command rename it"
        ) from error
    return path
