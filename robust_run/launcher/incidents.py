"""Keeps the incidents of a run: writes each one's file, says it on the terminal, and notes when training went on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from robust_run.clock import Clock
from robust_run.launcher.actions import Finish, RecordIncident
from robust_run.launcher.check_events import Decided
from robust_run.launcher.events import FirstStep
from robust_run.launcher.harmless import Harmless
from robust_run.launcher.journal import Entry
from robust_run.launcher.run_directory import RunDirectory
from robust_run.launcher.types import RankEvidence, Rung
from robust_run.report.types import Action, Incident
from robust_run.tracer.types import Scene

if TYPE_CHECKING:
    from robust_run.launcher.incident_pages import IncidentPages
    from robust_run.launcher.notify.notifier import Notifier

#: What the ladder does, as people are told.
RUNGS = {
    "diagnose": "checking the nodes",
    "evict": "evicting",
    "reattempt": "trying again as it is",
    "rollback": "putting earlier code back",
    "replay": "replaying on groups of nodes",
    "stop": "the ladder ends",
    "settled": "settled",
}
#: What an incident's action becomes by it.
OUTCOMES = {"evict": "evict", "reattempt": "diagnose", "stop": "stop"}


class IncidentBook:
    """The incidents of one run, newest last. `say` shows a line on the terminal; `complain` says what cannot be written."""

    def __init__(
        self,
        clock: Clock,
        run_directory: RunDirectory,
        say: Callable[[str], None],
        complain: Callable[[str, OSError], None],
        make_notifier: Callable[[], Notifier | None] | None = None,
    ) -> None:
        """`make_notifier` returns who tells others; called when there is something to tell."""
        self.incidents: list[Incident] = []
        self.culprit: RankEvidence | None = None
        """The rank at fault in the newest incident."""
        self.notifier: Notifier | None = None
        """Who tells others of incidents; None: nobody does, or there was nothing to tell."""
        self._make_notifier = make_notifier
        self._notifying = Harmless("notifying", say)
        self.say = say
        self.run_directory = run_directory
        self.complain = complain
        self._clock = clock
        self._pages: IncidentPages | None = None
        self._awaits_step_of: int | None = None
        self._dirty = False
        self._scene: Scene | None = None
        """What the newest incident was concluded from, until it is written."""

    @property
    def pages(self) -> IncidentPages:
        """What draws their pages; imported when there is something to draw."""
        if self._pages is None:
            from robust_run.launcher.incident_pages import IncidentPages

            self._pages = IncidentPages(self.run_directory)
        return self._pages

    def load(self, past: Iterable[Entry]) -> None:
        """Take over the incidents of a run that is continued: from their files, else from the journal's entries.

        A launcher that was killed had put an incident on record a moment before it wrote the file.
        """
        from robust_run.report import incident as incident_file

        recorded = [(entry, entry.action) for entry in past if isinstance(entry.action, RecordIncident)]
        for entry, action in recorded:
            path = self.run_directory.incident(len(self.incidents) + 1)
            try:
                self.incidents.append(incident_file.read(path))
            except (OSError, msgspec.MsgspecError):
                self.incidents.append(self._incident(action, entry.at - entry.mono, entry.at))
                self._dirty = True
                self.flush()

    def record(
        self, action: RecordIncident, later: Callable[[float, Callable[[], None]], Any], scene: Scene | None = None
    ) -> None:
        """Say an incident now and write it soon, once the next attempt has been started. `scene`: what it was concluded from."""
        from robust_run.report import summary

        self.flush()
        now_s = self._clock.unix_s()
        incident = self._incident(action, now_s - self._clock.monotonic_s(), now_s)
        self.incidents.append(incident)
        self.culprit = action.verdict.culprit
        self._scene = scene
        if action.action == "report":
            self.say(summary.incident_line(incident))
        elif action.action != "stop":
            self._awaits_step_of = action.attempt + 1
            self.say(summary.incident_line(incident))
        self._dirty = True
        later(0.0, self.flush)
        self._notify(lambda notifier: notifier.opened(incident))

    def relaunched(self, attempt: int, how: tuple[Rung, ...], why: str) -> None:
        """Say how the attempt after the newest incident was started."""
        from robust_run.report import summary

        reason = self.incidents[-1].action.reason if self.incidents else "the controller was restarted"
        self.say(summary.relaunch_line(attempt, reason, how, why))

    def _incident(self, action: RecordIncident, offset_s: float, decided_unix_s: float) -> Incident:
        from robust_run.launcher.recorded import incident_of

        return incident_of(action, len(self.incidents) + 1, offset_s, decided_unix_s)

    def flush(self) -> None:
        """Write the newest incident if its file is not up to date."""
        if not self._dirty:
            return
        from robust_run.report import incident as incident_file

        self._dirty = False
        incident = self.incidents[-1]
        path = self.run_directory.incident(incident.id)
        try:
            incident_file.write(path, incident)
            if self._scene is not None:
                scene, self._scene = self._scene, None
                incident_file.write_scene(self.run_directory.scene(incident.id), scene)
        except OSError as error:
            self.complain(path, error)
        else:
            self.pages.due(incident.id)

    def decided(self, action: Decided) -> None:
        """Say what the ladder decided; an incident whose action was to look further gets what came of it."""
        self.say(f"{RUNGS[action.rung]}: {action.sentence} [{action.rule}]")
        last = self.incidents[-1] if self.incidents else None
        if last is None or last.action.name not in ("diagnose", "replay") or action.rung not in OUTCOMES:
            return
        came = Action(name=OUTCOMES[action.rung], nodes=action.nodes, reason=action.sentence)  # type: ignore[arg-type]
        self.incidents[-1] = msgspec.structs.replace(last, action=came)
        self._awaits_step_of = action.attempt + 1
        self._dirty = True
        self.flush()

    def keep_checks(self, report: bytes) -> None:
        """Write what checks measured beside the newest incident."""
        self.flush()
        path = self.run_directory.checks(len(self.incidents))
        try:
            with open(path, "wb") as file:
                file.write(report)
        except OSError as error:
            self.complain(path, error)

    def first_step(self, event: FirstStep) -> None:
        """Note when the attempt after the newest incident made its first step."""
        if self._awaits_step_of is None or event.attempt != self._awaits_step_of:
            return
        resumed_s = event.at_s + self._clock.unix_s() - self._clock.monotonic_s()
        self.incidents[-1] = msgspec.structs.replace(self.incidents[-1], resumed_s=resumed_s)
        self._awaits_step_of = None
        self._dirty = True
        self.flush()
        self._notify(lambda notifier: notifier.resolved(self.incidents[-1]))

    def ended(self, finish: Finish) -> None:
        """Tell others that the job is over; waits a moment until they were told."""
        last = self.incidents[-1] if self.incidents else None
        self._notify(lambda notifier: notifier.ended(finish.outcome, finish.exit_code, finish.reason, last))

    def _notify(self, tell: Callable[[Notifier], object]) -> None:
        if self._make_notifier is not None and self.notifier is None:
            make, self._make_notifier = self._make_notifier, None
            self._notifying.run(lambda: setattr(self, "notifier", make()))
        notifier = self.notifier
        if notifier is not None:
            self._notifying.run(lambda: _do(tell, notifier))

    def notifier_pids(self) -> list[int]:
        """Return commands that run to tell others: no part of an attempt."""
        return self.notifier.pids() if self.notifier is not None else []


def _do(tell: Callable[[Notifier], object], notifier: Notifier) -> None:
    tell(notifier)
