"""Where each second of a job's life went, and the share that was effective training (ETTR). Pure.

What is productive is defined in `report.effective`, for all who show it; everything else is unproductive, and has a name here:
`SPAN_WORDS`. Each second counts exactly once (`spans_of`).
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

import msgspec

from robust_run.report.effective import WINDOW_S, AttemptStretch, between, kept_until, stopped_s
from robust_run.report.pages.types import AttemptTimes, LifeSpan, SpanKind
from robust_run.report.types import Incident

SPAN_WORDS: dict[SpanKind, tuple[str, str]] = {
    "productive": ("training", "from an attempt's first step to the onset of what ended it"),
    "redone": ("steps made again", "what was trained after the checkpoint was made that a later attempt began from"),
    "standstill": ("standing still", "ranks waited, and that was only reported"),
    "unnoticed": ("unnoticed", "from the onset of a failure until it was suspected"),
    "deciding": ("finding the cause", "from the suspicion to the verdict"),
    "ending": ("ending the old workers", "until no process of the failed attempt was left"),
    "checking": ("checking nodes", "until the checks of the nodes were over"),
    "waiting": ("waiting for nodes", "until the next attempt had its nodes and its store"),
    "starting": ("starting again", "from the order to start to the first step"),
    "first_start": ("first start", "from the command to the first step of the first attempt"),
    "unused": ("no attempt running", "after the last attempt, until the job was over"),
}
"""What each kind is called, and what it is, in the order pages list them."""


class _Cuts:
    """Collects spans without gaps or overlaps, also from times that are out of order."""

    def __init__(self, begin_s: float, end_s: float) -> None:
        self.spans: list[LifeSpan] = []
        self.at_s, self._end_s = begin_s, max(begin_s, end_s)

    def until(self, at_s: float | None, kind: SpanKind, attempt: int) -> None:
        """Fill up to a moment; None: there was none."""
        if at_s is None:
            return
        at_s = min(at_s, self._end_s)
        if at_s > self.at_s:
            self.spans.append(LifeSpan(kind=kind, begin_s=self.at_s, end_s=at_s, attempt=attempt))
            self.at_s = at_s


def spans_of(
    attempts: Sequence[AttemptTimes],
    incidents: Sequence[Incident],
    begin_s: float,
    end_s: float,
    *,
    counts_steps: bool = True,
) -> tuple[LifeSpan, ...]:
    """Return what each second from `begin_s` to `end_s` was spent on, in order, without gaps.

    `counts_steps`: whether first steps are known; else an attempt counts as productive once its workers run.
    """
    cuts = _Cuts(begin_s, end_s)
    kept = kept_until([resumed_s(attempt) for attempt in attempts])
    ended_of = _ended_of(incidents)
    for index, attempt in enumerate(attempts):
        number = attempt.number
        cuts.until(attempt.ordered_s, "waiting" if index else "first_start", number if index else -1)
        productive_s = attempt.first_step_s if counts_steps else attempt.started_s
        incident = ended_of.get(number)
        stop_s = attempt.ended_s if attempt.ended_s is not None else end_s
        stopped = stopped_s(_onset_s(attempt, incident), attempt.told_s, attempt.ended_s)
        onset_s = stopped if stopped is not None else end_s
        starting: SpanKind = "starting" if index else "first_start"
        cuts.until(min(productive_s, onset_s) if productive_s is not None else onset_s, starting, number)
        if productive_s is not None:
            for works_s, rests_s in between(attempt.standstills, cuts.at_s, onset_s):
                cuts.until(works_s, "standstill", number)
                cuts.until(min(max(kept[index], works_s), rests_s), "productive", number)
                cuts.until(rests_s, "redone", number)
        cuts.until(onset_s, "standstill" if productive_s is not None else starting, number)
        if incident is not None:
            decided_s = attempt.verdict_s if attempt.verdict_s is not None else incident.decided_s
            cuts.until(min(incident.detected_s, stop_s), "unnoticed", number)
            cuts.until(min(decided_s, stop_s), "deciding", number)
        cuts.until(attempt.ended_s, "ending", number)
        if attempt.ended_s is not None:
            cuts.until(attempt.checked_s, "checking", number)
    over = attempts[-1].ended_s is not None if attempts else False
    cuts.until(end_s, "unused" if over else "first_start" if not attempts else "starting", -1)
    return tuple(cuts.spans)


def stretches_of(attempts: Sequence[AttemptTimes], incidents: Sequence[Incident]) -> list[AttemptStretch]:
    """Return what of each attempt counts as training."""
    ended_of = _ended_of(incidents)
    return [
        AttemptStretch(
            started_s=attempt.started_s,
            first_step_s=attempt.first_step_s,
            onset_s=_onset_s(attempt, ended_of.get(attempt.number)),
            told_s=attempt.told_s,
            ended_s=attempt.ended_s,
            resumed_s=resumed_s(attempt),
            standstills=attempt.standstills,
        )
        for attempt in attempts
    ]


def resumed_s(attempt: AttemptTimes) -> float | None:
    """Return when the state was made that an attempt began from: the job's beginning, if that is known to be it."""
    return attempt.resumed.created_s if attempt.resumed is not None else attempt.anew_s


