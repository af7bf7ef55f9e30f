"""Keeps the incidents of a run: writes each one's file, says it on the terminal, and notes when training went on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from robust_run.clock import Clock
from robust_run.launcher.events import FirstStep, RecordIncident
from robust_run.launcher.journal import Entry
from robust_run.launcher.run_directory import RunDirectory
from robust_run.launcher.types import RankEvidence, Rung, VerdictDraft
from robust_run.report import incident as incident_file
from robust_run.report import summary
from robust_run.report.types import Action, Evidence, Incident, Verdict
from robust_run.tracer.types import Scene

if TYPE_CHECKING:
    from robust_run.launcher.incident_pages import IncidentPages


class IncidentBook:
    """The incidents of one run, newest last. `say` shows a line on the terminal; `complain` says what cannot be written."""

    def __init__(
        self,
        clock: Clock,
        run_directory: RunDirectory,
        say: Callable[[str], None],
        complain: Callable[[str, OSError], None],
    ) -> None:
        self.incidents: list[Incident] = []
        self.culprit: RankEvidence | None = None
        """The rank at fault in the newest incident."""
        self.say = say
        self._clock = clock
        self._run_directory = run_directory
        self._complain = complain
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

            self._pages = IncidentPages(self._run_directory)
        return self._pages

    def load(self, past: Iterable[Entry]) -> None:
        """Take over the incidents of a run that is continued: from their files, else from the journal's entries.

        A launcher that was killed had put an incident on record a moment before it wrote the file.
        """
        recorded = [(entry, entry.action) for entry in past if isinstance(entry.action, RecordIncident)]
        for entry, action in recorded:
            path = self._run_directory.incident(len(self.incidents) + 1)
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

    def relaunched(self, attempt: int, how: tuple[Rung, ...], why: str) -> None:
        """Say how the attempt after the newest incident was started."""
        reason = self.incidents[-1].action.reason if self.incidents else "the controller was restarted"
        self.say(summary.relaunch_line(attempt, reason, how, why))

    def _incident(self, action: RecordIncident, offset_s: float, decided_unix_s: float) -> Incident:
        """Turn the core's monotonic times into wall times, which are `offset_s` larger."""
        draft = action.verdict
        return Incident(
            id=len(self.incidents) + 1,
            attempt=action.attempt,
            symptom=action.symptom,
            onset_s=action.onset_at_s + offset_s,
            detected_s=action.detected_at_s + offset_s,
            decided_s=decided_unix_s,
            verdict=Verdict(
                kind=draft.kind,
                ranks=draft.ranks,
                nodes=draft.nodes,
                confidence=draft.confidence,
                rule=draft.rule,
                sentence=_sentence(draft),
                group=draft.group,
                over_evicted=draft.over_evicted,
            ),
            action=Action(name=action.action, nodes=draft.nodes, reason=action.reason),
            evidence=(*_evidence(draft.culprit), *_seen(draft)),
        )

    def flush(self) -> None:
        """Write the newest incident if its file is not up to date."""
        if not self._dirty:
            return
        self._dirty = False
        incident = self.incidents[-1]
        path = self._run_directory.incident(incident.id)
        try:
            incident_file.write(path, incident)
            if self._scene is not None:
                scene, self._scene = self._scene, None
                incident_file.write_scene(self._run_directory.scene(incident.id), scene)
        except OSError as error:
            self._complain(path, error)
        else:
            self.pages.due(incident.id)

    def first_step(self, event: FirstStep) -> None:
        """Note when the attempt after the newest incident made its first step."""
        if self._awaits_step_of is None or event.attempt != self._awaits_step_of:
            return
        resumed_s = event.at_s + self._clock.unix_s() - self._clock.monotonic_s()
        self.incidents[-1] = msgspec.structs.replace(self.incidents[-1], resumed_s=resumed_s)
        self._awaits_step_of = None
        self._dirty = True
        self.flush()


def _sentence(draft: VerdictDraft) -> str:
    """Return the verdict's sentence; a sentence about ranks says where they ran."""
    where = f" on {', '.join(draft.nodes)}" if draft.nodes and draft.culprit is not None else ""
    return f"{draft.sentence}{where}{'; ' if draft.aftermath else ''}{draft.aftermath}"


def _seen(draft: VerdictDraft) -> tuple[Evidence, ...]:
    """Return what ranks were seen to do, where the verdict rests on that."""
    rank = draft.ranks[0] if len(draft.ranks) == 1 else None
    return (Evidence(what=summary.SEEN, rank=rank, text="\n".join(draft.evidence)),) if draft.evidence else ()


def _evidence(culprit: RankEvidence | None) -> tuple[Evidence, ...]:
    if culprit is None:
        return ()
    excerpt = culprit.finding.excerpt if culprit.finding else ""
    what = "what its program raised" if excerpt else "the end of its stderr"
    return (Evidence(what=what, rank=culprit.rank, path=culprit.stderr_path, text=excerpt or culprit.stderr_tail),)
