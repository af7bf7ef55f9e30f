"""Timeline of a job, from the lines of its journal: attempts, what ended them, how much of the time was training. Pure.

What counts as training, and the ratio of it (ETTR), is defined in `report.effective`.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable

import msgspec

from robust_run.decoders import json_decoder
from robust_run.launcher.operator.reading.incident_reading import MOST_S
from robust_run.launcher.records.folds.attempts import AttemptCourse
from robust_run.launcher.records.journal import Terms
from robust_run.report import effective
from robust_run.report.effective import AttemptStretch
from robust_run.report.metrics import Spread

#: Attempts that are told apart; of older ones only sums are kept.
MOST_ATTEMPTS = 100
#: Seconds. Waiting workers make their first step within one, loading a large checkpoint takes minutes.
START_EDGES_S = (0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600)

#: Lines of a journal that tell the course; what is in others is known from the state, or to developers only.
TELLING = frozenset(
    b"job_started start_attempt attempt_started first_step record_incident end_attempt attempt_ended finish node_evicted "
    b"node_readmitted node_lost node_left hang_suspected inquired controller_resumed standstill_over update_staged "
    b"update_refused".split()
)
_KIND = re.compile(rb'"type":"(\w+)"')
#: The kind is within so many bytes of the beginning of a line.
_HEAD_BYTES = 200


class _Progress(msgspec.Struct):
    steps: int | None = None


class _Verdict(msgspec.Struct):
    kind: str = ""
    sentence: str = ""
    nodes: tuple[str, ...] = ()


class _Resume(msgspec.Struct):
    is_beginning: bool = False


class _Fact(msgspec.Struct):
    """What matters of any telling line; the rest is skipped."""

    type: str
    attempt: int = -1
    node: str = ""
    world_size: int = 0
    nodes: int = 0
    how: tuple[str, ...] = ()
    at_s: float | None = None
    onset_at_s: float | None = None
    progress: _Progress | None = None
    action: str = ""
    verdict: _Verdict | None = None
    outcome: str = ""
    by: str = ""
    only: tuple[str, ...] = ()
    resumes_s: float | None = None
    restart: int = 0
    stands_still: bool = False
    resume: _Resume | None = None


class _Head(msgspec.Struct):
    """What any line has."""

    at: float
    term: int = 1


class _Line(msgspec.Struct):
    at: float
    mono: float = 0.0
    term: int = 1
    event: _Fact | None = None
    action: _Fact | None = None


class Course:
    """What a job did so far. Lines of a controller that had been replaced do not count."""

    def __init__(self) -> None:
        self.attempts: deque[AttemptCourse] = deque()
        """The newest ones, oldest first."""
        self.began_s: float | None = None
        self.last_s = 0.0
        """Of the newest line."""
        self.over_s: float | None = None
        self.counted: Counter[str] = Counter()
        """Lines by kind."""
        self.evictions: Counter[str] = Counter()
        """By whom: operator, rule, list."""
        self.restarts: Counter[str] = Counter()
        """By the slowest way any worker of the attempt was started."""
        self.worker_starts: Counter[str] = Counter()
        self.starts_s = Spread(START_EDGES_S)
        """From the order to start workers to the first step, of the attempts that made one."""
        self.outcome = ""
        """Of a job that is over."""
        self._old: list[AttemptStretch] = []
        self._old_steps = 0
        self._terms = Terms()
        self._restart = 0
        """How often a scheduler had started it again."""

    def take(self, line: bytes) -> None:
        """Take in a line of the journal. Of one that tells nothing of the course its time counts; of a damaged one nothing."""
        kind = _KIND.search(line, 0, _HEAD_BYTES)
        is_telling = kind is not None and kind[1] in TELLING
        try:
            entry: _Line | _Head = _DECODER.decode(line) if is_telling else _HEADS.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return
        if not abs(entry.at) <= MOST_S or not self._terms.hold(entry.term):
            return
        self.last_s = max(self.last_s, entry.at)
        if self.began_s is None:
            self.began_s = entry.at
        fact = (entry.event or entry.action) if isinstance(entry, _Line) else None
        if isinstance(entry, _Line) and fact is not None:
            self.counted[fact.type] += 1
            self._apply(fact, entry.at, entry.at - entry.mono)

    def _apply(self, fact: _Fact, at_s: float, offset_s: float) -> None:
        """`offset_s`: what makes a monotonic time of this line one since the epoch."""
        if fact.type == "start_attempt":
            self._start(fact, at_s)
        elif fact.type == "finish":
            self.over_s, self.outcome = at_s, fact.outcome
            for each in self.attempts:
                each.over(at_s)
        elif fact.restart > self._restart:  # of a job that had ended
            self._restart, self.over_s, self.outcome = fact.restart, None, ""
        elif fact.type == "node_evicted":
            by = "rule" if fact.by == "robust-run" else "operator" if self.counted["job_started"] else "list"
            self.evictions[by] += 1
        elif (attempt := self._attempt(fact.attempt)) is not None:
            self._apply_to(attempt, fact, at_s, offset_s)

    def _start(self, fact: _Fact, at_s: float) -> None:
        if self._attempt(fact.attempt) is not None:
            return  # a node that missed the order was told again
        for each in self.attempts:
            each.over(at_s)
        if self.attempts:
            self.attempts[-1].told.clear()
        anew_s = self.began_s if fact.resume is not None and fact.resume.is_beginning else None
        self.attempts.append(
            AttemptCourse(number=fact.attempt, began_s=at_s, ranks=fact.world_size, nodes=fact.nodes, anew_s=anew_s)
        )
        if len(self.attempts) > MOST_ATTEMPTS:
            old = self.attempts.popleft()
            self._old.append(old.stretch())
            self._old_steps += old.steps or 0

    def _apply_to(self, attempt: AttemptCourse, fact: _Fact, at_s: float, offset_s: float) -> None:
        match fact.type:
            case "attempt_started":
                self._started(attempt, fact, at_s)
            case "first_step" if fact.at_s is not None:
                took_s = attempt.step(min(fact.at_s + offset_s, at_s))
                if took_s is not None:
                    self.starts_s.add(took_s)
            case "record_incident" if fact.verdict is not None:
                if fact.action == "evict":
                    self.evictions["rule"] += len(fact.verdict.nodes)
                if fact.action != "report":
                    onset_s = min(fact.onset_at_s + offset_s, at_s) if fact.onset_at_s else at_s
                    attempt.fail(onset_s, fact.verdict.sentence, at_s)
                elif fact.stands_still and fact.onset_at_s is not None:
                    attempt.stand(min(fact.onset_at_s + offset_s, at_s), self.counted["record_incident"])
            case "standstill_over" if fact.at_s is not None:
                attempt.go_on(min(fact.at_s + offset_s, at_s), at_s)
            case "end_attempt" if not fact.only:
                attempt.end(at_s)
            case "attempt_ended":
                attempt.end_on_node(fact.progress.steps if fact.progress is not None else None, at_s)

    def _started(self, attempt: AttemptCourse, fact: _Fact, at_s: float) -> None:
        if not attempt.start(fact.node, fact.how, (fact.resumes_s, None), at_s):
            return
        self.worker_starts.update(fact.how)
        if attempt.number > 0 and len(attempt.told) == attempt.nodes and attempt.rungs:
            self.restarts[slowest(attempt.rungs)] += 1

    def _attempt(self, number: int) -> AttemptCourse | None:
        return next((each for each in reversed(self.attempts) if each.number == number), None)

    # --- questions

    def until_s(self, now_unix_s: float, *, alive: bool) -> float:
        """Return up to when the course is known: now, or the end of a job that is over or has no controller."""
        if self.over_s is not None:
            return self.over_s
        return now_unix_s if alive else self.last_s

    def ran_s(self, until_s: float) -> float:
        """Return the time in which attempts ran after their first step, also what turned out to be in vain: this never falls."""
        ran = [
            msgspec.structs.replace(each, onset_s=None, ended_s=_end_of_run(each), told_s=None, standstills=())
            for each in self._all
        ]
        return effective.seconds(ran, 0.0, until_s, counts_steps=self._counts_steps(until_s)).trained

    def effective_s(self, until_s: float) -> float:
        """Return the time of the steps that survived."""
        return effective.seconds(self._all, 0.0, until_s, counts_steps=self._counts_steps(until_s)).effective

    def ettr(self, until_s: float) -> float | None:
        """Return the effective share of the time since the job started; None before it has begun to train."""
        return self._share(until_s, float("inf"))

    def ettr_hour(self, until_s: float) -> float | None:
        """Return the same of the last hour; of a younger job since its start."""
        return self._share(until_s, effective.WINDOW_S)

    def _share(self, until_s: float, window_s: float) -> float | None:
        if self.began_s is None:
            return None
        counts = self._counts_steps(until_s)
        return effective.share(self._all, self.began_s, until_s, window_s, counts_steps=counts)

    @property
    def _all(self) -> list[AttemptStretch]:
        return [*self._old, *(each.stretch() for each in self.attempts)]

    def _counts_steps(self, until_s: float) -> bool:
        return effective.counts_steps(self._all, self.outcome, until_s)

    def steps(self) -> int:
        """Return the steps of all attempts that are over, most of any rank each."""
        return self._old_steps + sum(each.steps or 0 for each in self.attempts)


def slowest(rungs: Iterable[str]) -> str:
    """Return the slowest of ways to start a worker."""
    return next((rung for rung in ("spawn", "fork", "promote") if rung in rungs), "")


def _end_of_run(stretch: AttemptStretch) -> float | None:
    return stretch.told_s if stretch.told_s is not None else stretch.ended_s


_DECODER = json_decoder(_Line)
_HEADS = json_decoder(_Head)
