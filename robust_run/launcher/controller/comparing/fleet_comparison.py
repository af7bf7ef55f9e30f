"""Fleet comparison: nodes against their peers, while an attempt trains: the live form of `robust outliers`.

The comparing is done in a child process, so that the controller never imports numpy; a row that the child does not take at once
is left out. What it says becomes an event like that of any sensor, and the rules say what follows. A node that stands out is a
symptom: nothing is done for that alone. One that stays apart while the job makes steps is told once more (`outlier.stays`), and
`--on-outlier` says what that is worth. Only nodes of one role are compared; where roles turn out to differ, all is learnt anew.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import IO, TYPE_CHECKING

import msgspec

from robust_run.clock import Clock
from robust_run.health.outliers import feed, standing
from robust_run.health.outliers.types import SILENCE, OutlierVerdict
from robust_run.health.rules.types import Comparing
from robust_run.health.sensors.handle import environment
from robust_run.health.types import Event, EventKind
from robust_run.launcher.controller.comparing.outlier_words import event_of, staying
from robust_run.launcher.core.membership import name_of
from robust_run.launcher.core.state import JobState
from robust_run.launcher.model.health_events import HealthSeen
from robust_run.own_process import boot

if TYPE_CHECKING:
    import asyncio

#: Fewer nodes have no peers to be compared with.
LEAST_NODES = 3
#: Programs whose steps nobody counts are compared from here on: by then they train.
STEPLESS_S = 600.0
#: The job makes steps if the newest is not older than this, or than three times what came between two before. Else nothing is
#: compared: a fault shows before that, and what differs later differs because nodes wait.
STEP_S, STEP_TIMES = 60.0, 3.0
#: What ended the comparing is in the last line of what the child wrote; so much of it is kept.
_MOST_LAST_WORDS = 300
#: A row needs one core for a moment: libraries of linear algebra would start a thread for each.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_BOOT = boot("robust_run.robust_cli", "main()")
_MOST_LINE_BYTES = 1 << 16
ENDED = "outlier.ended"
USUAL = Comparing()


class FleetComparison:
    """The comparing of one job's nodes; begins anew with each attempt."""

    def __init__(
        self,
        state: JobState,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        tell: Callable[[HealthSeen], None],
        comparing: Comparing = USUAL,
        interval_s: float = 1.0,
        look: Callable[[Callable[[int, Mapping[str, str]], None]], None] | None = None,
    ) -> None:
        """`interval_s`: how often a node says what it does. `look`: finds the roles of nodes (`NodeRolesLook.look`)."""
        self._state = state
        self._clock = clock
        self._loop = loop
        self._tell = tell
        self._comparing = comparing
        self._interval_s = interval_s
        self._find_roles = look
        self._roles: Mapping[str, str] = {}
        """By name of the node; empty: not known, and then all are compared and nothing is acted on."""
        self._told: dict[str, list[tuple[str, str]]] = {}
        """By name of the node: its id, and the names of the alerts that were told of it and are not over."""
        self._several = False
        """There are several roles: else a role that becomes known would only have all be learnt again."""
        self._standings: standing.Standings = {}
        self._steps, self._stepped_s, self._step_s = 0, 0.0, 0.0
        """Steps of this attempt, when the newest was seen, and the longest time between two that were seen."""
        self._attempt = -1
        self._heard = (-1, 0.0)
        """The newest attempt of which anything was heard, and since when."""
        self._is_blind = False
        self._child: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._rest = b""

    def begin(self, attempt: int) -> None:
        """Compare from now on: the workers of this attempt have made their first step. Only the first call of each counts."""
        is_old = attempt <= self._attempt or attempt != self._state.attempt
        if is_old or len(self._state.layout) < LEAST_NODES or not self._comparing.on:
            return
        self.end()
        self._attempt = attempt
        for machine in tuple(self._told):
            self._clear(machine, "another attempt is compared anew")
        self._standings, self._steps, self._stepped_s, self._step_s = {}, 0, self._clock.monotonic_s(), 0.0
        from importlib.util import find_spec

        if find_spec("numpy") is None:
            self._note(
                "outlier.absent", "nodes are not compared with their peers: that needs numpy where the controller runs"
            )
            return
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        try:
            child = subprocess.Popen(
                [sys.executable, "-c", _BOOT, *self._arguments()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env={**environment(), **_ONE_THREAD},
            )
        except OSError as error:
            self._errors.close()
            self._blind(str(error))
            return
        assert child.stdin is not None and child.stdout is not None
        os.set_blocking(child.stdin.fileno(), False)
        self._child, self._rest = child, b""
        self._loop.add_reader(child.stdout.fileno(), self._read)
        if self._is_blind:
            self._is_blind = False
            self._note(ENDED, "nodes are compared with their peers again", "clear")
        self._roles, self._several = {}, False
        if self._find_roles is not None:
            self._find_roles(self._learn)

    def _arguments(self) -> list[str]:
        return ["outliers", "--json", *feed.arguments(self._comparing, self._interval_s)]

    def _learn(self, attempt: int, roles: Mapping[str, str]) -> None:
        """Take in what each node does."""
        if attempt == self._attempt:
            self._roles = roles
            self._several = len(set(roles.values())) > 1

    def hear_steps(self, attempt: int, steps: int) -> None:
        """Take in how many steps a node has made in an attempt."""
        now_s = self._clock.monotonic_s()
        if attempt == self._attempt and steps > self._steps:
            if self._steps:
                self._step_s = max(self._step_s, min(now_s - self._stepped_s, STEPLESS_S))
            self._steps, self._stepped_s = steps, now_s

    @property
    def _makes_steps(self) -> bool:
        passed_s = self._clock.monotonic_s() - self._stepped_s
        return self._steps > 0 and passed_s <= max(STEP_S, STEP_TIMES * self._step_s)

    @property
    def is_running(self) -> bool:
        """Whether nodes are compared."""
        return self._child is not None

    def take(self, node: str, usage: Sequence[float]) -> bool:
        """Take in what a node did in the last second; False: the child has no time for it."""
        state, now_s = self._state, self._clock.monotonic_s()
        if not state.is_training or node not in state.places:
            return True
        if self._heard[0] != state.attempt:
            self._heard = state.attempt, now_s
        elif now_s - self._heard[1] > STEPLESS_S:
            self.begin(state.attempt)
        child = self._child
        if child is None or state.attempt != self._attempt:
            return True
        name = name_of(state, node)
        self._stands(node, name, now_s)
        if (
            self._steps and not self._makes_steps
        ):  # one evaluates or saves and others wait; who hangs is found otherwise
            return True
        row = feed.row(now_s, name, self._roles.get(name, "") if self._several else "", usage)
        assert child.stdin is not None
        try:
            os.write(
                child.stdin.fileno(), msgspec.json.encode(row) + b"\n"
            )  # a pipe takes so short a line whole or not
        except BlockingIOError:
            return False
        except OSError:
            self._lost()
        return True

    def finish_rows(self) -> None:
        """No more rows come: the child ends when it has said all."""
        if self._child is not None and self._child.stdin is not None:
            self._child.stdin.close()

    def end(self) -> None:
        """Compare no more."""
        child, self._child = self._child, None
        if child is None:
            return
        assert child.stdin is not None and child.stdout is not None and self._errors is not None
        self._loop.remove_reader(child.stdout.fileno())
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()
        self._errors.close()

    def _lost(self) -> None:
        """The child has ended; where nobody has told it to, that is told."""
        assert self._child is not None and self._child.stdin is not None and self._errors is not None
        words = ""
        if not self._child.stdin.closed:
            self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - _MOST_LAST_WORDS))
            words = self._errors.read().decode("utf-8", "replace").strip().rpartition("\n")[2] or "it ended"
        self.end()
        if words:
            self._blind(words)

    def _blind(self, why: str) -> None:
        self._is_blind = True
        self._note(ENDED, f"nodes are not compared with their peers in this attempt: {why}")

    def _note(self, name: str, detail: str, kind: EventKind = "note") -> None:
        event = Event(name=name, kind=kind, subject="", detail=detail, at_s=self._clock.monotonic_s())
        self._tell(HealthSeen(node=self._state.layout[0].node, event=event, at_unix_s=self._clock.unix_s()))

    def _read(self) -> None:
        assert self._child is not None and self._child.stdout is not None
        content = os.read(self._child.stdout.fileno(), _MOST_LINE_BYTES)
        if not content:
            self._lost()
            return
        *lines, self._rest = (self._rest + content).split(b"\n")
        self._rest = self._rest[-_MOST_LINE_BYTES:]
        for line in lines:
            self._say(line)

    def _say(self, line: bytes) -> None:
        try:
            verdict = msgspec.json.decode(line, type=OutlierVerdict)
        except msgspec.MsgspecError:
            return
        nodes = [place.node for place in self._state.layout if name_of(self._state, place.node) == verdict.machine]
        if not nodes or (verdict.metric == SILENCE and verdict.state != "over"):  # a lease says that sooner
            return
        now_s = self._clock.monotonic_s()
        self._standings = standing.named(self._standings, verdict, now_s)
        if verdict.state == "new":
            self._alert(verdict.machine, nodes[0], event_of(verdict, now_s))
        elif verdict.state == "over":
            self._clear(verdict.machine, "it is like its peers again")

    def _alert(self, machine: str, node: str, event: Event) -> None:
        self._told.setdefault(machine, []).append((node, event.name))
        self._tell(HealthSeen(node=node, event=event, at_unix_s=self._clock.unix_s()))

    def _clear(self, machine: str, detail: str) -> None:
        """What was told of a node is over."""
        now_s = self._clock.monotonic_s()
        for node, name in self._told.pop(machine, ()):
            event = Event(name=name, kind="clear", subject="", detail=detail, at_s=now_s)
            self._tell(HealthSeen(node=node, event=event, at_unix_s=self._clock.unix_s()))

    def _stands(self, node: str, name: str, now_s: float) -> None:
        """Tell of a node that was named and has stayed apart since, once."""
        if name not in self._standings:
            return
        self._standings, verdict = standing.heard(
            self._standings,
            name,
            now_s,
            nodes=len(self._state.layout),
            makes_steps=self._makes_steps,
            stays_s=self._comparing.stays_s,
        )
        if verdict is not None:
            event = staying(verdict, self._comparing.stays_s, now_s, knows_roles=bool(self._roles))
            self._alert(name, node, event)
