"""Code versions, the controller's side: records the first, gives nodes what they will need, minds what is due."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from robust_run.launcher.core import ledger_queries as queries
from robust_run.launcher.model.actions import Order
from robust_run.launcher.model.code_events import (
    CodeCaptured,
    CodeVersion,
    StageCode,
    UpdateDue,
    UpdateRefused,
)
from robust_run.launcher.model.events import Event
from robust_run.launcher.model.node_events import NodeJoined, NodeReturned

if TYPE_CHECKING:
    from robust_run.clock import Clock
    from robust_run.launcher.agent.code_versions.place import CodePlace
    from robust_run.launcher.core.state import JobState

#: A disk that has the code within this time is waited for; others are looked at now and then.
AT_ONCE_S = 0.1
LOOK_EVERY_S = 0.1
#: How long the disk may take to keep the code of a job of several nodes before the first attempt begins without.
PATIENCE_S = 5.0
#: No timer is set for longer: clocks are set, and machines sleep.
LONGEST_TIMER_S = 3600.0


class Capturing:
    """The first version of a job, on its way to the disk and the record. It is read at once and written beside other work."""

    def __init__(self, place: CodePlace, at_unix_s: float) -> None:
        self._place = place
        self._seen = place.see(at_unix_s)
        self._kept: tuple[CodeVersion, str] | None = None
        self._thread = threading.Thread(target=self._keep, name="capture", daemon=True)
        self._thread.start()

    def _keep(self) -> None:
        self._kept = self._place.keep(self._seen)

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until it is kept, or known why it is not; False if that takes longer."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def tell(self, tell: Callable[[Event], None]) -> None:
        """Put it on record."""
        version, why = self._kept if self._kept is not None else (self._seen.version, "keeping it failed")
        tell(CodeCaptured(version=version))
        if why:
            tell(UpdateRefused(reason=f"the job's code is not kept, it runs in place: {why}", by="robust-run"))


def capture_now(place: CodePlace, tell: Callable[[Event], None], at_unix_s: float) -> None:
    """Put the first version on record before anything runs."""
    capturing = Capturing(place, at_unix_s)
    capturing.wait(None)
    capturing.tell(tell)


def capture_beside(
    place: CodePlace,
    tell: Callable[[Event], None],
    at_unix_s: float,
    later: Callable[[float, Callable[[], None]], object],
) -> None:
    """Read the first version now, and put it on record as soon as the disk has it."""
    _tell_when_kept(Capturing(place, at_unix_s), tell, later, AT_ONCE_S)


async def capture_first(place: CodePlace, tell: Callable[[Event], None], clock: Clock) -> None:
    """Put the first version on record before anything runs, while others are served. A disk that is slow is not waited for beyond
    a time; then it follows.
    """
    import asyncio

    capturing = Capturing(place, clock.unix_s())
    give_up_at_s = clock.monotonic_s() + PATIENCE_S
    while not capturing.wait(0.0) and clock.monotonic_s() < give_up_at_s:
        await asyncio.sleep(0.005)
    _tell_when_kept(capturing, tell, asyncio.get_running_loop().call_later, 0.0)


def _tell_when_kept(
    capturing: Capturing,
    tell: Callable[[Event], None],
    later: Callable[[float, Callable[[], None]], object],
    patience_s: float,
) -> None:
    """Put it on record now if that takes no longer than this, else as soon as the disk has it."""
    if capturing.wait(patience_s):
        capturing.tell(tell)
    else:
        later(LOOK_EVERY_S, lambda: _tell_when_kept(capturing, tell, later, 0.0))


class Staging:
    """What a controller does beside deciding."""

    def __init__(
        self,
        state: JobState,
        send: Callable[[str, Order], None],
        tell: Callable[[Event], None],
        later: Callable[[float, Callable[[], None]], object],
        unix_s: Callable[[], float],
    ) -> None:
        self._state = state
        self._send = send
        self._tell = tell
        self._later = later
        self._unix_s = unix_s
        self._timed = (0, 0.0)
        """The version that a timer is set for, and for when."""

    def after(self, event: Event) -> None:
        """An event was decided on: nodes that came get what they may need, and a wait that began is timed."""
        if isinstance(event, NodeJoined):
            self._hand_out(event.node.id)
        elif isinstance(event, NodeReturned):
            self._hand_out(event.node)
        code = self._state.code
        due = (code.pending, code.due_unix_s)
        if all(due) and self._timed != due:
            self._timed = due
            self._wait(due)

    def _hand_out(self, node: str) -> None:
        code = self._state.code
        for number in dict.fromkeys((code.running, code.pending, code.trusted)):
            record = queries.record_of(code, number)
            if record is not None and record.version.tree:
                self._send(node, StageCode(tree=record.version.tree))

    def stage(self, order: StageCode) -> None:
        """Have every node get a version."""
        for member in list(self._state.members.values()):
            if member.present:
                self._send(member.info.id, order)

    def _wait(self, due: tuple[int, float]) -> None:
        code = self._state.code
        if (code.pending, code.due_unix_s) != due:
            return  # it was put in place or taken back, or is due at another time
        left_s = code.due_unix_s - self._unix_s()
        if left_s <= 0:
            self._tell(UpdateDue(number=code.pending))
        else:
            self._later(min(left_s, LONGEST_TIMER_S), lambda: self._wait(due))


def store_folder(journal_path: str) -> str:
    """Return where a run keeps its versions, beside its journal."""
    from robust_run.launcher.agent.code_versions.place import FOLDER

    return os.path.join(os.path.dirname(journal_path), FOLDER)
