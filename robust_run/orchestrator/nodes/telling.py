"""What a node that does not lead says: to the leader, to its own workers (where the leader is), and to people."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import suppress

import msgspec

from robust_run.atomic_file import write_file
from robust_run.orchestrator.machine import NodeHas
from robust_run.orchestrator.model.node_words import Happened, JobOver, Offer, Several
from robust_run.orchestrator.model.spec import MANY
from robust_run.orchestrator.model.words import Event
from robust_run.process_start import started_at
from robust_run.roles.client import Place
from robust_run.terminal import plain


def first_offer(meeting: Several, has: NodeHas) -> Offer:
    """Return what a node is, whatever runs there and wherever it is reached."""
    return Offer(
        name=meeting.name,
        boot=os.urandom(8).hex(),
        guard=f"{os.getppid()}.{started_at(os.getppid())}",
        slots=MANY,
        devices=has.devices,
        cpus=has.cpus,
        labels=has.labels,
        address="",
    )


def how_it_ended(job: str, over: JobOver, *, is_said: bool) -> str:
    """Return the line of a node that the job was ended on; empty: it ended well, or a node of the same output says it."""
    if not over.code or is_said:
        return ""
    return f"{job or 'the job'} ended: {over.sentence or f'exit code {over.code}, as the node that leads says'}"


class Unsaid:
    """What happened here and is on record nowhere: it is said again to each leader, in order."""

    def __init__(self) -> None:
        self._all: deque[Happened] = deque()
        self._number = 0

    def add(self, event: Event) -> Happened:
        """Something has happened."""
        self._number += 1
        happened = Happened(number=self._number, event=event)
        self._all.append(happened)
        return happened

    def on_record(self, number: int) -> None:
        """All up to this number is on record."""
        while self._all and self._all[0].number <= number:
            self._all.popleft()

    def __iter__(self) -> Iterator[Happened]:
        return iter(self._all)


class PlaceFile:
    """Says where the leader is, to workers of this node; where it may move, to people who look here, too."""

    def __init__(self, meeting: Several) -> None:
        self._meeting = meeting
        self._place: Place | None = None

    def write(self, folder: str, address: str, port: int, *, moves: bool) -> None:
        """The leader is there. Raises OSError."""
        place = Place(
            address=address, port=port, secret=self._meeting.secret, roles=(), moves=moves, tls=self._meeting.tls
        )
        if place == self._place:
            return
        data = msgspec.json.encode(place)
        write_file(os.path.join(folder, f"roles.{self._meeting.name}.place"), data, mode=0o600)
        if moves:
            write_file(os.path.join(folder, "roles.place"), data, mode=0o600)
        self._place = place


class Aloud:
    """Lines for people, on stderr."""

    def __init__(self) -> None:
        self._said = ""

    def say(self, text: str) -> None:
        """Tell people a line."""
        with suppress(OSError):
            sys.stderr.write(f"robust-run: {plain(text)}\n")
            sys.stderr.flush()

    def say_once(self, text: str) -> None:
        """The same, unless it was said last."""
        if text != self._said:
            self._said = text
            self.say(text)
