"""Looks at a local folder of checkpoints, in a moment: which there are, and which is the newest that is whole.

For the launcher, before a worker starts, and for `robust ckpt latest`, so that the two agree. It imports next to nothing.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterator

import msgspec

from robust_run.ckpt_io.briefly import HEAD_BYTES, PARTS, Brief, decoded, open_without_waiting, parts_fault, read
from robust_run.ckpt_io.seen import Age, FolderLook, SeenCheckpoint, is_temporary, step_said

WRITTEN_BY = "code version"
"""The fact that says so."""
_FACT_CHARACTERS = 200
#: What a look tells at most, unless it is asked for more; and of how many whole ones the parts are looked at.
MOST_SEEN = 8
WHOLE_ONES = 2
#: Troubles with a folder that are none of a moment.
_LASTING = frozenset((errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG))


Known = dict[str, tuple[tuple[int, ...], SeenCheckpoint]]
"""Manifests that were read before, by their path: what tells that the file is still the same, and what it said."""


def look(
    root: str,
    *,
    names: Collection[str] = (),
    avoid: Collection[str] = (),
    untrusted: Collection[str] = (),
    most: int = MOST_SEEN,
    whole: int = WHOLE_ONES,
    known: Known | None = None,
) -> FolderLook:
    """Return what is seen of the checkpoints in a folder. What has a temporary name (`step-3.pt.tmp`) is none. Never raises.

    `names` are looked for by name too, where the list of the folder is an old one, and their parts are looked at. `avoid`: uuids
    of those whose parts are not worth a look. `untrusted`: what `written_by` returns for code that is not trusted any more; what
    that wrote comes last. Of at most `most` the parts are looked at, until `whole` of them are whole.
    """
    known = {} if known is None else known
    try:
        with os.scandir(root) as entries:
            folders = [(entry.name, entry.is_symlink()) for entry in entries if entry.is_dir()]
    except FileNotFoundError:
        folders = []
    except OSError as error:
        trouble = f"{root!r} cannot be listed: {error.strerror}"
        return FolderLook(trouble=trouble, may_pass=error.errno not in _LASTING)
    folders = [(name, is_link) for name, is_link in folders if not is_temporary(name)]
    listed = {name for name, _ in folders}
    folders += [
        (name, os.path.islink(os.path.join(root, name))) for name in sorted({*names} - listed) if _is_name(name)
    ]
    found = [_manifest(root, name, known, is_link=is_link) for name, is_link in folders]
    for path in known.keys() - {_manifest_in(root, name) for name, _ in folders}:
        del known[path]
    seen = sorted(filter(None, found), key=lambda each: _order(each, untrusted), reverse=True)
    others = [each for each in seen if each.uuid not in avoid and each.name not in names]
    left_out = {each.name for each in others[most:]}
    told = [each for each in seen if each.name not in left_out]
    return FolderLook(seen=tuple(_with_parts(root, told, names, avoid, whole)), left_out=len(left_out))


def _order(seen: SeenCheckpoint, untrusted: Collection[str]) -> tuple[bool, bool, Age]:
    return bool(seen.uuid), seen.written_by not in untrusted, seen.age


def _is_name(name: str) -> bool:
    return bool(name) and name not in (".", "..") and "/" not in name and "\0" not in name


def _with_parts(
    root: str, told: list[SeenCheckpoint], names: Collection[str], avoid: Collection[str], whole: int
) -> Iterator[SeenCheckpoint]:
    for each in told:
        if each.fault is None and each.uuid not in avoid and (whole > 0 or each.name in names):
            each = msgspec.structs.replace(each, fault=parts_fault(os.path.join(root, each.name)))  # noqa: PLW2901
            whole -= not each.fault
        yield each


def newest_path(root: str, untrusted: Collection[str] = ()) -> str | None:
    """Return the path of the newest checkpoint in a folder that is whole; None if there is none, or no such folder. Never raises.

    `untrusted`: see `look`. What such code wrote counts if there is nothing else.
    """
    chosen = newest_whole(look(root, untrusted=untrusted, most=1 << 30, whole=1))
    return None if chosen is None else os.path.join(root, chosen.name)


def newest_whole(found: FolderLook) -> SeenCheckpoint | None:
    """Return the newest checkpoint of a look that is whole."""
    return next((each for each in found.seen if each.fault == ""), None)


def age_of(path: str) -> tuple[float, int | None] | None:
    """Return when a checkpoint was written (seconds since the epoch), and its step; None if it is none. Never raises."""
    brief = read(path, Brief)
    return None if brief is None else (brief.created_s, brief.step)


def saved(root: str) -> list[tuple[float, int | None]]:
    """Return when each checkpoint in a folder was made (seconds since the epoch) and its step. Never raises."""
    try:
        with os.scandir(root) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
            names = [name for name in names if not is_temporary(name)]
    except OSError:
        return []
    briefs = (read(os.path.join(root, name), Brief) for name in names)
    return [(brief.created_s, brief.step) for brief in briefs if brief is not None]


def written_by(job: str, version: str) -> str:
    """Return how a checkpoint says which version of which job's code wrote it; empty where that is not known."""
    text = f"{job} {version}"[:_FACT_CHARACTERS]
    return text if version and text.isprintable() else ""


