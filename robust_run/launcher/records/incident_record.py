"""Incident file contents, from the incident that the core records in the journal. Pure."""

from __future__ import annotations

from robust_run.launcher.model.actions import RecordIncident
from robust_run.launcher.model.job import RankEvidence, VerdictDraft
from robust_run.launcher.model.resume_events import ResumeChosen
from robust_run.report import summary
from robust_run.report.types import Action, Evidence, Incident, Resume, Skipped, Verdict

#: What an incident's action becomes by what the ladder decides.
OUTCOMES = {"evict": "evict", "reattempt": "diagnose", "stop": "stop"}


def incident_of(action: RecordIncident, number: int, offset_s: float, decided_unix_s: float) -> Incident:
    """Turn the core's monotonic times into wall times, which are `offset_s` larger."""
    draft = action.verdict
    return Incident(
        id=number,
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
        action=Action(
            name=action.action,
            nodes=draft.nodes,
            reason=action.reason,
            at_s=action.act_at_s + offset_s if action.act_at_s is not None else None,
        ),
        evidence=(*_evidence(draft.culprit), *_seen(draft)),
    )


def resume_of(event: ResumeChosen) -> Resume:
    """Return where an attempt starts from, as people read it in the incident before."""
    return Resume(
        attempt=event.attempt,
        source=event.source or "beginning",
        step=event.step,
        uuid=event.uuid,
        address=event.address,
        created_unix_s=event.created_unix_s,
        steps_lost=event.steps_lost,
        lost_s=event.lost_s,
        passed_over=tuple(
            Skipped(step=each.step, uuid=each.uuid, name=each.name, why=each.why) for each in event.passed_over
        ),
        unsure=event.unsure,
    )


def _sentence(draft: VerdictDraft) -> str:
    """Return the verdict's sentence; a sentence about ranks says where they ran, unless it is the same everywhere."""
    says_where = draft.nodes and draft.culprit is not None and draft.kind != "mismatch"
    where = f" on {', '.join(draft.nodes)}" if says_where else ""
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
