"""Keeps the incidents of a run: writes each one's file, says it on the terminal, and notes when training went on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from robust_run.launcher.types import AttemptStarted, RankEvidence, RecordIncident, VerdictDraft
from robust_run.report import incident as incident_file
from robust_run.report import summary
from robust_run.report.types import Action, Evidence, Incident, Verdict

if TYPE_CHECKING:
    from robust_run.launcher.node import Node


class IncidentBook:
    """The incidents of one run, newest last."""

    def __init__(self, node: Node, host: str) -> None:
        self.incidents: list[Incident] = []
        self.culprit: RankEvidence | None = None
        """The rank at fault in the newest incident."""
        self._node = node
        self._host = host
        self._awaits_step_of: int | None = None
        self._dirty = False

    def record(self, action: RecordIncident, later: Callable[[float, Callable[[], None]], Any]) -> None:
        """Say an incident now and write it soon, once the next attempt has been started."""
        incident = self._incident(action)
        self.incidents.append(incident)
        self.culprit = action.verdict.culprit
        if action.action == "relaunch":
            self._awaits_step_of = action.attempt + 1
            self._node.say(summary.incident_line(incident))
        self._dirty = True
        later(0.0, self.flush)

    def relaunched(self, event: AttemptStarted) -> None:
        """Say how the attempt after the newest incident was started."""
        self._node.say(summary.relaunch_line(event.attempt, self.incidents[-1].action.reason, event.how, event.why))

    def _incident(self, action: RecordIncident) -> Incident:
        """Turn the core's monotonic times into wall times and its ranks into nodes."""
        clock = self._node.clock
        offset_s = clock.unix_s() - clock.monotonic_s()
        draft = action.verdict
        nodes = (self._host,) if draft.ranks else ()
        return Incident(
            id=len(self.incidents) + 1,
            attempt=action.attempt,
            symptom=action.symptom,
            onset_s=action.onset_at_s + offset_s,
            detected_s=action.detected_at_s + offset_s,
            decided_s=clock.unix_s(),
            verdict=Verdict(
                kind=draft.kind,
                ranks=draft.ranks,
                nodes=nodes,
                confidence=draft.confidence,
                rule=draft.rule,
                sentence=_sentence(draft, nodes),
            ),
            action=Action(name=action.action, nodes=nodes, reason=action.reason),
            evidence=_evidence(draft.culprit),
        )

    def flush(self) -> None:
        """Write the newest incident if its file is not up to date."""
        if not self._dirty:
            return
        self._dirty = False
        incident = self.incidents[-1]
        path = self._node.run_directory.incident(incident.id)
        try:
            incident_file.write(path, incident)
        except OSError as error:
            self._node.complain(path, error)

    def look_for_first_step(self) -> None:
        """Note when the attempt after the newest incident made its first step; call now and then."""
        attempt = self._awaits_step_of
        if attempt is None:
            return
        first_step_s = self._node.first_step_s(attempt)
        if first_step_s is None:
            return
        clock = self._node.clock
        resumed_s = first_step_s + clock.unix_s() - clock.monotonic_s()
        self.incidents[-1] = msgspec.structs.replace(self.incidents[-1], resumed_s=resumed_s)
        self._awaits_step_of = None
        self._dirty = True
        self.flush()


def _sentence(draft: VerdictDraft, nodes: tuple[str, ...]) -> str:
    where = f" on {', '.join(nodes)}" if nodes else ""
    return f"{draft.sentence}{where}{'; ' if draft.aftermath else ''}{draft.aftermath}"


def _evidence(culprit: RankEvidence | None) -> tuple[Evidence, ...]:
    if culprit is None:
        return ()
    excerpt = culprit.finding.excerpt if culprit.finding else ""
    what = "what its program raised" if excerpt else "the end of its stderr"
    return (Evidence(what=what, rank=culprit.rank, path=culprit.stderr_path, text=excerpt or culprit.stderr_tail),)
