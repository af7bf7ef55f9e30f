"""The index of a folder of runs: `<log dir>/.fleet/`, one small file for each run that is over.

    1767225600-20260101-000000-ab12.json    the facts of one run (`fleet.words.RunFacts`): when it began, and its id
    .draft-...                              one that is being written, or whose writer was killed: it is passed over
    .gitignore                              keeps all this out of commits

Many jobs on many hosts write at once, and need a shared folder for it and no locks: each has a file of its own, which is written
under another name and renamed, so that a reader sees all of it or nothing. A run that is resumed has the same name and replaces
what it wrote before. People may remove any of it at any time: a run whose directory is still there is read from that.

Nothing here is taken for a run by what looks for runs: those have a journal, or folders of attempts.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator

import msgspec

from robust_run.atomic_file import write_file
from robust_run.errors import PlatformError
from robust_run.fleet.found import Found
from robust_run.fleet.words import SCHEMA, RunFacts

FOLDER = ".fleet"
#: Of one run: 10,000 nodes and 10,000 incidents have 3 MiB.
MOST_BYTES = 4 << 20
#: So many runs are read, those that began last.
MOST_RUNS = 10_000
LONGEST_HOST, LONGEST_WORD = 253, 1000
#: Of a world, and of its ranks or GPUs. One file with more would decide all figures of a folder.
MOST_NODES, MOST_RANKS = 100_000, 10_000_000
#: A node was part of a run for as long as that lasted, but for clocks that differ, or were set in between.
SLACK_S = 3600.0

_RUN_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_NAME = re.compile(r"[0-9]{10,12}-[A-Za-z0-9._-]{1,128}\.json")


class _Head(msgspec.Struct, frozen=True):
    """What files of all versions have."""

    schema: int


def folder_of(log_dir: str) -> str:
    """Return where the facts of the runs in a folder are kept."""
    return os.path.join(log_dir, FOLDER)


def name_of(facts: RunFacts) -> str:
    """Return the name of a run's file. Raises PlatformError for a run whose id or beginning is none."""
    began = f"{int(facts.began_s):010d}" if 0 <= facts.began_s < 1e12 else ""
    name = f"{began}-{facts.run_id}.json"
    if not _RUN_ID.fullmatch(facts.run_id) or not _NAME.fullmatch(name):
        raise PlatformError(f"the run {facts.run_id[:80]!r} (began at {facts.began_s!r}) has no name for a file")
    return name


def keep(log_dir: str, facts: RunFacts) -> None:
    """Add the facts of a run, or replace them. Raises OSError, and PlatformError for facts that would not be read again."""
    name, data = name_of(facts), encoded(facts)
    if len(data) > MOST_BYTES:
        raise PlatformError(f"the facts of this run have {len(data)} bytes; at most {MOST_BYTES} are kept")
    if why := _why_not(facts, name):
        raise PlatformError(f"the facts of this run would not be read again: {why}")
    folder = folder_of(log_dir)
    _make(folder, log_dir)
    draft = f".draft-{os.getpid()}-{os.urandom(8).hex()}"  # two controllers of one run may be at it, on two hosts
    write_file(os.path.join(folder, name), data, draft=os.path.join(folder, draft))


def read(log_dir: str, most: int = MOST_RUNS) -> Found:
    """Return the facts that runs of a folder have left, in the order in which they began: of the newest, `most` at most.

    Never raises: what cannot be read is counted.
    """
    folder = folder_of(log_dir)
    names, left_out = _names(folder, most)
    facts: list[RunFacts] = []
    for name in names:
        found = _read_one(os.path.join(folder, name), name)
        if isinstance(found, RunFacts):
            facts.append(found)
        elif found:
            left_out[found] = left_out.get(found, 0) + 1
    return Found(facts=tuple(facts), left_out=left_out)


