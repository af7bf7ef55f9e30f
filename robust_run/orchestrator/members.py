"""A launcher of a member, as the leader follows it: what it and its workers say. Decides nothing, starts nothing.

A launcher says how its workers fare in its journal, which is followed as it grows; what its workers print goes to a file, and
from there to our own output, line by line, with the member's name before it. The guard starts it and says when it has ended. A
leader that is started again reads the journal from its beginning: what is old in it changes nothing.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress

import msgspec

from robust_run.launcher.model.code_events import CodeVersion
from robust_run.orchestrator.model.names import MemberName
from robust_run.orchestrator.model.update_words import CodeSeen
from robust_run.orchestrator.model.words import Event, RankEnded, RankStopped, WorldEnded, WorldFailed, WorldRuns
from robust_run.orchestrator.rules.stopped_looks import LOOK_S as LOOK_AT_WORKERS_S
from robust_run.orchestrator.rules.stopped_looks import Seen, StopWatch
from robust_run.tracer.sight import processes

#: How often files are looked at. What workers do themselves is known at once, by their connections.
LOOK_S = 0.1
MOST_LINE_BYTES = 64 << 10


class _Line(msgspec.Struct, frozen=True):
    event: dict[str, object] = {}
    action: dict[str, object] = {}


_lines = msgspec.json.Decoder(_Line)


class Tail:
    """Whole lines of a file that grows."""

    def __init__(self, path: str, at: int = 0) -> None:
        self._path = path
        self._at = at
        self._rest = b""

    @property
    def read(self) -> int:
        """How much of the file was returned as lines."""
        return self._at - len(self._rest)

    def lines(self, *, last: bool = False) -> list[bytes]:
        """Return what was added since; `last`: also what has no end of line."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._at)
                data = file.read()
        except OSError:  # it is not there yet, or there is no descriptor left for a moment
            data = b""
        self._at += len(data)
        *whole, self._rest = (self._rest + data).split(b"\n")
        if (last and self._rest) or len(self._rest) > MOST_LINE_BYTES:
            whole.append(self._rest)
            self._rest = b""
        return whole


class MemberLauncher:
    """One launcher of a member. `run`: its run directory."""

    def __init__(
        self,
        name: MemberName,
        serial: int,
        run: str,
        tell: Callable[[Event], None],
        show: Callable[[MemberName, bytes], None],
        shown: Callable[[str, int], None],
        at: int = 0,
    ) -> None:
        """`shown`: is told how much of its output was shown; `at`: so much was, by an earlier leader."""
        self.name, self.serial = name, serial
        self.run_name = os.path.basename(run)
        self._tell, self._show, self._shown = tell, show, shown
        self._journal = Tail(os.path.join(run, "journal.jsonl"))
        self._output = Tail(console(run), at)
        self._sentence = ""
        self._attempt, self._pids = 0, tuple[int, ...]()
        self._watches: dict[int, StopWatch] = {}
        self._looked_s = 0.0
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def ended(self, code: int, why: str = "") -> None:
        """It has ended: take in its last words, and tell."""
        self._timer.cancel()
        self._read(last=True)
        sentence = why or (self._sentence if code else "")
        self._tell(WorldEnded(member=self.name, serial=self.serial, code=code, sentence=sentence))

    def _look(self) -> None:
        self._read(last=False)
        self._look_at_workers(asyncio.get_running_loop().time())
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look_at_workers(self, now_s: float) -> None:
        if now_s - self._looked_s < LOOK_AT_WORKERS_S:
            return
        self._looked_s = now_s
        for rank, pid in enumerate(self._pids):
            for_s = self._watches.setdefault(rank, StopWatch()).take(_seen(pid), now_s)
            if for_s is not None:
                attempt = self._attempt
                self._tell(RankStopped(member=self.name, serial=self.serial, rank=rank, attempt=attempt, for_s=for_s))

    def _read(self, *, last: bool) -> None:
        lines = self._output.lines(last=last)
        for line in lines:
            self._show(self.name, line)
        if lines:
            self._shown(self.run_name, self._output.read)
        for line in self._journal.lines():
            with suppress(msgspec.MsgspecError):
                self._take(_lines.decode(line))

    def _take(self, line: _Line) -> None:
        what, about = line.event.get("type"), line.event
        if what == "code_captured":
            version = msgspec.convert(about.get("version"), CodeVersion)
            self._tell(CodeSeen(member=self.name, serial=self.serial, version=version))
            return
        attempt = (about or line.action).get("attempt")
        if not isinstance(attempt, int):
            return
        if what == "attempt_started":
            self._sentence = ""  # that is healed
            pids = about.get("pids")
            self._attempt, self._watches = attempt, {}
            self._pids = tuple(pid for pid in pids if isinstance(pid, int)) if isinstance(pids, list) else ()
            self._tell(WorldRuns(member=self.name, serial=self.serial, attempt=attempt))
        elif what == "rank_exited":
            self._rank_ended(about.get("rank"), attempt)
        elif what == "attempt_ended":
            self._pids = ()
            ranks = about.get("ranks")
            for each in ranks if isinstance(ranks, list) else ():
                self._rank_ended(each.get("rank") if isinstance(each, dict) else None, attempt)
        elif line.action.get("type") == "record_incident" and line.action.get("action") != "report":
            verdict = line.action.get("verdict")
            sentence = verdict.get("sentence") if isinstance(verdict, dict) else ""
            self._sentence = str(sentence or "")
            self._tell(
                WorldFailed(
                    member=self.name,
                    serial=self.serial,
                    attempt=attempt,
                    sentence=self._sentence,
                    was_asked=line.action.get("symptom") == "operator",
                )
            )

    def _rank_ended(self, rank: object, attempt: int) -> None:
        if isinstance(rank, int):
            self._tell(RankEnded(member=self.name, serial=self.serial, rank=rank, attempt=attempt))


def _seen(pid: int) -> Seen | None:
    """Return what the kernel says of a worker; None: it is gone."""
    found = processes.look(pid)
    if found is None:
        return None
    parent = processes.look(found.parent) if found.state == "T" else None
    return Seen(
        state=found.state,
        stopped_by=found.stopped_by,
        turns=found.turns,
        start_ticks=found.start_ticks,
        parent_state=parent.state if parent is not None else "",
    )


def console(run: str) -> str:
    """Return the path of what a launcher prints into."""
    return f"{run}.out"
