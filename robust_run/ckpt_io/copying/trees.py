"""A folder of files with everything below it, as it is copied: checked, so that no name and no link of it leads anywhere else.
Pure.

What cannot be copied is an error with its name, before anything is copied; what holds no bytes (a pipe, a socket) is said.
Nothing is left out without a word.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from robust_run.ckpt_io.errors import CheckpointError
from robust_run.store import paths
from robust_run.store.types import Walked

#: More files than that are no checkpoint.
FILES_MOST = 1_000_000
_NAMED_MOST = 5
#: What makes a folder a checkpoint, and what says which of several folders is the newest: written last, by all who write them.
_RECORDS = frozenset((".metadata", "MANIFEST"))
_TRACKERS = frozenset(("latest_checkpointed_iteration.txt", "latest_train_state.pt", "latest", "latest_universal"))


@dataclass(frozen=True)
class PlainFile:
    """A file as it is."""

    path: str
    """In the source's store."""
    size_bytes: int
    modified_s: float | None = None
    """None: the store does not say."""
    tag: str = ""
    """Another one for other content; empty: the store does not say."""


@dataclass(frozen=True)
class FolderTree:
    """Everything below a folder."""

    files: tuple[PlainFile, ...] = ()
    """What others go by is behind what it says is there."""
    folders: tuple[str, ...] = ()
    """All of them, each before what it holds."""
    links: dict[str, str] = field(default_factory=dict)
    """Links that lead to something within the folder: what they say."""
    notes: tuple[str, ...] = ()
    """What is not taken, and why."""

    @property
    def empty_folders(self) -> tuple[str, ...]:
        """Folders that hold nothing."""
        filled = {paths.parent(path) for path in (*self.folders, *self.links, *(file.path for file in self.files))}
        return tuple(folder for folder in self.folders if folder not in filled)


def tree_of(walked: Sequence[Walked], url: str, notes: Sequence[str] = ()) -> FolderTree:
    """Check what a store said lies below a folder. Links must be such that lead to something within it.

    Raises:
        CheckpointError: A name that no path can have, a file that is a folder as well, or more files than there may be.
    """
    _check_names(walked, url)
    folders = {each.path for each in walked if each.kind == "folder"}
    for each in walked:
        folders.update(_above(each.path))
    files = _without_markers([each for each in walked if each.kind == "file"], folders, url)
    if len(files) > FILES_MOST:
        raise CheckpointError(f"{url} has {len(files)} files below it; {FILES_MOST} is the limit: name a folder in it")
    others = [f"{each.path} is no file: it is not taken" for each in walked if each.kind == "other"]
    return FolderTree(
        files=tuple(
            sorted(
                (PlainFile(each.path, each.size_bytes, each.modified_s, each.tag) for each in files), key=_record_last
            )
        ),
        folders=tuple(sorted(folders)),
        links={each.path: each.target for each in walked if each.kind == "link"},
        notes=(*notes, *others),
    )


def points_within(path: str, target: str) -> bool:
    """Whether a link's words, followed by name alone, lead to something within the tree."""
    if target.startswith("/"):
        return False
    where = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    return where != ".." and not where.startswith("../")


def named(names: Iterable[str]) -> str:
    """Return the first few of many names, for a message."""
    all_of_them = sorted(names)
    more = f" and {len(all_of_them) - _NAMED_MOST} more" if len(all_of_them) > _NAMED_MOST else ""
    return ", ".join(all_of_them[:_NAMED_MOST]) + more


def _check_names(walked: Sequence[Walked], url: str) -> None:
    wrong = [each.path for each in walked if not paths.is_clean(each.path)]
    if wrong:
        raise CheckpointError(
            f"{url}: no path can be made of {named(map(repr, wrong))} (empty parts, '.', '..', no valid text, or more than "
            f"{paths.LONGEST_PATH_BYTES} bytes): rename or remove them there"
        )


def _without_markers(files: Sequence[Walked], folders: set[str], url: str) -> list[Walked]:
    """Return the files without empty objects that some tools write for a folder."""
    both = [each for each in files if each.path in folders]
    if wrong := [each.path for each in both if each.size_bytes]:
        raise CheckpointError(
            f"{url}: {named(wrong)}: a file and a folder of one name, which cannot both be here: rename one of them"
        )
    return [each for each in files if each.path not in folders]


def _above(path: str) -> Iterable[str]:
    while path := paths.parent(path):
        yield path


def _record_last(file: PlainFile) -> tuple[int, str]:
    name = file.path.rpartition("/")[2]
    return (2 if name in _TRACKERS else 1 if name in _RECORDS else 0), file.path