def _manifest(root: str, name: str, known: Known, *, is_link: bool) -> SeenCheckpoint | None:
    """Return what a folder's manifest says of its age; None where there is none of ours.

    The file is opened even if it is known: over NFS that asks the server whether it is still the same. A file that is empty or
    says something else, as after a power loss, is a damaged manifest where the folder is a checkpoint by its name or its parts:
    a job that took it for none would begin anew. Others' programs, too, have files of that name.
    """
    path = _manifest_in(root, name)
    try:
        with open(path, "rb", opener=open_without_waiting) as file:
            status = os.fstat(file.fileno())
            mark = (status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size, is_link)
            before = known.get(path)
            if before is not None and before[0] == mark:
                return before[1]
            head = file.readline(HEAD_BYTES)
            if not head.startswith(b"rrck ") and not _may_be_ours(root, name):
                return None
            brief = decoded(head, file, Brief)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        if step_said(_as_text(name)) is None:
            return None  # as `lost+found` is
        return SeenCheckpoint(
            name=_as_text(name), is_link=is_link, fault=f"its manifest may not be read: {error.strerror}"
        )
    except OSError as error:
        return SeenCheckpoint(
            name=_as_text(name), is_link=is_link, fault=f"its manifest cannot be read: {error.strerror}"
        )
    if brief is None or not _is_sound(brief):
        seen = SeenCheckpoint(
            name=_as_text(name), created_s=status.st_mtime, is_link=is_link, fault="its manifest is damaged"
        )
    elif _as_text(name) != name:
        seen = SeenCheckpoint(
            name=_as_text(name), created_s=brief.created_s, is_link=is_link, fault="its name is no text"
        )
    else:
        seen = SeenCheckpoint(
            name=name,
            uuid=brief.uuid,
            step=brief.step,
            created_s=brief.created_s,
            written_by=brief.facts.get(WRITTEN_BY, "")[:_FACT_CHARACTERS],
            is_link=is_link,
        )
    known[path] = (mark, seen)
    return seen


def _may_be_ours(root: str, name: str) -> bool:
    """Whether a folder is a checkpoint of ours by its name or its parts. Raises OSError."""
    if step_said(_as_text(name)) is not None:
        return True
    with os.scandir(os.path.join(root, name)) as entries:
        return any(entry.name.startswith(PARTS) for entry in entries)


def _manifest_in(root: str, name: str) -> str:
    return os.path.join(root, name, "MANIFEST")


def _is_sound(brief: Brief) -> bool:
    """Whether what a manifest says of its age is within the limits of the format (see `manifest.check`)."""
    return brief.uuid.isalnum() and len(brief.uuid) <= 64 and (brief.step is None or 0 <= brief.step < 1 << 62)


def _as_text(name: str) -> str:
    """Return a file's name as text, of any bytes."""
    return name.encode(errors="backslashreplace").decode()
