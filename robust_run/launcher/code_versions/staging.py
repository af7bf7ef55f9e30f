"""The controller's part in versions of the code: records the first, gives nodes what they will need, minds what is due."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from robust_run.launcher.code_types import (
    CodeCaptured,
    CodeVersion,
    StageCode,
    UpdateDue,
    UpdateRefused,
)
from robust_run.launcher.code_versions import ledger
from robust_run.launcher.events import (
    Event,
    NodeJoined,
    NodeReturned,
    Order,
)

if TYPE_CHECKING:
    from robust_run.launcher.core.state import JobState

#: No timer is set for longer: clocks are set, and machines sleep.
LONGEST_TIMER_S = 3600.0


class Captures(Protocol):
    """What captures the code of a job."""

    def capture(self, at_unix_s: float) -> tuple[CodeVersion, str]:
        """Return version 1 and why its code could not be kept, if so."""
        ...


def tell_captured(code: Captures, tell: Callable[[Event], None], at_unix_s: float) -> None:
    """Put the first version of a job on record."""
    version, why = code.capture(at_unix_s)
    tell(CodeCaptured(version=version))
    if why:
        tell(UpdateRefused(reason=f"the job's code is not kept, it runs in place: {why}", by="robust-run"))


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
        self._timed = 0
        """The version that a timer is set for."""

    def after(self, event: Event) -> None:
        """An event was decided on: nodes that came get what they may need, and a wait that began is timed."""
        if isinstance(event, NodeJoined):
            self._hand_out(event.node.id)
        elif isinstance(event, NodeReturned):
            self._hand_out(event.node)
        code = self._state.code
        if code.pending and code.due_unix_s and self._timed != code.pending:
            self._timed = code.pending
            self._wait(code.pending)

    def _hand_out(self, node: str) -> None:
        code = self._state.code
        for number in dict.fromkeys((code.running, code.pending, code.trusted)):
            record = ledger.record_of(code, number)
            if record is not None and record.version.tree:
                self._send(node, StageCode(tree=record.version.tree))

    def stage(self, order: StageCode) -> None:
        """Have every node get a version."""
        for member in list(self._state.members.values()):
            if member.present:
                self._send(member.info.id, order)

    def _wait(self, number: int) -> None:
        code = self._state.code
        if code.pending != number:
            return
        left_s = code.due_unix_s - self._unix_s()
        if left_s <= 0:
            self._tell(UpdateDue(number=number))
        else:
            self._later(min(left_s, LONGEST_TIMER_S), lambda: self._wait(number))


def store_folder(journal_path: str) -> str:
    """Return where a run keeps its versions, beside its journal."""
    from robust_run.launcher.code_versions.place import FOLDER

    return os.path.join(os.path.dirname(journal_path), FOLDER)
