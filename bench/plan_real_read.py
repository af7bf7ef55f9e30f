"""Reads what came of a real job from its run directory: its course as plans have it, ETTR, and how long everything took.

ETTR is `report.effective`'s, over the attempts that `launcher.operator.views.course` finds in the journal, as `robust status`
says it; phases are `planning.course`'s, for both sides.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from plan_real_words import Came, Strike

from robust_run.launcher.operator.views.course import Course as RealCourse
from robust_run.planning.course import AttemptCourse
from robust_run.report import effective

FIRST_SIGNS = {
    "killed": "rank_exited",
    "input_output": "rank_exited",
    "stopped": "hang_suspected",
    "power": "node_lost",
}


def read(path: Path, came: Came, until_s: float) -> None:
    """Fill in what the journal says."""
    began_unix_s = came.began_unix_s
    lines = [line for line in path.read_bytes().split(b"\n")[:-1] if line.endswith(b"}")]
    course, facts = RealCourse(), []
    for line in lines:
        fact = json.loads(line)
        if "at" in fact and fact["at"] > began_unix_s + until_s:
            break
        course.take(line)
        if "at" in fact:
            facts.append((fact["at"] - began_unix_s, fact.get("action") or fact.get("event") or {}))
    _begin_anew(course, facts)
    stretches = [each.stretch() for each in course.attempts]
    share = effective.share(stretches, began_unix_s, began_unix_s + until_s, counts_steps=True)
    came.ettr = share or 0.0
    came.attempts = [_attempt(each, facts, began_unix_s) for each in course.attempts]
    came.actions = dict(Counter(each["action"] for _, each in facts if each["type"] == "record_incident"))
    came.samples = _samples(came, facts, course)


def _attempt(each: Any, facts: list[tuple[float, dict[str, Any]]], began_s: float) -> AttemptCourse:
    opened = [at_s for at_s, fact in facts if fact["type"] == "open_store" and fact["attempt"] == each.number]
    since = lambda at_s: None if at_s is None else at_s - began_s  # noqa: E731
    return AttemptCourse(
        opened_s=opened[0] if opened else each.began_s - began_s,
        started_s=since(each.started_s),
        first_step_s=since(each.first_step_s),
        onset_s=since(each.onset_s),
        told_s=since(each.told_s),
        ended_s=since(each.ended_s),
        resumed_s=since(each.resumed_s),
        source=_source(facts, each.number),
        cause=each.why[:80],
    )


def _begin_anew(course: RealCourse, facts: list[tuple[float, dict[str, Any]]]) -> None:
    """Jobs here have a folder of checkpoints: one that begins where nothing was chosen has lost what it had trained. Journals
    of launchers that do not say so by themselves are read as those of others."""
    for each in course.attempts:
        if each.number > 0 and not _source(facts, each.number):
            each.anew_s = course.began_s


def _source(facts: list[tuple[float, dict[str, Any]]], number: int) -> str:
    chosen = [fact for _, fact in facts if fact["type"] == "resume_chosen" and fact["attempt"] == number]
    return str(chosen[-1].get("source", "")) if chosen else ""


def _samples(came: Came, facts: list[tuple[float, dict[str, Any]]], course: RealCourse) -> dict[str, list[float]]:
    """Return how long what took, each time."""
    found: dict[str, list[float]] = {}

    def add(name: str, took_s: float | None) -> None:
        if took_s is not None and took_s >= 0:
            found.setdefault(name, []).append(round(took_s, 4))

    def first(kind: str, after_s: float, attempt: int | None = None) -> float | None:
        times = (
            at_s
            for at_s, fact in facts
            if fact["type"] == kind and at_s >= after_s and attempt in (None, fact.get("attempt"))
        )
        return next(times, None)

    for at_s, fact in facts:
        if fact["type"] == "open_store":
            add("ask", _less(first("store_opened", at_s, fact["attempt"]), at_s))
        elif fact["type"] == "look_for_checkpoints":
            add("ask_all", _less(first("resume_chosen", at_s, fact["attempt"]), at_s))
        elif fact["type"] == "inquire" and not fact.get("post_mortem") and not fact.get("leftovers"):
            add("localise", _less(first("inquired", at_s, fact["attempt"]), at_s))
        elif fact["type"] == "node_lost":
            name = _host_of(fact["node"], facts)
            back = [t for t, f in facts if t > at_s and f["type"] == "node_joined" and f["node"]["name"] == name]
            add("back", back[0] - at_s if back else None)
    for real, attempt in zip(course.attempts, came.attempts, strict=True):
        ordered_s = real.began_s - came.began_unix_s
        if real.number == 0:
            add("opened", attempt.opened_s)
            add("cold_launch", _less(attempt.started_s, ordered_s))
            add("cold_load", _less(attempt.first_step_s, attempt.started_s))
        else:
            add("launch", _less(attempt.started_s, ordered_s))
            source = {"": "nothing", "peer": "memory"}.get(attempt.source, attempt.source)
            add(f"load_{source}", _less(attempt.first_step_s, attempt.started_s))
        add("end", _less(attempt.ended_s, attempt.told_s))
        stopped_s = effective.stopped_s(attempt.onset_s, attempt.told_s, attempt.ended_s)
        if real.steps and attempt.first_step_s is not None and stopped_s is not None and real.steps > 20:
            add("step", (stopped_s - attempt.first_step_s) / real.steps)
    for strike in came.strikes:
        _add_detection(strike, came, facts, add)
    return found


def _add_detection(strike: Strike, came: Came, facts: list[tuple[float, dict[str, Any]]], add: Any) -> None:
    if strike.came != "fired" or strike.fired_s is None:
        return
    if strike.name in ("update", "bad_update"):
        staged = [at_s for at_s, fact in facts if fact["type"] == "update_staged" and at_s >= strike.at_s]
        add("update", staged[0] - strike.at_s if staged else None)
        if strike.name == "bad_update":
            for each in came.attempts:
                if each.onset_s is not None and each.first_step_s is not None and "ValueError" in each.cause:
                    add("detect bad_update", each.onset_s - each.first_step_s)
        return
    sign = FIRST_SIGNS[strike.name]
    times = [at_s for at_s, fact in facts if fact["type"] == sign and at_s >= strike.fired_s - 0.05]
    if not times:
        return
    add(f"detect {strike.name}", max(times[0] - strike.fired_s, 0.0))
    told = [each.told_s for each in came.attempts if each.told_s is not None and each.told_s >= strike.fired_s - 0.05]
    add(f"act {strike.name}", told[0] - strike.fired_s if told else None)


def _host_of(node: str, facts: list[tuple[float, dict[str, Any]]]) -> str:
    return next((f["node"]["name"] for _, f in facts if f["type"] == "node_joined" and f["node"]["id"] == node), "")


def _less(later_s: float | None, earlier_s: float | None) -> float | None:
    return None if later_s is None or earlier_s is None else later_s - earlier_s
