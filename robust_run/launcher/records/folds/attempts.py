"""What an attempt came to, from the lines of the journal that are about it. Pure."""

from __future__ import annotations

import msgspec

from robust_run.report.effective import AttemptStretch, Standstill

#: So late it is known at most that ranks go on, of an agent that is connected: the longest lease, and some.
HEARD_S = 20.0


class AttemptCourse(msgspec.Struct, kw_only=True):
    """One attempt. Times are seconds since the epoch."""

    number: int
    began_s: float
    """When the order to start its workers was given."""
    ranks: int = 0
    nodes: int = 0
    started_s: float | None = None
    """When all its workers ran."""
    first_step_s: float | None = None
    onset_s: float | None = None
    """When what ended it began, where something failed."""
    told_s: float | None = None
    """When it was told to end."""
    ended_s: float | None = None
    """When it was over."""
    resumed_s: float | None = None
    """When the checkpoint was made that it began from, as far as is known."""
    resumed_step: int | None = None
    anew_s: float | None = None
    """When the job began, of an attempt that is known to have started from the beginning again."""
    steps: int | None = None
    """Most optimizer steps of any rank, known when it is over; None: not counted."""
    why: str = ""
    """What ended it."""
    rungs: dict[str, int] = {}
    """Workers by how they were started: promote, fork, spawn."""
    told: set[str] = set()
    """Nodes that said how they started them; an agent that comes back says it again."""

    standstills: tuple[Standstill, ...] = ()
    """Waits that were only reported, in order of time."""

    last_end_s: float | None = None
    """When the last of its nodes so far was done with it."""

    def stretch(self) -> AttemptStretch:
        """Return what counts of it as training."""
        return AttemptStretch(
            started_s=self.started_s,
            first_step_s=self.first_step_s,
            onset_s=self.onset_s,
            told_s=self.told_s,
            ended_s=self.ended_s,
            resumed_s=self.resumed_s if self.resumed_s is not None else self.anew_s,
            standstills=self.standstills,
        )

    @property
    def stands_since_s(self) -> float | None:
        """Since when no rank of it trains, though nothing has ended it; None: they train, or it is over."""
        last = self.standstills[-1] if self.standstills and self.ended_s is None and self.told_s is None else None
        return last.begin_s if last is not None and last.end_s is None else None

    def stand(self, onset_s: float, incident: int) -> None:
        """Note that ranks wait since then, which was only reported; what is reported meanwhile is the same standstill."""
        last = self.standstills[-1] if self.standstills else None
        if last is None or last.end_s is not None:
            begin_s = onset_s if last is None or last.end_s is None else max(onset_s, last.end_s)
            self.standstills = (*self.standstills, Standstill(begin_s, None, incident))

    def go_on(self, at_s: float, known_s: float) -> None:
        """Note that its ranks go on. Until that was known they stood still for whoever asked: counters do not fall for a moment.

        `known_s`: when it was known; long after `at_s` where a controller was away, which nobody could ask meanwhile.
        """
        last = self.standstills[-1] if self.standstills else None
        if last is not None and last.end_s is None:
            end_s = known_s if known_s - at_s < HEARD_S else at_s
            ended = Standstill(last.begin_s, max(end_s, last.begin_s), last.incident)
            self.standstills = (*self.standstills[:-1], ended)

    def start(self, node: str, how: tuple[str, ...], resumes: tuple[float | None, int | None], at_s: float) -> bool:
        """Note that a node started its workers; False: it said so before. `resumes`: its checkpoint, when made and of which step.

        Nodes whose folders are their own may name different checkpoints, or none: the newest is what ranks agree on.
        """
        if node in self.told:
            return False
        self.told.add(node)
        made_s, step = resumes
        if made_s is not None and (self.resumed_s is None or self.resumed_s < made_s):
            self.resumed_s, self.resumed_step = made_s, step
        for rung in how:
            self.rungs[rung] = self.rungs.get(rung, 0) + 1
        if len(self.told) == self.nodes:
            self.started_s = at_s
        return True

    def step(self, at_s: float) -> float | None:
        """Note a first step of some rank; return how long after the order it came, None unless it is the first heard of."""
        at_s, before_s = max(at_s, self.began_s), self.first_step_s
        self.first_step_s = at_s if before_s is None else min(before_s, at_s)
        return self.first_step_s - self.began_s if before_s is None else None

    def fail(self, onset_s: float, why: str, at_s: float) -> None:
        """Note what ended it."""
        self.onset_s, self.why = onset_s, why
        self.over(at_s)

    def end(self, at_s: float) -> None:
        """Note that it was told to end; the first time counts."""
        if self.told_s is None:
            self.told_s = at_s

    def end_on_node(self, steps: int | None, at_s: float) -> None:
        """Note that a node is done with it."""
        self.last_end_s = at_s
        if steps is not None:
            self.steps = max(steps, self.steps or 0)

    def over(self, at_s: float) -> None:
        """Note that it is over; the first time counts."""
        if self.ended_s is None:
            self.ended_s = self.last_end_s if self.last_end_s is not None else at_s
