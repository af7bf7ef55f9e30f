"""What to do next about one incident: steps from the table of advice, with commands that would be carried out. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

import msgspec

from robust_run.report.pages.advice import (
    BELOW,
    BY_KIND,
    BY_RULE,
    ROLLBACK,
    ROLLED_BACK,
    START_AGAIN,
    STORY,
    TIMELINE,
    WORDS,
    Step,
)
from robust_run.report.pages.course import standstill_of
from robust_run.report.pages.types import Accepts, IncidentPage
from robust_run.report.pages.words import lasted
from robust_run.tracer.types import RankSight

#: Processes that one command names.
MOST_PIDS = 16


def steps_for(page: IncidentPage, most: int = 4) -> tuple[Step, ...]:
    """Return what to do about an incident, the first thing first, with commands that would be carried out as they are."""
    incident = page.incident
    verdict = incident.verdict
    # That a program raised an exception says less than that it raised it for a NaN.
    of_rule = None if verdict.kind == "nan" else BY_RULE.get(verdict.rule)
    chosen: Sequence[Step] = of_rule or BY_KIND.get(verdict.kind, BY_KIND["unknown"])
    if incident.action.name == "rollback":
        chosen = [ROLLED_BACK, *(step for step in chosen if step not in (ROLLBACK, BY_KIND["nan"][0]))]
    if incident.action.name == "stop":
        chosen = [*chosen[: most - 1], START_AGAIN]
    if is_past(page):
        chosen = [step for step in chosen if step.needs != "restart"]
    values = {"run": shlex.quote(page.run), "id": str(incident.id)}
    if verdict.ranks:
        values["rank"] = str(verdict.ranks[0])
    if verdict.nodes:
        values["node"] = shlex.quote(verdict.nodes[0])
    has_words = any(each.text for each in incident.evidence)
    for words in (() if has_words else (WORDS,)) + (() if page.scene is not None else (BELOW,)):
        chosen = [msgspec.structs.replace(step, text=step.text.replace(words, "")) for step in chosen]
    filled = [_filled(step, values, page.drawn.accepts) for step in chosen]
    found = [*continuing(page), *(step for step in filled if step is not None)]
    if len(found) < most and not any(step.command for step in found):
        look = _filled(TIMELINE if page.scene is not None else STORY, values, page.drawn.accepts)
        found += [look] if look is not None else []
    return tuple(found[:most])


def need_of(page: IncidentPage) -> tuple[str, str]:
    """Return whether somebody has to act now, as a sentence, and the tone of it (good, warn, bad); empty: nothing says so."""
    incident, drawn = page.incident, page.drawn
    is_report, stood = incident.action.name == "report", standstill_of(incident, page.attempt)
    if is_past(page):
        return "Nothing at once: the ranks went on by themselves.", "good"
    if incident.action.name == "stop":
        return "The job is over, and does not start again by itself.", "bad"
    if incident.resumed_s is not None:
        went_on = f"training went on {lasted(incident.resumed_s - incident.onset_s)} after the onset."
        if incident.id < page.incidents:  # what came of the job is said there
            return f"Not here: {went_on} Incident {page.incidents} is the newest.", "warn"
        return f"Nothing at once: {went_on}", "good"
    if drawn.life == "over":
        return "The job is over.", "warn"
    if drawn.life != "running":
        known = (
            "Nothing controls the job any more"
            if drawn.life == "gone"
            else "It is not known here whether the job goes on"
        )
        return f"{known}{': ' if drawn.note else ''}{drawn.note}.", "bad"
    if is_report and stood is not None and page.attempt is not None:
        stands = page.attempt.standing is not None
        return ("Act now: no rank trains, and nothing was done about it so far.", "bad") if stands else ("", "")
    if is_report:
        return "", ""
    following = page.following
    if following is not None and following.started_s is not None:
        return "Wait: its workers are up again, and no step has been seen yet.", "warn"
    return "Wait: the job is being healed, and does not train yet.", "warn"


def is_past(page: IncidentPage) -> bool:
    """Whether ranks went on of which it was only reported that they wait."""
    stood = standstill_of(page.incident, page.attempt)
    return stood is not None and stood.end_s is not None


def continuing(page: IncidentPage) -> tuple[Step, ...]:
    """Return what lets the processes at fault go on that are stopped, while the attempt that they belong to runs.

    One that was ended got SIGCONT, and SIGKILL after it.
    """
    runs = page.drawn.is_live and page.attempt is not None and page.attempt.told_s is None and page.following is None
    if page.scene is None or page.incident.action.name != "report" or not runs or is_past(page):
        return ()
    stopped = stopped_in(page.scene.ranks, page.incident.verdict.ranks)
    return tuple(
        Step(f"{_counted(len(pids))} stopped, and can go on. On {node}:", f"kill -CONT {_numbers(pids)}")
        for node, pids in list(stopped.items())[:2]
    )


def stopped_in(sights: Sequence[RankSight], ranks: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Return the processes of some ranks that are stopped, by node. Those that a debugger holds go on when it lets them."""
    found: dict[str, tuple[int, ...]] = {}
    for sight in sights:
        pids = tuple(each.pid for each in sight.processes if each.state == "T" and each.pid > 0)
        if sight.rank in ranks and pids:
            found[sight.node] = (*found.get(sight.node, ()), *pids)
    return found


def _counted(count: int) -> str:
    return "It is" if count == 1 else f"{count} processes are"


def _numbers(pids: Sequence[int]) -> str:
    return " ".join(map(str, pids[:MOST_PIDS]))


def _filled(step: Step, values: Mapping[str, str], accepts: Accepts) -> Step | None:
    """Put names in; None for a step whose command would be refused, or cannot be given, and that has nothing in its place."""
    wanted = {name for name in ("run", "id", "rank", "node") if f"{{{name}}}" in step.command}
    if not wanted <= set(values) or (step.needs and not getattr(accepts, step.needs)):
        return _filled(step.otherwise, values, accepts) if step.otherwise is not None else None
    text = step.text.replace("{node}", values.get("node", "its node"))
    command = step.command
    for name, value in values.items():
        command = command.replace(f"{{{name}}}", value)
    return Step(text, command)
