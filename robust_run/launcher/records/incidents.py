"""Incident log of a run: writes each one's file, says it on the terminal, and notes when training went on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from robust_run.clock import Clock
from robust_run.harmless import Harmless
from robust_run.launcher.model.actions import Finish, RecordIncident, StandstillOver
from robust_run.launcher.model.check_events import Decided
from robust_run.launcher.model.events import FirstStep
from robust_run.launcher.model.job import RankEvidence, Rung
from robust_run.launcher.model.resume_events import ResumeChosen
from robust_run.launcher.records.journal import JournalEntry
from robust_run.launcher.records.run_directory import RunDirectory
from robust_run.report.types import Action, Incident
from robust_run.tracer.types import Scene

if TYPE_CHECKING:
    from robust_run.launcher.core.state import CorePolicy, JobState
    from robust_run.launcher.records.folds.past_incidents import PastIncidents
    from robust_run.launcher.records.notifier.notifier import Notifier

#: What the ladder does, as people are told.
RUNGS = {
    "diagnose": "checking the nodes",
    "evict": "evicting",
    "reattempt": "trying again as it is",
    "rollback": "putting earlier code back",
    "swap": "testing a node by a standby",
    "replay": "replaying on groups of nodes",
    "stop": "the ladder ends",
    "settled": "settled",
}
#: A controller that went on for so long after an incident has said it: its console writes in a thread of its own.
SAID_S = 10.0
#: What is older is no news to people.
NEWS_S = 60.0
#: The newest incidents, whose files a controller that continues reads.
FROM_FILES = 64


class Drawer(Protocol):
    """Draws pages of a run beside its job; nothing waits for them, and nothing of theirs ends anything."""

    def due(self, number: int) -> None:
        """Have the page of an incident drawn soon."""
        ...

    def finish(self, state: JobState) -> str:
        """Draw all pages of a job that is over; return what went wrong."""
        ...


class NoPages:
    """Nothing is drawn."""

    def due(self, number: int) -> None:
        """See `Drawer`."""

    def finish(self, state: JobState) -> str:  # noqa: ARG002
        """See `Drawer`."""
        return ""


JobKnown = Callable[[], "tuple[CorePolicy, JobState] | None"]
"""What the controller knows of the job; None: nothing yet."""


class IncidentBook:
    """The incidents of one run, newest last. `say` shows a line on the terminal; `complain` says what cannot be written."""

    def __init__(
        self,
        clock: Clock,
        run_directory: RunDirectory,
        say: Callable[[str], None],
        complain: Callable[[str, OSError], None],
        make_notifier: Callable[[], Notifier | None] | None = None,
        make_pages: Callable[[RunDirectory, JobKnown], Drawer] | None = None,
    ) -> None:
        """`make_notifier` returns who tells others, `make_pages` what draws pages; called when there is something for them."""
        self.incidents: list[Incident] = []
        self.culprit: RankEvidence | None = None
        """The rank at fault in the newest incident."""
        self.notifier: Notifier | None = None
        """Sends notices of incidents; None: none is wanted, or there was nothing to tell."""
        self.job: tuple[CorePolicy, JobState] | None = None
        """What the controller knows of the job, for what its pages may advise; None: nothing does yet."""
        self._make_notifier = make_notifier
        self._notifying = Harmless("notifying", say)
        self.say = say
        self.run_directory = run_directory
        self.complain = complain
        self._clock = clock
        self._make_pages = make_pages
        self._pages: Drawer | None = None
        self._awaits_step_of: int | None = None
        self._dirty = False
        self._scene: Scene | None = None
        """What the newest incident was concluded from, until it is written."""
        self._unsaid: Incident | None = None
        """One that the controller before this one may not have said any more."""

    @property
    def pages(self) -> Drawer:
        """What draws their pages."""
        if self._pages is None:
            make = self._make_pages
            self._pages = make(self.run_directory, lambda: self.job) if make is not None else NoPages()
        return self._pages

    def load(self, past: Iterable[JournalEntry]) -> None:
        """Take over the incidents of a run that is continued, from the entries of its journal that are in force."""
        from robust_run.launcher.records.folds.past_incidents import PastIncidents

        fold = PastIncidents()
        for entry in past:
            fold.take(entry)
        self.take_over(fold)

    def take_over(self, past: PastIncidents) -> None:
        """Take over the incidents of a run that is continued: the newest from their files, others from the journal, which says
        the same. Reading thousands of files takes longer than who waits for a controller can wait.

        A launcher that was killed had put an incident on record a moment before it wrote the file.
        """
        from robust_run.report.files import incident as incident_file

        for number, incident in past.on_record.found.items():
            self.incidents.append(incident)
            if number > len(past.on_record.found) - FROM_FILES:
                try:
                    self.incidents[-1] = incident_file.read(self.run_directory.incident(number))
                except (OSError, msgspec.MsgspecError, RecursionError):
                    self._dirty = True
                    self.flush()
        self._awaits_step_of = past.awaited
        if past.newest is not None:
            is_news = past.last_at - past.newest_at < SAID_S and self._clock.unix_s() - past.newest_at < NEWS_S
            self._unsaid = self.incidents[-1] if is_news and past.newest.action != "stop" else None

    def say_again(self) -> None:
        """Say the newest incident if the controller before this one was gone a moment after it was on record.

        Whether it was said then, no file tells: twice is better than never.
        """
        incident, self._unsaid = self._unsaid, None
        if incident is not None:
            from robust_run.report import summary

            self.say(summary.incident_line(incident))

    def failed_unix_s(self, attempt: int) -> float | None:
        """Return when the failure began (seconds since the epoch) after which an attempt is started; None: it is not known."""
        return self.incidents[-1].onset_s if self.incidents and self._awaits_step_of == attempt else None

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

    def went_on(self, action: StandstillOver) -> None:
        """Say that ranks go on of which it was reported that they wait, and note it in that incident."""
        from robust_run.report import summary

        told = [each for each in self.incidents if each.attempt == action.attempt and each.action.name == "report"]
        if not told:
            return
        over_s = action.at_s + self._clock.unix_s() - self._clock.monotonic_s()
        went_on = msgspec.structs.replace(told[-1], resumed_s=over_s)
        self.flush()
        self.incidents[self.incidents.index(told[-1])] = went_on
        self.say(summary.went_on_line(action.attempt, over_s - went_on.onset_s))
        self._write(went_on)
        self._notify(lambda notifier: notifier.resolved(went_on))

    def relaunched(self, attempt: int, how: tuple[Rung, ...], why: str) -> None:
        """Say how the attempt after the newest incident was started."""
        from robust_run.report import summary

        reason = self.incidents[-1].action.reason if self.incidents else "the controller was restarted"
        self.say(summary.relaunch_line(attempt, reason, how, why))

    def _incident(self, action: RecordIncident, offset_s: float, decided_unix_s: float) -> Incident:
        from robust_run.launcher.records.incident_record import incident_of

        return incident_of(action, len(self.incidents) + 1, offset_s, decided_unix_s)

    def flush(self) -> None:
        """Write the newest incident if its file is not up to date."""
        if self._dirty:
            self._dirty = False
            self._write(self.incidents[-1])

    def _write(self, incident: Incident) -> None:
        from robust_run.report.files import incident as incident_file

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

    def resume_chosen(self, event: ResumeChosen, later: Callable[[float, Callable[[], None]], Any]) -> None:
        """Note in the newest incident where the attempt after it starts from."""
        if self._awaits_step_of is None or event.attempt != self._awaits_step_of:
            return
        from robust_run.launcher.records.incident_record import resume_of

        self.incidents[-1] = msgspec.structs.replace(self.incidents[-1], resume=resume_of(event))
        self._dirty = True
        later(0.0, self.flush)

    def decided(self, action: Decided) -> None:
        """Say what the ladder decided; an incident whose action was to look further gets what came of it."""
        from robust_run.launcher.records.incident_record import OUTCOMES

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
