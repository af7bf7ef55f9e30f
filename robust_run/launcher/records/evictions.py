"""Eviction list shared by jobs (`--evict-list FILE`): written by jobs, read and edited by people.

    {"node":"gpu-17","reason":"GPU fell off the bus","by":"operator","at":1767225600.0}
    {"node":"gpu-17","by":"operator","at":1767312000.0,"readmitted":true}
    gpu-18                          # a person's line: a node, and why after a blank
    gpu-19 waits for a new cable

Later lines win. `#` starts a comment where a line or a word could start outside of JSON.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping

import msgspec

from robust_run.errors import PlatformError, UserError
from robust_run.launcher.core.state import Eviction
from robust_run.launcher.model.world import shown

LARGEST_BYTES = 16 << 20
"""Of the whole file."""
LONGEST_REASON = 1000
"""Characters that are written; more are cut off."""

BY_RULE = "rule "
"""Beginning of `by` where a rule, and no person, took a host out."""

_NODE = re.compile(r"[\w.:%-]{1,255}")
_COMMENT = re.compile(r"(^|\s)#.*$")


class _Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line that a job wrote."""

    node: str
    reason: str = ""
    by: str = ""
    at: float = 0.0
    """Seconds since the epoch."""
    readmitted: bool = False


def load(path: str) -> dict[str, Eviction]:
    """Return the nodes that are evicted, by host name; none if there is no such file.

    Raises UserError for a file that cannot be read and for a line that means nothing, which it names.
    """
    try:
        with open(path, "rb") as file:
            content = file.read(LARGEST_BYTES + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UserError(f"cannot read the evict list {shown(path)}: {error.strerror}") from error
    if len(content) > LARGEST_BYTES:
        raise UserError(f"the evict list {shown(path)} has more than {LARGEST_BYTES >> 20} MiB; leave out what is over")
    evicted: dict[str, Eviction] = {}
    for number, raw in enumerate(content.split(b"\n"), start=1):
        line = _parse(raw, f"{shown(path)} line {number}")
        if line is None:
            continue
        evicted.pop(line.node, None)
        if not line.readmitted:
            evicted[line.node] = Eviction(reason=line.reason, by=line.by, at_unix_s=line.at)
    return evicted


def remember_rules(path: str, evicted: Mapping[str, Eviction], known: set[str]) -> None:
    """Append the hosts that rules of health took out and that are not known to be in it; then they are. Raises as `remember`."""
    for name in [name for name, why in evicted.items() if why.by.startswith(BY_RULE) and name not in known]:
        known.add(name)
        remember(path, name, evicted[name])


def remember(path: str, node: str, eviction: Eviction) -> None:
    """Append an eviction. Raises PlatformError."""
    reason = eviction.reason[:LONGEST_REASON].encode(errors="replace").decode()
    _append(path, _Line(node=node, reason=reason, by=eviction.by, at=eviction.at_unix_s))


def forget(path: str, node: str, by: str, at_unix_s: float) -> None:
    """Append that a node may be used again. Raises PlatformError."""
    _append(path, _Line(node=node, by=by, at=at_unix_s, readmitted=True))


def _parse(raw: bytes, where: str) -> _Line | None:
    text = raw.decode(errors="replace").strip()
    if text.startswith("{"):
        try:
            line = msgspec.json.decode(text, type=_Line)
        except msgspec.MsgspecError as error:
            raise UserError(f"{where} is no eviction ({error}); mend the line or take it out") from None
    else:
        words = _COMMENT.sub("", text).split(None, 1)
        if not words:
            return None
        line = _Line(node=words[0], reason=words[1].strip() if len(words) > 1 else "")
    if not _NODE.fullmatch(line.node):
        raise UserError(f"{where}: {line.node[:80]!r} is not the name of a node; mend the line or take it out")
    return line


def _append(path: str, line: _Line) -> None:
    """Add a line in one write, so that jobs that do it at once do not mix theirs, and make it last."""
    if not _NODE.fullmatch(line.node):
        raise PlatformError(f"{line.node[:80]!r} is not the name of a node and was not added to {shown(path)}")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            unfinished = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"  # as some editors leave it
            content = b"\n" * unfinished + msgspec.json.encode(line) + b"\n"
            if os.write(descriptor, content) != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise PlatformError(f"cannot add {line.node} to the evict list {shown(path)}: {error.strerror}") from error
