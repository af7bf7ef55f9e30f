"""What of a job's time each of its incidents cost, by phase, so that all parts sum up to what was not effective. Pure.

Effective time is defined in `report.effective`, what else a second was spent on in `report.pages.ettr.spans_of`; here each of
those spans is put to the incident that it is due to:

- what follows the end of an attempt, up to the next one's first step: the incident that ended it;
- a standstill: the incident that reported it;
- steps made again: the incident that ended the last attempt that still had them;
- what no incident has led to (the first start, an attempt of a controller that was gone, the end of the job): none.

An attempt that fails while it starts ends what the incident before it costs: the rest is its own incident's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from robust_run.fleet.words import Lost
from robust_run.report.pages.ettr import resumed_s
from robust_run.report.pages.types import AttemptTimes, LifeSpan
from robust_run.report.types import Incident

NOBODY = 0
"""In place of an incident's number: none has led to it."""


class Costs:
    """Adds up spans by incident and phase."""

    def __init__(self, attempts: Sequence[AttemptTimes], incidents: Iterable[Incident]) -> None:
        self._attempts = attempts
        self._places = {each.number: place for place, each in enumerate(attempts)}
        found = list(incidents)
        self._numbers = {each.id for each in found}
        self._ended_of = {each.attempt: each.id for each in found if each.action.name != "report"}
        self._seconds: dict[int, dict[str, float]] = {}

    def take(self, span: LifeSpan) -> None:
        """Add a span."""
        match span.kind:
            case "productive":
                return
            case "redone":
                self._redone(span)
            case "standstill":
                self._lose(self._reported_by(span), "detect", span.end_s - span.begin_s)
            case "starting" | "first_start" | "waiting" | "unused":
                self._started(span)
            case "checking":
                self._lose(self._ended_of.get(span.attempt, NOBODY), "check", span.end_s - span.begin_s)
            case "unnoticed" | "deciding" | "ending":
                self._ended(span)

    def of(self, number: int) -> Lost:
        """Return what an incident cost; of `NOBODY`, what none did."""
        return msgspec.convert(self._seconds.get(number, {}), Lost)

    def _lose(self, number: int, phase: str, seconds: float) -> None:
        if seconds > 0:
            phases = self._seconds.setdefault(number, {})
            phases[phase] = phases.get(phase, 0.0) + seconds

    def _ended(self, span: LifeSpan) -> None:
        """Divide the time from an onset to the end of its attempt by the order to end it: a verdict may come later."""
        number = self._ended_of.get(span.attempt, NOBODY)
        told_s = self._attempts[self._places[span.attempt]].told_s
        if told_s is None:
            told_s = span.begin_s if span.kind == "ending" else span.end_s
        told_s = _within(told_s, span)
        self._lose(number, "detect", told_s - span.begin_s)
        self._lose(number, "end", span.end_s - told_s)

    def _started(self, span: LifeSpan) -> None:
        """Divide the time before an attempt trained: until it was ordered, until its workers ran, until it made a step."""
        place = self._places.get(span.attempt)
        number = self._before(len(self._attempts) if place is None else place)
        if place is None:  # before the first attempt, or after the last
            self._lose(number, "wait", span.end_s - span.begin_s)
            return
        attempt = self._attempts[place]
        ordered_s = _within(attempt.ordered_s, span)
        started_s = _within(attempt.started_s, span)
        self._lose(number, "wait", ordered_s - span.begin_s)
        self._lose(number, "launch", started_s - ordered_s)
        self._lose(number, "load", span.end_s - max(started_s, ordered_s))

    def _before(self, place: int) -> int:
        """Return the incident that ended the attempt before this place."""
        return self._ended_of.get(self._attempts[place - 1].number, NOBODY) if place > 0 else NOBODY

    def _reported_by(self, span: LifeSpan) -> int:
        attempt = self._attempts[self._places[span.attempt]]
        stood = [each for each in attempt.standstills if each.begin_s <= span.begin_s]
        number = stood[-1].incident if stood else NOBODY
        return number if number in self._numbers else NOBODY

    def _redone(self, span: LifeSpan) -> None:
        """Put steps that were made again to the incident that ended the last attempt that still had them."""
        last = self._places[span.attempt]
        left_until_s = span.end_s
        for place in range(last + 1, len(self._attempts)):
            made_s = resumed_s(self._attempts[place])
            if made_s is None:
                continue
            kept_s = min(max(made_s, span.begin_s), left_until_s)
            self._lose(self._before(last + 1), "redo", left_until_s - kept_s)
            left_until_s, last = kept_s, place
            if left_until_s <= span.begin_s:
                return
        self._lose(NOBODY, "redo", left_until_s - span.begin_s)


def _within(moment_s: float | None, span: LifeSpan) -> float:
    """Return a moment within a span; its end for what was not."""
    return span.end_s if moment_s is None else min(max(moment_s, span.begin_s), span.end_s)


def costs_of(attempts: Sequence[AttemptTimes], incidents: Iterable[Incident], spans: Iterable[LifeSpan]) -> Costs:
    """Return what each incident cost. `spans`: the whole life of the job (`spans_of`), of the same attempts and incidents."""
    costs = Costs(attempts, incidents)
    for span in spans:
        costs.take(span)
    return costs
