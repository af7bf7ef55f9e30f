"""Takes the code of a job from the user's folder: the whole work tree of git where there is one, else the script's folder."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Sequence

import msgspec

from robust_run.launcher.records.code.content_store import digest_of
from robust_run.launcher.records.code.errors import CodeError, TooMuchError
from robust_run.launcher.records.code.program import Program, module_folder, script_path
from robust_run.launcher.records.code.scan import Scan, is_weak
from robust_run.launcher.records.code.tree_store import id_of
from robust_run.launcher.records.code.types import LIMITS, CodeFile, CodeLimits, CodeTree, Left
from robust_run.launcher.records.code.work_tree import head_commit, work_tree_of

#: Files that were left out are named, so many of them.
LEFT_OUT_NAMED, CHANGED_NAMED = 20, 6


class CodeRoot(msgspec.Struct, frozen=True, kw_only=True):
    """A folder of code."""

    folder: str
    """Absolute."""
    entry: str = ""
    """The script, relative to it; empty for a module."""


def roots_of(argv: Sequence[str], program: Program, cwd: str) -> tuple[CodeRoot, ...]:
    """Return the folders that may be the job's code, the widest first; none where the code is not the user's."""
    script = script_path(argv, program, cwd)
    folder = module_folder(argv, program, cwd)
    if script:
        folder = script if os.path.isdir(script) else os.path.dirname(script)
    if not folder:
        return ()
    top = work_tree_of(folder)
    tops = dict.fromkeys(each for each in (top if not _is_everybodys(top) else "", folder) if each and each != "/")
    return tuple(CodeRoot(folder=top, entry=_below(script, top) if script else "") for top in tops)


def _is_everybodys(folder: str) -> bool:
    """Whether a folder is more than one project's: a home, or one like /tmp."""
    if not folder:
        return False
    try:
        return folder == os.path.expanduser("~") or bool(os.stat(folder).st_mode & stat.S_ISVTX)
    except OSError:
        return False


def _below(path: str, folder: str) -> str:
    below = os.path.relpath(path, folder)
    return "" if below == "." else below


def look(
    root: CodeRoot, leave: Sequence[str] = (), limits: CodeLimits = LIMITS, clock: Callable[[], float] | None = None
) -> Scan:
    """Look through one folder; of a home, or one like /tmp, not what is below. Raises CodeError, TooMuchError.

    `leave`: run directories.
    """
    if _is_everybodys(root.folder):
        limits = msgspec.structs.replace(limits, deepest=1)
    always = (root.entry,) if root.entry else ()
    return Scan(root.folder, leave=tuple(leave), always=always, limits=limits, clock=clock)


def look_first(
    roots: Sequence[CodeRoot],
    leave: Sequence[str] = (),
    limits: CodeLimits = LIMITS,
    clock: Callable[[], float] | None = None,
) -> tuple[CodeRoot, Scan]:
    """Look through the first folder that is no more than code. Raises CodeError with why there is none."""
    problem: CodeError = CodeError("the program is not in a folder of the user's")
    for root in roots:
        try:
            scan = look(root, leave, limits, clock)
        except TooMuchError as error:
            problem = error
            continue
        if root.entry and not holds((found.path for found in scan.files), root.entry):
            raise CodeError(f"{root.entry!r} is no file of code that can be captured{_why(scan, root.entry)}")
        return root, scan
    raise problem


def holds(paths: Iterable[str], entry: str) -> bool:
    """Whether a script, or a folder that is one, is among files of code."""
    return any(path == entry or path.startswith(f"{entry}/") for path in paths)


def _why(scan: Scan, entry: str) -> str:
    return next((f": it {each.reason}" for each in scan.left if each.path == entry), "")


def left_out(left: Sequence[Left]) -> tuple[str, ...]:
    """Return what is called code and yet is not taken, for the record: the first few, and how many more."""
    named = [f"{each.path} {each.reason}" for each in left if is_oversize(each)]
    more = len(named) - LEFT_OUT_NAMED
    return (*named[:LEFT_OUT_NAMED], *([f"{more} more"] if more > 0 else []))


def is_oversize(left: Left) -> bool:
    """Whether a file that was left is code but for its size or content."""
    return (left.reason.startswith("is larger than") or left.reason == "is binary") and not is_weak(left.path)


def changed_since(left: Sequence[Left], folder: str, unix_s: float) -> str:
    """Return the files that were left and were written since, the likeliest to be meant first, as a clause; or nothing."""
    written = []
    for each in sorted(left, key=lambda each: (not is_oversize(each), each.reason != "is no code", each.path)):
        try:
            status = os.lstat(os.path.join(folder, each.path))
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode) and status.st_mtime > unix_s:
            written.append(f"{each.path} ({each.reason})")
    more = f" and {len(written) - CHANGED_NAMED} more" if len(written) > CHANGED_NAMED else ""
    return ", ".join(written[:CHANGED_NAMED]) + more


def tree_id_of(scan: Scan) -> str:
    """Return the id of what was found, without keeping it."""
    return id_of(
        CodeTree(
            files=tuple(
                CodeFile(path=found.path, link=found.link)
                if found.link
                else CodeFile(
                    path=found.path,
                    digest=digest_of(found.data),
                    size_bytes=len(found.data),
                    executable=found.executable,
                )
                for found in scan.files
            )
        )
    )


def commit_of(folder: str) -> str:
    """Return the commit that a folder's work tree is at; empty where it is in none."""
    top = work_tree_of(folder)
    return head_commit(top) if top else ""
