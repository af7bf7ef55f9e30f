"""Facts of a run, from its journal and its incidents: what is kept of it for ever. Pure.

Times and shares are those that `robust status` and the pages show, by the same definition (`report.effective`).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import msgspec

from robust_run.fleet.words import Began, CodeFacts, IncidentFacts, Lost, RunFacts, StartFacts, State
from robust_run.launcher.operator.views.facts.component import component_of
from robust_run.launcher.operator.views.facts.costs import NOBODY, costs_of
from robust_run.launcher.operator.views.facts.fold import RunFold, Symptom
from robust_run.launcher.operator.views.facts.saves import saves_of
from robust_run.report import effective
from robust_run.report.pages.ettr import spans_of, stretches_of
from robust_run.report.pages.types import AttemptTimes
from robust_run.report.types import Incident

BEGAN: Mapping[str, Began] = {"spawned": "cold", "forked": "warm", "promoted": "standby"}
"""By how its workers came (`AttemptTimes.how`), the slowest first: that is what the attempt waited for."""

#: Starts that are kept, the newest: facts are small.
MOST_STARTS = 1000


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a run beside its journal."""

    place: str = ""
    """Its run directory."""
    state: State
    until_s: float
    """Now, of one that lives; else its end, or the last line of its journal."""
    outcome: str = ""
    """As it ended."""
    gap_s: float = 0.0
    """See `RunFacts.gap_s`."""
    has_gpus: bool = False
    """GPUs were seen on its nodes: a rank is taken to have one."""
    folder: Sequence[tuple[float, int | None]] = ()
    """When each checkpoint in its folder was made, and its step; those of other runs, too."""


def facts_of_run(fold: RunFold, incidents: Sequence[Incident], known: Known) -> RunFacts:
    """Return the facts of a run."""
    history = fold.history
    attempts = history.attempts
    began_s = history.begun_s if history.begun_s is not None else known.until_s
    until_s = max(known.until_s, began_s)
    stretches = stretches_of(attempts, incidents)
    counts = effective.counts_steps(stretches, known.outcome, until_s)
    spans = spans_of(attempts, incidents, began_s, until_s, counts_steps=counts)
    costs = costs_of(attempts, incidents, spans)
    nodes, ranks = max(fold.worlds.values(), default=(1, fold.spec.nproc))
    spent = effective.seconds(stretches, began_s, until_s, counts_steps=counts)
    step_s = _step_s(attempts, fold.survived_step_s)
    saves = saves_of(fold.spec, known.folder, fold.saves.values(), began_s, until_s, step_s)
    return RunFacts(
        run_id=fold.spec.run_id,
        name=fold.spec.script,
        place=known.place,
        began_s=began_s,
        until_s=until_s,
        state=known.state,
        nodes=nodes,
        ranks=ranks,
        gpus=ranks if known.has_gpus else 0,
        ettr=effective.share(stretches, began_s, until_s, counts_steps=counts),
        effective_s=spent.effective,
        steps=_steps(attempts) if counts else None,
        step_s=step_s,
        node_s=fold.exposure.seconds(until_s),
        incidents=tuple(
            _incident(each, fold, fold.symptoms.get(each.id, Symptom()), costs.of(each.id)) for each in incidents
        ),
        other=costs.of(NOBODY),
        starts=tuple(_start(each, fold) for each in attempts[-MOST_STARTS:]),
        code=_code(fold, attempts, incidents),
        saves=saves.count,
        save_every_s=saves.every_s,
        version=fold.header.version,
        gap_s=known.gap_s,
    )


def _incident(incident: Incident, fold: RunFold, symptom: Symptom, lost: Lost) -> IncidentFacts:
    verdict, action = incident.verdict, incident.action
    struck = fold.history.attempt(incident.attempt)
    evicted = action.nodes if action.name == "evict" else ()
    return IncidentFacts(
        number=incident.id,
        at_s=incident.onset_s,
        symptom=incident.symptom,
        kind=verdict.kind,
        component=component_of(verdict.kind, verdict.rule, symptom.trouble, was_killed=symptom.was_killed),
        trouble=symptom.trouble,
        nodes=tuple(dict.fromkeys(verdict.nodes or evicted)),
        action=action.name,
        evicted=evicted,
        confidence=verdict.confidence,
        rule=verdict.rule,
        code=fold.versions.get(_ran(struck), "") if struck is not None else "",
        source=_source(incident, fold),
        lost=lost,
    )


def _source(incident: Incident, fold: RunFold) -> str:
    if incident.resume is not None:
        return incident.resume.source
    recorded = fold.on_record.found.get(incident.id)
    return recorded.resume.source if recorded is not None and recorded.resume is not None else ""


def _start(attempt: AttemptTimes, fold: RunFold) -> StartFacts:
    started_s = attempt.started_s
    first_s = attempt.first_step_s
    return StartFacts(
        attempt=attempt.number,
        at_s=attempt.ordered_s,
        nodes=fold.worlds[attempt.number][0],
        began=next((began for how, began in BEGAN.items() if how in attempt.how), "cold"),
        ready_s=max(started_s - attempt.ordered_s, 0.0) if started_s is not None else None,
        first_step_s=max(first_s - started_s, 0.0) if started_s is not None and first_s is not None else None,
    )


def _ran(attempt: AttemptTimes) -> int:
    """Return the version that an attempt ran: one that began before there were any, what the job was started with."""
    return attempt.code or 1


def _code(fold: RunFold, attempts: Sequence[AttemptTimes], incidents: Sequence[Incident]) -> tuple[CodeFacts, ...]:
    ran = {attempt.number: _ran(attempt) for attempt in attempts}
    failed: dict[int, int] = {}
    taken_back: set[int] = set()
    for each in incidents:
        number = ran.get(each.attempt, 0)
        if each.action.name == "rollback":
            taken_back.add(number)
        if each.action.name == "rollback" or component_of(each.verdict.kind, each.verdict.rule, "") == "code":
            failed[number] = failed.get(number, 0) + 1
    return tuple(
        CodeFacts(
            version=name,
            failed=failed.get(number, 0),
            rolled_back=number in taken_back or name in fold.rolled_back,
        )
        for number, name in sorted(fold.versions.items())
    )


def _steps(attempts: Sequence[AttemptTimes]) -> int | None:
    counted = [attempt.steps for attempt in attempts if attempt.steps is not None]
    return sum(counted) if counted else None


def _step_s(attempts: Sequence[AttemptTimes], survived_step_s: Sequence[float]) -> float | None:
    """Return what a step took: the median of attempts' means, by steps; else as nodes said of the first steps of attempts."""
    means: list[tuple[float, int]] = []
    for each in attempts:
        end_s = effective.stopped_s(each.onset_s, each.told_s, each.ended_s)
        if each.first_step_s is None or end_s is None or not each.steps or each.steps < 2:
            continue
        worked_s = sum(end - begin for begin, end in effective.between(each.standstills, each.first_step_s, end_s))
        if worked_s > 0:
            means.append((worked_s / (each.steps - 1), each.steps))
    if not means:
        return statistics.median(survived_step_s) if survived_step_s else None
    half, seen = sum(steps for _, steps in means) / 2, 0
    for mean_s, steps in sorted(means):
        seen += steps
        if seen >= half:
            return mean_s
    return None
