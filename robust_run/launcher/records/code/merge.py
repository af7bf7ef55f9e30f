"""Three-way merge of trees: what two people changed since a common version becomes one version, or it is said what collides.

A file that only one side changed is that side's. Where both changed it, its lines are merged (`git merge-file`, or difflib
where there is no git); lines that both changed otherwise are a conflict, as is a file that one side removed and the other
changed. Nothing is guessed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from difflib import SequenceMatcher

from robust_run.launcher.records.code.types import CodeFile, CodeTree

GIT_S = 20.0

MergesText = Callable[[bytes, bytes, bytes], "bytes | None"]
"""(base, ours, theirs) → merged, or None for a conflict."""


class Merged:
    """What came of it."""

    def __init__(self, tree: CodeTree, contents: Mapping[str, bytes], conflicts: tuple[str, ...]) -> None:
        self.tree = tree
        """Without the conflicting files."""
        self.contents = contents
        """New contents by path, not in any store yet; their files in `tree` have no digest."""
        self.conflicts = conflicts
        """Paths, ascending."""


def merge(
    base: CodeTree, ours: CodeTree, theirs: CodeTree, read: Callable[[str], bytes], merge_text: MergesText | None = None
) -> Merged:
    """Merge two trees that come from `base`. `read` returns a content by its digest."""
    by_path = [{file.path: file for file in tree.files} for tree in (base, ours, theirs)]
    files: list[CodeFile] = []
    contents: dict[str, bytes] = {}
    conflicts: list[str] = []
    for path in sorted({*by_path[0], *by_path[1], *by_path[2]}):
        was, one, other = (each.get(path) for each in by_path)
        if other in (one, was):
            chosen = one
        elif one == was:
            chosen = other
        else:
            text = _both(was, one, other, read, merge_text or merge_lines)
            if text is None or one is None or other is None:
                conflicts.append(path)
                continue
            contents[path] = text
            executable = _changed_flag(was, one, other)
            chosen = CodeFile(path=path, size_bytes=len(text), executable=executable)
        if chosen is not None:
            files.append(chosen)
    conflicts += _file_against_folder(files)
    return Merged(CodeTree(files=tuple(files)), contents, tuple(sorted(set(conflicts))))


def _both(
    was: CodeFile | None,
    one: CodeFile | None,
    other: CodeFile | None,
    read: Callable[[str], bytes],
    merge_text: MergesText,
) -> bytes | None:
    if one is None or other is None or one.link or other.link or (was is not None and was.link):
        return None
    if one.digest == other.digest:
        return read(one.digest)
    if was is None:
        return None  # two new files of one name
    if was.digest == one.digest:
        return read(other.digest)
    if was.digest == other.digest:
        return read(one.digest)
    return merge_text(read(was.digest), read(one.digest), read(other.digest))


def _changed_flag(was: CodeFile | None, one: CodeFile, other: CodeFile) -> bool:
    if was is None:
        return one.executable or other.executable
    return other.executable if one.executable == was.executable else one.executable


def _file_against_folder(files: list[CodeFile]) -> list[str]:
    paths = {file.path for file in files}
    return [
        path
        for path in paths
        if any("/".join(path.split("/")[:depth]) in paths for depth in range(1, path.count("/") + 1))
    ]


def merge_lines(base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    """Merge three texts by lines: with git where it is installed, else with difflib."""
    git = shutil.which("git")
    merged = _with_git(git, base, ours, theirs) if git else NotImplemented
    return with_difflib(base, ours, theirs) if merged is NotImplemented else merged  # type: ignore[return-value]


def _with_git(git: str, base: bytes, ours: bytes, theirs: bytes) -> object:
    """Return the merged text, None for a conflict, NotImplemented if this git does not do it."""
    with tempfile.TemporaryDirectory(prefix="robust-merge-") as folder:
        paths = [os.path.join(folder, name) for name in ("ours", "base", "theirs")]
        for path, data in zip(paths, (ours, base, theirs), strict=True):
            with open(path, "wb") as file:
                file.write(data)
        try:
            done = subprocess.run(
                [git, "merge-file", "-p", "-q", *paths], capture_output=True, timeout=GIT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return NotImplemented
    if done.returncode == 0:
        return done.stdout
    return None if 0 < done.returncode < 128 else NotImplemented


def with_difflib(base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    """Merge three texts by lines; None if both changed the same lines, or lines that touch, in different ways."""
    lines = base.splitlines(keepends=True)
    changes = [_changes(lines, text.splitlines(keepends=True)) for text in (ours, theirs)]
    merged: list[bytes] = []
    at = 0
    one, other = changes
    while one or other:
        first = min((each[0] for each in (one, other) if each), key=lambda change: change[:2])
        mine, yours = (each[0] if each else None for each in (one, other))
        if mine is not None and yours is not None and mine == yours:
            one.pop(0)
            other.pop(0)
        elif mine is not None and yours is not None and _touch(mine, yours):
            return None
        else:
            (one if mine == first else other).pop(0)
        start, stop, new = first
        merged += lines[at:start] + new
        at = stop
    return b"".join(merged + lines[at:])


_Change = tuple[int, int, "list[bytes]"]


def _changes(old: list[bytes], new: list[bytes]) -> list[_Change]:
    """Return what was replaced: from line, to line, by what."""
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    return [
        (old_from, old_to, new[new_from:new_to])
        for kind, old_from, old_to, new_from, new_to in matcher.get_opcodes()
        if kind != "equal"
    ]


def _touch(one: _Change, other: _Change) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]
