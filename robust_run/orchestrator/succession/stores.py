"""Journal and queues of a job as entries of the log that voters keep: what a leader writes, and what its successor reads.

A leader that takes over has every entry; times in it are of another machine's clock, so that leases of workers begin anew
(`Resumed`), and the journal says who leads from there (`words.NodeLeads`). Numbers of items go on as they are: what is not
committed was told to nobody."""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol

import msgspec

from robust_run.atomic_file import write_file
from robust_run.orchestrator.journal import NAME, Head
from robust_run.orchestrator.model.queue_state import Answer, Held, QueueState
from robust_run.orchestrator.model.spec import RolesSpec
from robust_run.orchestrator.model.succession_words import Entry, What
from robust_run.orchestrator.model.words import Event, Line
from robust_run.orchestrator.queue.book import RECONNECT_S, matters
from robust_run.orchestrator.rules.queue_core import resume, step
from robust_run.roles.queue_words import QueueEvent
from robust_run.version import RUN_DIR_SCHEMA, __version__


class Happened(msgspec.Struct, frozen=True, tag="event"):
    """What happened to a queue, and when, by the clock of who led."""

    at_s: float
    event: QueueEvent


class Resumed(msgspec.Struct, frozen=True, tag="resumed"):
    """Another process leads: what is leased stays so until its workers had time to come back."""

    at_s: float


_json = msgspec.json.Encoder()
_encoder = msgspec.msgpack.Encoder()
_lines = msgspec.json.Decoder(Line)
_heads = msgspec.json.Decoder(Head)
_happened: msgspec.msgpack.Decoder[Happened | Resumed] = msgspec.msgpack.Decoder(Happened | Resumed)
_states = msgspec.msgpack.Decoder(QueueState)
_items = msgspec.msgpack.Decoder(Held)


class Writing(Protocol):
    """The log, for who leads."""

    def append(self, what: What, name: str, data: bytes) -> None:
        """Put an entry at the end."""


class Past:
    """What a log says. `lines`: of the journal, as they are written there."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.spec: RolesSpec | None = None
        self.events: list[tuple[Event, float]] = []
        self.lines: list[bytes] = []
        self.queues: dict[str, QueueState] = {}
        self._drafts: dict[str, QueueState] = {}
        for entry in entries:
            self.take(entry)

    def take(self, entry: Entry) -> None:
        """Take in the next entry."""
        match entry.what:
            case "journal" if entry.name:
                self.spec = _heads.decode(entry.data).roles
                self.lines.append(entry.data)
            case "journal":
                line = _lines.decode(entry.data)
                self.lines.append(entry.data)
                if line.event is not None:
                    self.events.append((line.event, line.mono))
            case "begins":
                self._drafts[entry.name] = _states.decode(entry.data)
            case "item" if entry.name in self._drafts:
                held = _items.decode(entry.data)
                self._drafts[entry.name].held[held.item.number] = held
            case "ends" if entry.name in self._drafts:
                self.queues[entry.name] = self._whole(self._drafts.pop(entry.name))
            case "queue":
                self._drafts.pop(entry.name, None)  # who wrote it was lost before it was whole
                self._happened(entry)
            case _:
                pass

    def _whole(self, state: QueueState) -> QueueState:
        state.waiting = [number for number, held in state.held.items() if held.standing == "waiting"]
        heapq.heapify(state.waiting)
        return state

    def _happened(self, entry: Entry) -> None:
        state = self.queues.get(entry.name)
        if state is None:
            return
        happened = _happened.decode(entry.data)
        if isinstance(happened, Resumed):
            resume(state, happened.at_s, RECONNECT_S, another_clock=True)
        else:
            step(state, happened.event, happened.at_s)


class LoggedQueue:
    """One queue, whose file is the log."""

    def __init__(self, name: str, state: QueueState, log: Writing, now_s: float) -> None:
        self.state = state
        self._name, self._log = name, log
        if state.identity:
            resume(state, now_s, RECONNECT_S, another_clock=True)
            log.append("queue", name, _encoder.encode(Resumed(now_s)))
        else:
            state.identity = os.urandom(8).hex()
            self.write_whole()

    def tell(self, event: QueueEvent, now_s: float) -> Answer:
        """Take in an event; its entry comes before what follows from its answer."""
        answer = step(self.state, event, now_s)
        if matters(event, answer):
            self._log.append("queue", self._name, _encoder.encode(Happened(now_s, event)))
        return answer

    def write_whole(self) -> None:
        """Put all of it into the log: what is there of it before is void then."""
        bare = msgspec.structs.replace(self.state, held={}, waiting=[])
        self._log.append("begins", self._name, _encoder.encode(bare))
        for held in self.state.held.values():
            self._log.append("item", self._name, _encoder.encode(held))
        self._log.append("ends", self._name, b"")

    def close(self) -> None:
        """Nothing is open."""


class LoggedJournal:
    """The journal as entries of the log; and as `roles.jsonl` beside, for people and `robust roles`."""

    def __init__(self, folder: str, spec: RolesSpec, past: Past, log: Writing, say: Callable[[str], None]) -> None:
        self.past = past.events
        self._path, self._log, self._say = os.path.join(folder, NAME), log, say
        self._file = -1
        lines, past.lines = past.lines, []
        if not lines:
            head = _json.encode(Head(schema=RUN_DIR_SCHEMA, version=__version__, roles=spec))
            log.append("journal", "head", head)
            lines = [head]
        try:
            # In the place of an earlier leader's, which may be about to write another line into its own.
            write_file(self._path, b"\n".join([*lines, b""]), mode=0o600)
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            say(
                f"{self._path} cannot be written ({error.strerror}): robust roles will not know of this job once it is over"
            )

    def add(self, line: Line) -> None:
        """Put it on record."""
        data = _json.encode(line)
        self._log.append("journal", "", data)
        if self._file >= 0:
            with suppress(OSError):
                os.write(self._file, data + b"\n")

    def close(self) -> None:
        """Let go of the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def void(entries: Iterable[Entry], committed: int) -> Callable[[Entry], bool]:
    """Return what says whether an entry is void: of a queue, before the newest that is whole and committed."""
    begun: dict[str, int] = {}
    whole: dict[str, int] = {}
    for entry in entries:
        if entry.index > committed:
            break
        if entry.what == "begins":
            begun[entry.name] = entry.index
        elif entry.what == "ends" and entry.name in begun:
            whole[entry.name] = begun[entry.name]
        elif entry.what == "queue":
            begun.pop(entry.name, None)
    return lambda entry: entry.what not in ("journal", "head") and entry.index < whole.get(entry.name, 0)
