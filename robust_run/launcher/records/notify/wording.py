"""What a notice says. Pure."""

from __future__ import annotations

import msgspec

from robust_run.launcher.records.notify.types import LONGEST_TEXT, NAMED, IncidentNotice, Notification
from robust_run.report.summary import duration
from robust_run.report.types import Incident


class About(msgspec.Struct, frozen=True, kw_only=True):
    """The job that is told of."""

    run_id: str
    script: str
    host: str
    run_directory: str


def opened(about: About, incident: Incident, at_s: float) -> Notification:
    """Return the notice of an incident that has just been judged."""
    done = {
        "relaunch": "the job starts again",
        "evict": "its node is evicted, the job starts again",
        "rollback": "the code is rolled back, the job starts again",
        "replay": "the job starts again with the same ranks, to find the faulty node",
        "diagnose": "the nodes are being checked",
        "stop": "the job is not started again",
        "report": "reported only",
    }[incident.action.name]
    why = f" ({incident.action.reason})" if incident.action.reason else ""
    return _notice(about, "incident_opened", f"{incident.verdict.sentence}; {done}{why}", at_s, incident)


def resolved(about: About, incident: Incident, at_s: float) -> Notification:
    """Return the notice of an incident after which the job trains again."""
    took_s = (incident.resumed_s or at_s) - incident.onset_s
    words = f"trains again, {duration(max(took_s, 0.0))} after: {incident.verdict.sentence}"
    return _notice(about, "incident_resolved", words, at_s, incident)


def ended(
    about: About, outcome: str, exit_code: int, reason: str, at_s: float, last: Incident | None = None
) -> Notification:
    """Return the notice of a job that is over. `last`: the incident that ended it."""
    why = last.verdict.sentence if last is not None and outcome == "failed" else reason
    words = f"{outcome} with exit code {exit_code}{': ' + why if why else ''}"
    notice = _notice(about, "job_ended", words, at_s, last if outcome == "failed" else None)
    return msgspec.structs.replace(notice, outcome=outcome, exit_code=exit_code)


def with_suppressed(notice: Notification, count: int) -> Notification:
    """Return a notice that says how many were left out before it."""
    if not count:
        return notice
    words = f" (and {count} notice{'s' if count > 1 else ''} before this one {'were' if count > 1 else 'was'} not sent)"
    return msgspec.structs.replace(notice, suppressed=count, text=notice.text[: LONGEST_TEXT - len(words)] + words)


def _notice(about: About, event: str, words: str, at_s: float, incident: Incident | None) -> Notification:
    return Notification(
        event=event,  # type: ignore[arg-type]
        text=escaped(f"robust-run job {about.run_id} ({about.script}) on {about.host}: {words}"),
        run_id=about.run_id,
        script=about.script,
        host=about.host,
        run_directory=about.run_directory,
        at_s=at_s,
        incident=None if incident is None else _incident(incident),
    )


def _incident(incident: Incident) -> IncidentNotice:
    verdict = incident.verdict
    return IncidentNotice(
        number=incident.id,
        attempt=incident.attempt,
        kind=verdict.kind,
        action=incident.action.name,
        reason=incident.action.reason,
        sentence=verdict.sentence,
        confidence=verdict.confidence,
        rule=verdict.rule,
        ranks=verdict.ranks[:NAMED],
        nodes=verdict.nodes[:NAMED],
        onset_s=incident.onset_s,
        detected_s=incident.detected_s,
        resumed_s=incident.resumed_s,
    )


def escaped(text: str) -> str:
    """Return a line that a chat shows as it is: what a program printed must mention no user and link nowhere.

    Slack wants exactly these three characters escaped (`<!channel>`, `<https://...|...>` are its markup).
    """
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    line = line[: LONGEST_TEXT - 100] + "..." if len(line) > LONGEST_TEXT - 100 else line
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