def _names(folder: str, most: int) -> tuple[list[str], dict[str, int]]:
    """Return the files to read, oldest first, and how many of what kind are left out."""
    try:
        names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except FileNotFoundError:
        return [], {}
    except OSError:
        return [], {"unreadable": 1}
    ours = [name for name in names if _NAME.fullmatch(name)]
    counts = {"foreign": len(names) - len(ours), "too many": max(len(ours) - most, 0)}
    return ours[-most:], {kind: count for kind, count in counts.items() if count}


def _read_one(path: str, name: str) -> RunFacts | str:
    """Return the facts of a file, else why it is left out; empty: it was removed meanwhile."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    except OSError:
        return "unreadable"
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
            return "foreign"
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(MOST_BYTES + 1)
    except OSError:
        return "unreadable"
    finally:
        os.close(descriptor)
    return decoded(data, name)


def encoded(facts: RunFacts) -> bytes:
    """Return the facts as a file holds them: with their version, which a Struct leaves out while it is the newest. Pure."""
    return msgspec.json.encode({"schema": facts.schema, **msgspec.to_builtins(facts)})


def decoded(data: bytes, name: str) -> RunFacts | str:
    """Return the facts that the bytes of a file of this name are, else why they are left out. Pure."""
    try:
        if msgspec.json.decode(data, type=_Head).schema != SCHEMA:
            return "other version"
        facts = msgspec.json.decode(data, type=RunFacts)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return "damaged"
    return "damaged" if _why_not(facts, name) else facts


def _why_not(facts: RunFacts, name: str) -> str:
    """Return what is impossible in the facts of a run; empty: nothing."""
    try:
        if name_of(facts) != name:
            return "they are another run's"
    except PlatformError as error:
        return str(error)
    if not facts.began_s <= facts.until_s < 1e12:
        return "the run ends before it begins"
    hosts, numbers = _hosts(facts), _seconds(facts)
    if not all(0 < len(host) <= LONGEST_HOST and host.isprintable() for host in hosts):
        return "a host has a name that is none"
    if not all(0 <= number < 1e12 for number in numbers):
        return "a time or a count is negative, or too large"
    if facts.nodes > MOST_NODES or max(facts.ranks, facts.gpus) > MOST_RANKS:
        return "it has more nodes or ranks than any run"
    longest_s = 2.0 * (facts.until_s - facts.began_s) + SLACK_S
    if max((*facts.node_s.values(), facts.effective_s or 0.0), default=0.0) > longest_s or (facts.ettr or 0.0) > 2.0:
        return "a node was part of it for longer than it lasted, or it trained for longer"
    return ""


def _hosts(facts: RunFacts) -> set[str]:
    named = (host for each in facts.incidents for host in (*each.nodes, *each.evicted))
    return {*facts.node_s, *named}


def _seconds(facts: RunFacts) -> Iterator[float]:
    yield from facts.node_s.values()
    yield from (facts.nodes, facts.ranks, facts.gpus, facts.saves)
    yield from (each or 0.0 for each in (facts.ettr, facts.effective_s, facts.steps, facts.step_s))
    yield from (each or 0.0 for each in (facts.save_every_s, facts.blocked_s))
    for incident in facts.incidents:
        yield incident.at_s
        yield from msgspec.structs.astuple(incident.lost)
    for start in facts.starts:
        yield from (start.at_s, start.nodes, start.ready_s or 0.0, start.first_step_s or 0.0)


def _make(folder: str, log_dir: str) -> None:
    """Make the folder of the index, as open to a group as that of the runs is: its members keep one memory."""
    try:
        os.mkdir(folder)
    except FileExistsError:
        return
    open_to = stat.S_IMODE(os.stat(log_dir).st_mode) & (stat.S_IRWXU | stat.S_IRWXG | stat.S_ISGID)
    is_anybodys = bool(os.stat(log_dir).st_mode & stat.S_IWOTH)
    if open_to & stat.S_IWGRP and not is_anybodys:
        os.chmod(folder, open_to)
    write_file(os.path.join(folder, ".gitignore"), b"*\n")
