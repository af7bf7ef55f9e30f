"""What mksquashfs does not see in a tree, or would change without a word: found before it packs the tree.

Modes are given to it in a *pseudo file* where the tree itself has others; what an image does not keep is counted.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from robust_run.prefetch.errors import ImageRefused
from robust_run.prefetch.image.losses import Loss, Losses, Original, lasting, printable

_MOST_NAMED = 3


@dataclass(frozen=True)
class Survey:
    """What was found."""

    modes: Mapping[str, int] = field(default_factory=dict)
    """Path → the mode that it is to have in the image, where the tree shows another; "" is the root."""
    losses: tuple[Loss, ...] = ()


def survey(tree: str, exclude: Collection[str] = ()) -> Survey:
    """Look at all entries of a folder that others have made, but those left out.

    Raises `ImageRefused` where something cannot be read, which mksquashfs would make an empty file of; OSError.
    """
    top = os.stat(tree)
    left_out = {each.strip("/") for each in exclude}
    losses = Losses(builder=(top.st_uid, top.st_gid))
    modes: dict[str, int] = {}
    unreadable = [] if _is_readable(tree, top.st_mode) else ["/"]
    for path, entry in entries_below(tree, left_out.__contains__):
        try:
            found = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue  # the tree is in use; what is gone when it is packed is not packed
        if not _is_readable(entry.path, found.st_mode):
            unreadable.append(path)
        original = _original(entry.path, found)
        losses.note(path, original)
        if original.kept_mode() != original.mode and not stat.S_ISLNK(found.st_mode):
            if not can_be_written(path):
                raise ImageRefused(
                    f"{printable(path)}: a setuid or setgid file of another owner, in whose name mksquashfs cannot be told to"
                    " drop that: rename it, or leave it out with --exclude"
                )
            modes[path] = original.kept_mode()
    if unreadable:
        some = ", ".join(printable(path) for path in unreadable[:_MOST_NAMED])
        more = ", ..." if len(unreadable) > _MOST_NAMED else ""
        count = "1 of its entries" if len(unreadable) == 1 else f"{len(unreadable)} of its entries"
        raise ImageRefused(
            f"{tree}: {count} cannot be read by us: {some}{more}; build as their owner, make them readable, or leave them out"
            " with --exclude"
        )
    return Survey(modes, losses.found())


def entries_below(
    tree: str, is_left_out: Callable[[str], bool] = lambda _path: False
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield all entries of a folder by their path in it, what is in a folder after it, in the same order each time.

    Links are not followed, and folders that may not be read are not looked into.
    """
    waiting: list[tuple[str, os.DirEntry[str] | None]] = [("", None)]
    while waiting:
        folder, own = waiting.pop()
        if own is not None:
            yield folder, own
            if not own.is_dir(follow_symlinks=False):
                continue
        try:
            with os.scandir(os.path.join(tree, folder)) as inside:
                found = sorted(inside, key=lambda entry: entry.name, reverse=True)
        except (PermissionError, FileNotFoundError, NotADirectoryError):
            continue
        for entry in found:
            path = f"{folder}/{entry.name}" if folder else entry.name
            if not is_left_out(path):
                waiting.append((path, entry))


def _original(whole: str, found: os.stat_result) -> Original:
    try:
        attributes = lasting(os.listxattr(whole, follow_symlinks=False))
    except OSError:
        attributes = ()  # this file system has none
    return Original(
        mode=stat.S_IMODE(found.st_mode),
        time_s=int(found.st_mtime),
        uid=found.st_uid,
        gid=found.st_gid,
        attributes=attributes,
        is_folder=stat.S_ISDIR(found.st_mode),
    )


def _is_readable(whole: str, mode: int) -> bool:
    """Whether mksquashfs can look into it; of what is neither a file nor a folder it only needs to know that it is there."""
    if stat.S_ISREG(mode):
        return os.access(whole, os.R_OK)
    return not stat.S_ISDIR(mode) or os.access(whole, os.R_OK | os.X_OK)


def can_be_written(path: str) -> bool:
    """Whether a path can be named in a pseudo file: one line each."""
    return "\n" not in path


def pseudo_lines(modes: Mapping[str, int]) -> list[bytes]:
    """Return a pseudo file for mksquashfs that gives modes to what is in the tree, but for the root. Pure.

    Owners must be written too; they count for nothing, because all entries belong to root.
    """
    lines = []
    for path in sorted(modes):
        if path:
            name = "".join(letter if letter.isalnum() or letter in "/._-" else f"\\{letter}" for letter in path)
            lines.append(f"{name} m {modes[path]:o} 0 0\n".encode("utf-8", "surrogateescape"))
    return lines
