"""How two trees differ: as a list, as a clause, and as a patch that people read. Pure but for reading contents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from difflib import SequenceMatcher, unified_diff

from robust_run.launcher.records.code.types import CodeFile, CodeTree, FileChange

#: Files that a clause names.
NAMED = 3
LONGEST_CLAUSE = 300


def changes(old: CodeTree, new: CodeTree, read: Callable[[str], bytes]) -> list[FileChange]:
    """Return the files that differ, by path."""
    before, after = ({file.path: file for file in tree.files} for tree in (old, new))
    return [
        _change(path, before.get(path), after.get(path), read)
        for path in sorted({*before, *after})
        if before.get(path) != after.get(path)
    ]


def _change(path: str, was: CodeFile | None, is_now: CodeFile | None, read: Callable[[str], bytes]) -> FileChange:
    if was is not None and is_now is not None and (was.digest, was.link) == (is_now.digest, is_now.link):
        return FileChange(path=path, kind="mode")
    old, new = (lines_of(each, read) for each in (was, is_now))
    kind = "added" if was is None else "removed" if is_now is None else "changed"
    added = removed = 0
    for tag, old_from, old_to, new_from, new_to in SequenceMatcher(None, old, new).get_opcodes():
        if tag != "equal":
            added, removed = added + new_to - new_from, removed + old_to - old_from
    return FileChange(path=path, kind=kind, added=added, removed=removed)


def lines_of(file: CodeFile | None, read: Callable[[str], bytes]) -> list[str]:
    """Return what a file says, by lines; a link says where it leads."""
    if file is None:
        return []
    text = f"-> {file.link}\n" if file.link else read(file.digest).decode(errors="replace")
    return text.splitlines(keepends=True)


def clause(differing: list[FileChange]) -> str:
    """Return `train.py +3 -1, model.py new`; empty where nothing differs."""
    words = {"added": "new", "removed": "gone", "mode": "other mode"}
    named = [f"{each.path} {words.get(each.kind) or f'+{each.added} -{each.removed}'}" for each in differing[:NAMED]]
    more = [f"{len(differing) - NAMED} more files"] if len(differing) > NAMED else []
    return ", ".join(named + more)[:LONGEST_CLAUSE]


def patch(old: CodeTree, new: CodeTree, read: Callable[[str], bytes], names: tuple[str, str]) -> Iterator[str]:
    """Yield the lines of a patch; `names` are what the two are called."""
    before, after = ({file.path: file for file in tree.files} for tree in (old, new))
    for path in sorted({*before, *after}):
        was, is_now = before.get(path), after.get(path)
        if was == is_now:
            continue
        if was is not None and is_now is not None and (was.digest, was.link) == (is_now.digest, is_now.link):
            yield f"{path}: {'no longer executable' if was.executable else 'executable now'}"
            continue
        start = f"{names[0]}/{path}" if was is not None else "/dev/null"
        end = f"{names[1]}/{path}" if is_now is not None else "/dev/null"
        for line in unified_diff(lines_of(was, read), lines_of(is_now, read), start, end):
            yield line.rstrip("\n")