def _ended_of(incidents: Sequence[Incident]) -> dict[int, Incident]:
    """Return, by attempt, the incident that ended it."""
    return {incident.attempt: incident for incident in incidents if incident.action.name != "report"}


def _onset_s(attempt: AttemptTimes, incident: Incident | None) -> float | None:
    """Return when what ended an attempt began: by the journal, as all others who tell of it."""
    if attempt.onset_s is not None:
        return attempt.onset_s
    return incident.onset_s if incident is not None else None


def seconds_by_kind(spans: Sequence[LifeSpan]) -> dict[SpanKind, float]:
    """Return how long each kind lasted in all; those that did not occur are left out."""
    total: dict[SpanKind, float] = {}
    for span in spans:
        total[span.kind] = total.get(span.kind, 0.0) + span.end_s - span.begin_s
    return {kind: total[kind] for kind in SPAN_WORDS if kind in total}


def ratio(spans: Sequence[LifeSpan], since_s: float | None = None, until_s: float | None = None) -> float | None:
    """Return the productive share of a stretch of time, of the whole by default; None where nothing was trained yet."""
    if not any(span.kind in ("productive", "redone") for span in spans):
        return None
    begin_s = max(spans[0].begin_s, since_s) if since_s is not None else spans[0].begin_s
    end_s = min(spans[-1].end_s, until_s) if until_s is not None else spans[-1].end_s
    if end_s <= begin_s:
        return None
    productive = (
        max(0.0, min(span.end_s, end_s) - max(span.begin_s, begin_s)) for span in spans if span.kind == "productive"
    )
    return min(1.0, sum(productive) / (end_s - begin_s))


class EttrPoint(msgspec.Struct, frozen=True):
    """ETTR at one moment."""

    at_s: float
    cumulative: float
    sliding: float


def course(spans: Sequence[LifeSpan], points: int = 240, window_s: float = WINDOW_S) -> tuple[EttrPoint, ...]:
    """Return how ETTR went, at equal distances: since the beginning, and over the window before each moment."""
    if not spans or spans[-1].end_s <= spans[0].begin_s:
        return ()
    begin_s, end_s = spans[0].begin_s, spans[-1].end_s
    productive = _Productive(spans)
    found = []
    for index in range(1, points + 1):
        at_s = begin_s + (end_s - begin_s) * index / points
        if at_s <= begin_s:  # so short that floats cannot tell the moments apart
            continue
        since_s = max(begin_s, at_s - window_s)
        all_s, window = productive.before(at_s), productive.before(at_s) - productive.before(since_s)
        found.append(EttrPoint(at_s, min(1.0, all_s / (at_s - begin_s)), max(0.0, min(1.0, window / (at_s - since_s)))))
    return tuple(found)


class _Productive:
    """Productive seconds up to any moment, without going through all spans each time."""

    def __init__(self, spans: Sequence[LifeSpan]) -> None:
        self._begins = [span.begin_s for span in spans]
        self._spans = spans
        self._sums = [0.0]
        for span in spans:
            self._sums.append(self._sums[-1] + (span.end_s - span.begin_s) * (span.kind == "productive"))

    def before(self, at_s: float) -> float:
        index = bisect.bisect_right(self._begins, at_s) - 1
        if index < 0:
            return 0.0
        span = self._spans[index]
        part = min(at_s, span.end_s) - span.begin_s if span.kind == "productive" else 0.0
        return self._sums[index] + part


def longest_unproductive_s(spans: Sequence[LifeSpan]) -> float:
    """Return the longest stretch without any productive second."""
    longest = current = 0.0
    for span in spans:
        current = 0.0 if span.kind == "productive" else current + span.end_s - span.begin_s
        longest = max(longest, current)
    return longest
