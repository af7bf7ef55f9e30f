"""The text of NCCL's RAS (`VERBOSE STATUS`), which all versions that have RAS speak. Pure; never raises.

Only what is said of single communicators is taken: sections that begin with `#0-1 (9f3c...) MISMATCH`, `INCOMPLETE` or `ERROR`.
Communicators in which all is well are not listed one by one there, so none is returned.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from robust_run.tracer.ras.types import (
    COMMUNICATORS,
    ROWS,
    WORD_CHARACTERS,
    RasCommunicator,
    RasMissing,
    RasRank,
    RasReport,
    RasState,
)

_VERSION = re.compile(r"NCCL version (\S{1,64})")
_TIMEOUTS = re.compile(r"Encountered (\d{1,9}) communication timeout")
_HEAD = re.compile(r"#\d{1,9}-\d{1,9} \(([0-9a-f]{1,16})\) (MISMATCH|INCOMPLETE|ERROR)\s*$")
_GROUP = re.compile(r"\s*(\d{1,5})\s+\d{1,9}\s+\d{1,9}\s+\S{1,20}\s+(\d{1,9})\s+\d{1,9}\s+[A-Z]+\s+[A-Z,]+\s*$")
_KIND = re.compile(r"\s*Communicator ranks have different (\w{1,40}) operation counts")
_MANY = re.compile(r"\s*(\d{1,9}) ranks have (launched up to operation (\d{1,18})|not launched any operations)")
_ONE = re.compile(r"\s*Rank (\d{1,9}) has (launched up to operation (\d{1,18})|not launched any operations)")
_STATUS = re.compile(r"\s*(?:Rank (\d{1,9}) has|(\d{1,9}) ranks have) status ([A-Z]+)")
_ERRORS = re.compile(r"\s*(?:Rank (\d{1,9})|(\d{1,9}) ranks) reported ")
_LISTED = re.compile(r"\s*Rank (\d{1,9}) -- ")
_WHO = re.compile(r"managed by process (\d{1,10}) on node (\S{1,64})")
_STATES: dict[str, RasState] = {"INIT": "init", "RUNNING": "running", "FINALIZE": "finalize", "ABORT": "abort"}


class _Section:
    """What the sections of one communicator have said so far."""

    def __init__(self, hash_: int, size: int) -> None:
        self.hash = hash_
        self.size = size
        self.usual: dict[str, tuple[int, int]] = {}
        """By kind: how many ranks say so, and the number."""
        self.usual_state: tuple[int, RasState] = (0, "unknown")
        self.counts: dict[int, dict[str, int]] = {}
        self.states: dict[int, RasState] = {}
        self.errors: set[int] = set()
        self.who: dict[int, tuple[int, str]] = {}
        self.missing: list[RasMissing] = []
        self.part = ""
        self.kind = ""
        self.listed: tuple[str, int] = ("", 0)
        """What holds of the ranks that are listed below without a word: a kind of line, and its number."""
        self.listed_state: RasState = "unknown"

    def take(self, line: str) -> None:
        """Take in a line of a section."""
        who = _WHO.search(line)
        about = (int(who[1]), who[2]) if who else (-1, "")
        if found := _KIND.match(line):
            self.kind, self.listed = found[1], ("", 0)
        elif found := _STATUS.match(line):
            self._status(found, about)
        elif self.kind and (found := _MANY.match(line)):
            self._usual(int(found[1]), int(found[3] or 0))
            self.listed = ("counts", int(found[3] or 0))
        elif self.kind and (found := _ONE.match(line)):
            self._count(int(found[1]), int(found[3] or 0), about)
            self._usual(1, int(found[3] or 0))
        elif self.part == "ERROR" and (found := _ERRORS.match(line)):
            self.listed = ("error", 0)
            if found[1]:
                self._error(int(found[1]), about)
        elif found := _LISTED.match(line):
            self._listed(int(found[1]), about)

    def _status(self, found: re.Match[str], about: tuple[int, str]) -> None:
        state = _STATES.get(found[3], "unknown")
        ranks = 1 if found[1] else int(found[2])
        if ranks > self.usual_state[0] and state != "unknown":
            self.usual_state = ranks, state
        self.listed, self.listed_state = ("state", 0), state
        if found[1]:
            self._state(int(found[1]), state, about)

    def _listed(self, rank: int, about: tuple[int, str]) -> None:
        """Take in a rank of which the line above said what is to be said."""
        what, number = self.listed
        if self.part == "INCOMPLETE":
            self.missing.append(RasMissing(rank, about[0], about[1], True, False))
        elif what == "counts":
            self._count(rank, number, about)
        elif what == "state":
            self._state(rank, self.listed_state, about)
        elif what == "error":
            self._error(rank, about)

    def _usual(self, ranks: int, number: int) -> None:
        self.usual[self.kind] = max(self.usual.get(self.kind, (0, 0)), (ranks, number))

    def _count(self, rank: int, number: int, about: tuple[int, str]) -> None:
        self.counts.setdefault(rank, {})[self.kind] = number
        self.who[rank] = about

    def _state(self, rank: int, state: RasState, about: tuple[int, str]) -> None:
        if state == "unknown":  # it answered, and knows no such communicator
            self.missing.append(RasMissing(rank, about[0], about[1], False, False))
        else:
            self.states[rank] = state
            self.who[rank] = about

    def _error(self, rank: int, about: tuple[int, str]) -> None:
        self.errors.add(rank)
        self.who[rank] = about

    def result(self) -> RasCommunicator:
        """Return the communicator."""
        usual = tuple(sorted((kind, number) for kind, (_, number) in self.usual.items()))
        odd = [row for rank in sorted(self.who) if (row := self._row(rank, dict(usual))) is not None]
        return RasCommunicator(
            hash=self.hash,
            size=self.size,
            answered=max(0, self.size - len(self.missing)),
            usual=usual[:ROWS],
            usual_state=self.usual_state[1],
            odd=tuple(odd[:ROWS]),
            missing=tuple(self.missing[:ROWS]),
            left_out=max(0, len(odd) - ROWS) + max(0, len(self.missing) - ROWS),
        )

    def _row(self, rank: int, usual: dict[str, int]) -> RasRank | None:
        """Return a rank that differs, None for one that does not."""
        counts = usual | self.counts.get(rank, {})
        state = self.states.get(rank, self.usual_state[1])
        if counts == usual and state == self.usual_state[1] and rank not in self.errors:
            return None
        pid, host = self.who[rank]
        error = -1 if rank in self.errors else 0
        return RasRank(rank, pid, host[:WORD_CHARACTERS], state, error, tuple(sorted(counts.items()))[:ROWS])


def parse_text(text: str) -> RasReport | None:
    """Return what the text says of communicators with something odd; None if it is no answer of RAS."""
    version = _VERSION.search(text)
    if version is None:
        return None
    timeouts = _TIMEOUTS.search(text)
    sections: dict[int, _Section] = {}
    for hash_, size, part, lines in _parts(text):
        section = sections.get(hash_)
        if section is None:
            if len(sections) >= COMMUNICATORS:
                continue
            section = sections[hash_] = _Section(hash_, size)
        section.part, section.kind, section.listed = part, "", ("", 0)
        for line in lines:
            section.take(line)
    return RasReport(
        nccl=version[1],
        form="text",
        communicators=tuple(section.result() for section in sections.values()),
        timeouts=int(timeouts[1]) if timeouts else 0,
    )


def _parts(text: str) -> Iterator[tuple[int, int, str, list[str]]]:
    """Yield hash, size, title and lines of each section about a communicator."""
    sizes: dict[str, int] = {}
    current: tuple[int, int, str, list[str]] | None = None
    for line in text.splitlines():
        if row := _GROUP.match(line):
            sizes[row[1]] = int(row[2])
        head = _HEAD.match(line)
        if (head is not None or (line and not line[0].isspace())) and current is not None:
            yield current
            current = None
        if head is not None:
            group = line[1 : line.index("-")]
            current = int(head[1], 16), sizes.get(group, 0), head[2], []
        elif current is not None:
            current[3].append(line)
    if current is not None:
        yield current
