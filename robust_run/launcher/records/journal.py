"""The journal: every event and every action of a job, appended before the action starts. The truth about a run.

A line is `{"at": unix seconds, "mono": monotonic seconds, "event": {...}}` or `{..., "action": {...}}`; the first line is
`{"schema": 1, "job": {...}}`. A journal that cannot be written (a full disk) is said once and never stops a job.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from robust_run.clock import Clock
from robust_run.launcher.model.actions import Action
from robust_run.launcher.model.events import Event
from robust_run.launcher.model.job import JobSpec
from robust_run.version import RUN_DIR_SCHEMA, __version__

#: How long a controller that was killed a moment ago may take to be gone.
GONE_S = 1.0


class JournalHeader(msgspec.Struct, frozen=True, kw_only=True):
    """First line of a journal."""

    schema: int
    version: str
    host: str
    pid: int
    job: JobSpec
    cwd: str = ""
    """Folder the job was started in, on that host: names in its command are relative to it."""
    rendezvous: dict[str, str] = {}
    """Which job of several nodes this is a run of: `endpoint`, `rdzv_id`, `command` and `key` of its `JobIdentity`."""


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Any other line: an event or an action."""

    at: float
    """Seconds since the epoch."""
    mono: float
    """Seconds of the machine's monotonic clock."""
    term: int = 1
    """Of the controller that wrote it."""
    event: Event | None = None
    action: Action | None = None


