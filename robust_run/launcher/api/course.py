"""The course of a job, from the lines of its journal: attempts, what ended them, how much of the time was training. Pure.

Training time of an attempt is the time from its first optimizer step to the onset of what ended it (where nothing failed: to the
order that ended it). ETTR, the effective training time ratio, is training time over all time since the job started (ByteRobust,
SOSP 2025, §8, has the same ratio, cumulative and over a sliding hour). Steps that are made twice, because the checkpoint that an
attempt began from was older than the failure, count as training: the controller does not know what a program loads.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable

import msgspec

from robust_run.report.spread import Spread

#: Attempts that are told apart; of older ones only sums are kept.
MOST_ATTEMPTS = 100
HOUR_S = 3600.0
#: Seconds. Waiting workers make their first step within one, loading a large checkpoint takes minutes.
START_EDGES_S = (0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600)

#: Lines of a journal that tell the course; what is in others is known from the state, or to developers only.
TELLING = frozenset(
    b"job_started start_attempt attempt_started first_step record_incident end_attempt attempt_ended finish node_evicted "
    b"node_readmitted node_lost node_left hang_suspected inquired controller_resumed update_staged update_refused".split()
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


class _Line(msgspec.Struct):
    at: float
    mono: float = 0.0
    term: int = 1
    event: _Fact | None = None
    action: _Fact | None = None


class AttemptCourse(msgspec.Struct, kw_only=True):
    """One attempt. Times are seconds since the epoch."""

    number: int
    began_s: float
    """When the order to start its workers was given."""
    ranks: int = 0
    nodes: int = 0
    first_step_s: float | None = None
    onset_s: float | None = None
    """When what ended it began, where something failed."""
    ended_s: float | None = None
    """When it was told to end, or the job was over."""
    steps: int = 0
    """Most optimizer steps of any rank, known when it is over."""
    why: str = ""
    """What ended it."""
    rungs: dict[str, int] = {}
    """Workers by how they were started: promote, fork, spawn."""
    told: set[str] = set()
    """Nodes that said how they started them; an agent that comes back says it again."""

    def trained_s(self, since_s: float, until_s: float) -> float:
        """Return the training time that falls between two times."""
        if self.first_step_s is None:
            return 0.0
        ends = [end for end in (self.onset_s, self.ended_s, until_s) if end is not None]
        return max(min(ends) - max(self.first_step_s, since_s), 0.0)


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
        self._old_trained_s = 0.0
        self._old_steps = 0
        self._term = 0

    def take(self, line: bytes) -> None:
        """Take in a line of the journal. One that is damaged, or that tells nothing of the course, changes nothing."""
        kind = _KIND.search(line, 0, _HEAD_BYTES)
        if kind is None or kind[1] not in TELLING:
            return
        try:
            entry = _DECODER.decode(line)
        except msgspec.MsgspecError:
            return
        fact = entry.event or entry.action
        if fact is None or entry.term < self._term:
            return
        self._term = entry.term
        self.last_s = max(self.last_s, entry.at)
        if self.began_s is None:
            self.began_s = entry.at
        self.counted[fact.type] += 1
        self._apply(fact, entry.at, entry.at - entry.mono)

    def _apply(self, fact: _Fact, at_s: float, offset_s: float) -> None:
        """`offset_s`: what makes a monotonic time of this line one since the epoch."""
        if fact.type == "start_attempt":
            self._start(fact, at_s)
        elif fact.type == "finish":
            self.over_s = at_s
            if self.attempts and self.attempts[-1].ended_s is None:
                self.attempts[-1].ended_s = at_s
        elif fact.type == "node_evicted":
            by = "rule" if fact.by == "robust-run" else "operator" if self.counted["job_started"] else "list"
            self.evictions[by] += 1
        elif (attempt := self._attempt(fact.attempt)) is not None:
            self._apply_to(attempt, fact, at_s, offset_s)

    def _start(self, fact: _Fact, at_s: float) -> None:
        if self._attempt(fact.attempt) is not None:
            return  # a node that missed the order was told again
        if self.attempts:
            self.attempts[-1].told.clear()
        self.attempts.append(AttemptCourse(number=fact.attempt, began_s=at_s, ranks=fact.world_size, nodes=fact.nodes))
        if len(self.attempts) > MOST_ATTEMPTS:
            old = self.attempts.popleft()
            self._old_trained_s += old.trained_s(0.0, at_s)
            self._old_steps += old.steps

    def _apply_to(self, attempt: AttemptCourse, fact: _Fact, at_s: float, offset_s: float) -> None:
        match fact.type:
            case "attempt_started":
                self._started(attempt, fact)
            case "first_step" if fact.at_s is not None:
                first_s = min(fact.at_s + offset_s, at_s)
                if attempt.first_step_s is None:
                    self.starts_s.add(max(first_s - attempt.began_s, 0.0))
                attempt.first_step_s = min(first_s, attempt.first_step_s or first_s)
            case "record_incident" if fact.verdict is not None:
                if fact.action == "evict":
                    self.evictions["rule"] += len(fact.verdict.nodes)
                if fact.action != "report":
                    attempt.why = fact.verdict.sentence
                    attempt.onset_s = min((fact.onset_at_s or 0.0) + offset_s, at_s) if fact.onset_at_s else at_s
            case "end_attempt":
                attempt.ended_s = attempt.ended_s or at_s
            case "attempt_ended" if fact.progress is not None:
                attempt.steps = max(attempt.steps, fact.progress.steps or 0)

    def _started(self, attempt: AttemptCourse, fact: _Fact) -> None:
        if fact.node in attempt.told:
            return
        attempt.told.add(fact.node)
        rungs = dict(attempt.rungs)
        for rung in fact.how:
            rungs[rung] = rungs.get(rung, 0) + 1
            self.worker_starts[rung] += 1
        attempt.rungs = rungs
        if attempt.number > 0 and len(attempt.told) == attempt.nodes and rungs:
            self.restarts[slowest(rungs)] += 1

    def _attempt(self, number: int) -> AttemptCourse | None:
        return next((each for each in reversed(self.attempts) if each.number == number), None)

    # --- questions

    def until_s(self, now_unix_s: float, *, alive: bool) -> float:
        """Return up to when the course is known: now, or the end of a job that is over or that nobody controls."""
        if self.over_s is not None:
            return self.over_s
        return now_unix_s if alive else self.last_s

    def trained_s(self, until_s: float) -> float:
        """Return all training time."""
        return self._old_trained_s + sum(each.trained_s(0.0, until_s) for each in self.attempts)

    def ettr(self, until_s: float) -> float | None:
        """Return the share of training time since the job started; None where no step was ever counted."""
        return self._share(self.trained_s(until_s), until_s - (self.began_s or until_s))

    def ettr_hour(self, until_s: float) -> float | None:
        """Return the same of the last hour; of a younger job since its start."""
        since_s = max(until_s - HOUR_S, self.began_s or until_s)
        return self._share(sum(each.trained_s(since_s, until_s) for each in self.attempts), until_s - since_s)

    def _share(self, trained_s: float, whole_s: float) -> float | None:
        if whole_s <= 0 or not self.counted["first_step"]:
            return None
        return min(trained_s / whole_s, 1.0)

    def steps(self) -> int:
        """Return the steps of all attempts that are over, most of any rank each."""
        return self._old_steps + sum(each.steps for each in self.attempts)


def slowest(rungs: Iterable[str]) -> str:
    """Return the slowest of ways to start a worker."""
    return next((rung for rung in ("spawn", "fork", "promote") if rung in rungs), "")


_DECODER = msgspec.json.Decoder(_Line)
