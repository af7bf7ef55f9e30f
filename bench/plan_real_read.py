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

Facts = list[tuple[float, dict[str, Any]]]
"""Events and actions, and when: seconds since the job began."""
ANSWERS = {
    "open_store": ("ask", "store_opened"),
    "look_for_checkpoints": ("ask_all", "resume_chosen"),
    "inquire": ("localise", "inquired"),
}
"""Questions of the core: what durations of theirs are called, and what answers them."""
CLOCK_S = 0.05
"""The journal and the one who strikes may be so far apart."""
FEWEST_STEPS = 20
"""Fewer steps say little of how long one takes."""
FIRST_SIGNS = {
    "killed": "rank_exited",
    "input_output": "rank_exited",
    "stopped": "hang_suspected",
    "power": "node_lost",
}


def read(path: Path, came: Came) -> None:
    """Fill in what the journal says."""
    began_unix_s, until_s = came.began_unix_s, came.until_s
    lines = [line for line in path.read_bytes().split(b"\n")[:-1] if line.endswith(b"}")]
    course, facts = RealCourse(), list[tuple[float, dict[str, Any]]]()
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


def _attempt(each: Any, facts: Facts, began_s: float) -> AttemptCourse:
    opened = [at_s for at_s, fact in facts if fact["type"] == "open_store" and fact["attempt"] == each.number]
    since = lambda at_s: None if at_s is None else at_s - began_s  # noqa: E731
    return AttemptCourse(
        opened_s=opened[0] if opened else each.began_s - began_s,
        started_s=since(each.started_s),
        first_step_s=since(each.first_step_s),
        onset_s=since(each.onset_s),
        told_s=since(each.told_s),
        ended_s=since(each.ended_s),
        resumed_s=since(each.stretch().resumed_s),
        source=_source(facts, each.number),
        cause=each.why[:80],
    )


def _begin_anew(course: RealCourse, facts: Facts) -> None:
    """Jobs here have a folder of checkpoints: one that begins where nothing was chosen has lost what it had trained. Journals
    of launchers that do not say so by themselves are read as those of others."""
    for each in course.attempts:
        if each.number > 0 and not _source(facts, each.number):
            each.anew_s = course.began_s


def _source(facts: Facts, number: int) -> str:
    chosen = [fact for _, fact in facts if fact["type"] == "resume_chosen" and fact["attempt"] == number]
    return str(chosen[-1].get("source", "")) if chosen else ""


class _Samples:
    """How long what took in a job, each time."""

    def __init__(self, came: Came, facts: Facts) -> None:
        self.came, self.facts = came, facts
        self.found: dict[str, list[float]] = {}

    def add(self, name: str, later_s: float | None, earlier_s: float | None) -> None:
        """Note one, if both its ends are known."""
        if later_s is not None and earlier_s is not None and later_s >= earlier_s:
            self.found.setdefault(name, []).append(round(later_s - earlier_s, 4))

    def first(self, kind: str, after_s: float, attempt: int | None = None) -> float | None:
        """Return when a kind of line came first after a moment."""
        return next(
            (
                at_s
                for at_s, fact in self.facts
                if fact["type"] == kind and at_s >= after_s and attempt in (None, fact.get("attempt"))
            ),
            None,
        )

    def of_questions(self) -> None:
        """What is asked and answered, and hosts that come back."""
        for at_s, fact in self.facts:
            kind, attempt = fact["type"], fact.get("attempt")
            if kind in ANSWERS and not fact.get("post_mortem") and not fact.get("leftovers"):
                name, answer = ANSWERS[kind]
                self.add(name, self.first(answer, at_s, attempt), at_s)
            elif kind == "node_lost":
                name = _host_of(fact["node"], self.facts)
                joined = (
                    t for t, f in self.facts if t > at_s and f["type"] == "node_joined" and f["node"]["name"] == name
                )
                self.add("back", next(joined, None), at_s)

    def of_attempt(self, number: int, ordered_s: float, steps: int | None, attempt: AttemptCourse) -> None:
        """How it began and ended, and its steps."""
        if number > 0:
            self.add("launch", attempt.started_s, ordered_s)
            source = {"": "nothing", "peer": "memory"}.get(attempt.source, attempt.source)
            self.add(f"load_{source}", attempt.first_step_s, attempt.started_s)
        self.add("end", attempt.ended_s, attempt.told_s)
        stopped_s = effective.stopped_s(attempt.onset_s, attempt.told_s, attempt.ended_s)
        if steps and steps > FEWEST_STEPS and stopped_s is not None and attempt.first_step_s is not None:
            self.add("step", (stopped_s - attempt.first_step_s) / steps, 0.0)

    def of_strike(self, strike: Strike) -> None:
        """How long it took until its first sign, and until the order to end the attempt."""
        if strike.came != "fired" or strike.fired_s is None:
            return
        if strike.name in ("update", "bad_update"):
            self.add("update", self.first("update_staged", strike.at_s), strike.at_s)
            return
        since_s = strike.fired_s - CLOCK_S
        self.add(
            f"detect {strike.name}",
            _not_before(self.first(FIRST_SIGNS[strike.name], since_s), strike.fired_s),
            strike.fired_s,
        )
        told = [each.told_s for each in self.came.attempts if each.told_s is not None and each.told_s >= since_s]
        self.add(f"act {strike.name}", _not_before(told[0] if told else None, strike.fired_s), strike.fired_s)


def _samples(came: Came, facts: Facts, course: RealCourse) -> dict[str, list[float]]:
    found = _Samples(came, facts)
    found.of_questions()
    for real, attempt in zip(course.attempts, came.attempts, strict=True):
        found.of_attempt(real.number, real.began_s - came.began_unix_s, real.steps, attempt)
    for strike in came.strikes:
        found.of_strike(strike)
    for each in came.attempts:
        if "ValueError" in each.cause:
            found.add("detect bad_update", each.onset_s, each.first_step_s)
    return found.found


def _not_before(at_s: float | None, other_s: float) -> float | None:
    return None if at_s is None else max(at_s, other_s)


def _host_of(node: str, facts: Facts) -> str:
    return next((f["node"]["name"] for _, f in facts if f["type"] == "node_joined" and f["node"]["id"] == node), "")