class Journal:
    """Appends to the journal file. `on_error(path, OSError)` is called at the first line that cannot be written."""

    def __init__(
        self,
        path: str,
        clock: Clock,
        on_error: Callable[[str, OSError], None],
        write: Callable[[int, bytes], int] = os.write,
    ) -> None:
        self.term = 1
        """Of the controller that writes. What an earlier one still writes, because it does not know of this one, is void."""
        self.path = path
        self._clock = clock
        self._write = write
        self._on_error = on_error
        self._encoder = msgspec.json.Encoder()
        self.problem = ""
        """Why lines are missing from the file; empty: none are."""
        self._owes_separator = False
        """The last line is torn, and what ends it could not be written either."""
        self._written = self._durable = 0
        self._changed: threading.Condition | None = None
        self._descriptor = -1
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            self._complain(error)

    def open_with(self, job: JobSpec, host: str) -> None:
        """Write the first line."""
        if job.notify:
            from robust_run.launcher.records.notify.target import shown

            job = msgspec.structs.replace(job, notify=tuple(shown(each) for each in job.notify))
        rendezvous: dict[str, str] = {}
        if job.many is not None:
            from robust_run.launcher.model.job_identity import identity_of

            identity = identity_of(job)
            rendezvous = {**msgspec.structs.asdict(identity), "key": identity.key}
        header = JournalHeader(
            schema=RUN_DIR_SCHEMA,
            version=__version__,
            host=host,
            pid=os.getpid(),
            job=job,
            cwd=_folder(),
            rendezvous=rendezvous,
        )
        self._append(header)

    def claim(self, patience_s: float = 0.0) -> bool:
        """Be the only one that may continue this run, as long as this process lives; False if another one is.

        `patience_s`: how long another may take to let go of it: one that was killed a moment ago, or that only looks whether
        it is held. Where the file system knows no locks, every process may.
        """
        import fcntl
        import time

        if self._descriptor < 0:
            return True
        give_up_at_s = time.monotonic() + patience_s
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= give_up_at_s:
                    return False
                time.sleep(0.02)
            except OSError:
                return True
            else:
                return True

    def close(self) -> None:
        """Let go of the file. Nothing can be written any more."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def event(self, event: Event, now_s: float, actions: Sequence[Action] = ()) -> None:
        """Append an event, the time it is decided at, and the actions that follow from it, before any of them starts.

        All in one write: a process that is killed here leaves all of it or nothing, so that no event is without its incident.
        """
        at = self._clock.unix_s()
        self._append(
            JournalEntry(at=at, mono=now_s, term=self.term, event=event),
            *(JournalEntry(at=at, mono=now_s, term=self.term, action=action) for action in actions),
        )

    def is_empty(self) -> bool:
        """Whether nothing is on record yet."""
        try:
            return os.path.getsize(self.path) == 0
        except OSError:
            return True

    def end_torn_line(self) -> None:
        """Keep what is written next apart from a line that a power loss cut short."""
        try:
            with open(self.path, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(size - 1, 0))
                torn = file.read(1) not in (b"", b"\n")
            if torn:
                os.write(self._descriptor, b"\n")
        except OSError as error:
            self._complain(error)

    def _append(self, *lines: msgspec.Struct) -> None:
        if self._descriptor < 0:
            return
        data = b"".join(self._encode(line) + b"\n" for line in lines)
        if self._owes_separator:
            data = b"\n" + data  # keeps the first line whole; a reader skips the torn one
        try:
            written = self._write(self._descriptor, data)
            if written:
                self._owes_separator = written != len(data)
        except OSError as error:
            self._complain(error)
        self._written += len(lines)

    def _encode(self, line: msgspec.Struct) -> bytes:
        try:
            return self._encoder.encode(line)
        except UnicodeEncodeError:  # file names and arguments may hold bytes that are no text
            return self._encoder.encode(_as_text(msgspec.to_builtins(line)))

    def _complain(self, error: OSError) -> None:
        if not self.problem:
            self.problem = error.strerror or str(error)
            self._on_error(self.path, error)

    def sync_soon(self) -> None:
        """Start making what was appended durable, in the background."""
        if self._changed is None:
            self._changed = threading.Condition()
            threading.Thread(target=self._sync_loop, args=(self._changed,), name="journal", daemon=True).start()
        with self._changed:
            self._changed.notify_all()

    @property
    def written(self) -> int:
        """How many lines were appended."""
        return self._written

    def is_durable(self, lines: int) -> bool:
        """Whether so many of them are on the disk. Does not wait."""
        return self._durable >= lines

    def wait_durable(self, timeout_s: float) -> bool:
        """Wait until everything appended so far is on the disk; False if that takes too long."""
        if self._changed is None:
            self.sync_soon()
        changed, goal = self._changed, self._written
        assert changed is not None
        with changed:
            changed.notify_all()
            return changed.wait_for(lambda: self._durable >= goal, timeout_s)

    def _sync_loop(self, changed: threading.Condition) -> None:
        while True:
            with changed:
                changed.wait_for(lambda: self._durable < self._written)
                goal = self._written
            try:
                if self._descriptor >= 0:
                    os.fdatasync(self._descriptor)
            except OSError:
                pass  # a file system that cannot sync; the line itself was written or complained about
            with changed:
                self._durable = goal
                changed.notify_all()


def is_claimed(path: str) -> bool:
    """Whether a process holds a journal (see `Journal.claim`); False where that cannot be told."""
    import fcntl

    try:
        with open(path, "rb") as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)  # given back with the descriptor
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def events_of(entries: Iterable[JournalEntry]) -> Iterator[tuple[Event, float]]:
    """Return the events among entries with the times they were decided at, as `core.replay` wants them."""
    return ((entry.event, entry.mono) for entry in entries if entry.event is not None)


class Terms:
    """Tells lines in force from those that a controller wrote after a newer one had begun: those are void."""

    def __init__(self) -> None:
        self._newest = 0

    def hold(self, term: int) -> bool:
        """Whether the next line is in force, which a controller of this term wrote."""
        self._newest = max(self._newest, term)
        return term == self._newest


def in_force(entries: Iterable[JournalEntry]) -> Iterator[JournalEntry]:
    """Leave out what is void."""
    terms = Terms()
    return (entry for entry in entries if terms.hold(entry.term))


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return ""


def _as_text(value: object) -> object:
    """Return the same with every undecodable byte spelled `\\udcff`."""
    if isinstance(value, str):
        return value.encode("utf-8", errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_as_text(key): _as_text(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_text(item) for item in value]
    return value
