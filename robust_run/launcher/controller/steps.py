"""Step statistics of an attempt, as its nodes report them: the newest step, how long steps take, which node is
slower by itself. Nothing here decides anything; times are of the controller's monotonic clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from robust_run.launcher.model.job import Paces
    from robust_run.report.metrics import Spread

#: Seconds. Steps take from milliseconds (a test) to minutes (a large model with much accumulation).
STEP_EDGES_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class NodeSteps(NamedTuple):
    """What one node said last."""

    step: int
    """Most steps of any of its ranks in the attempt."""
    at_s: float
    """When it made that one."""
    step_s: float | None
    """How long one takes; None: too few were made to tell."""
    own_s: float | None
    """How long its slowest rank works for one, without what it waits for peers."""
    rank: int | None
    """That rank."""
    late: tuple[int, float] | None = None
    """The rank that waits longest for its DataLoader, and how many seconds in a step; None: none is seen to wait."""


class StepBook:
    """The steps of one job, as long as one controller lives."""

    def __init__(self) -> None:
        self.attempt = -1
        self.nodes: dict[str, NodeSteps] = {}
        """By name of the host, of the newest attempt."""
        self.step = 0
        """The newest step of the newest attempt."""
        self.at_s: float | None = None
        """When it was made."""
        self.step_s: float | None = None
        """How long a step takes, as rank 0 (or the first rank that says) sees it."""
        self.spread: Spread | None = None
        """Lengths of steps since this controller began; of steps that are shorter than a sixth of a second, a sample."""
        self._waits: dict[str, float] = {}
        """By name of the host: since when a rank waits there, where one does."""
        self._teller: int | None = None
        """The first rank that said anything: steps are counted once, not once for each rank."""
        self._through = 0

    def take(self, node: str, said: Paces, now_s: float) -> None:
        """Take in what a node says once in a round."""
        pace = said.pace
        if pace.attempt != self.attempt:
            self.attempt, self.nodes, self._teller, self._through = pace.attempt, {}, None, 0
            self.step, self.at_s, self.step_s, self._waits = 0, None, None, {}
        self._waits.pop(node, None)
        if said.waiting_s is not None:
            self._waits[node] = now_s - said.waiting_s
        at_s = now_s - (said.since_step_s or 0.0)
        before = self.nodes.get(node)
        if not said.steps or (before is not None and said.steps < before.step):
            return
        rank, own_s, step_s = self._ranks_of(said)
        if step_s is None and before is not None and said.steps > before.step:
            step_s = (at_s - before.at_s) / (said.steps - before.step)
        self.nodes[node] = NodeSteps(said.steps, at_s, step_s, own_s, rank, _latest(said))
        if said.steps > self.step:
            self.step, self.at_s = said.steps, at_s
        if self._teller is None or (rank is None and self.step_s is None):
            self.step_s = step_s

    @property
    def waiting_since_s(self) -> float | None:
        """Since when some rank of the newest attempt waits in one call, as its node said last; None: none does."""
        return min(self._waits.values(), default=None)

    def _ranks_of(self, said: Paces) -> tuple[int | None, float | None, float | None]:
        """Return the slowest rank of a node, its own time for a step, and how long a step takes there; in seconds."""
        slowest: tuple[float, int] | None = None
        step_s = None
        on_gpus = {each.rank: each.own_ms for each in said.pace.timed}
        if any(each.rank not in on_gpus for each in said.pace.ranks):
            on_gpus = {}  # the two do not compare
        for each in said.pace.ranks:
            if not each.own_ms or not each.step_ms:
                continue
            own = on_gpus.get(each.rank) or each.own_ms
            own_ms = sorted(own)[len(own) // 2]
            if slowest is None or own_ms > slowest[0]:
                slowest = own_ms, each.rank
            step_s = sum(each.step_ms) / len(each.step_ms) / 1e3
            if self._teller is None or each.rank <= self._teller:
                self._teller, self.step_s = each.rank, step_s
                self._count(each.first_step, each.step_ms)
        return (None, None, step_s) if slowest is None else (slowest[1], slowest[0] / 1e3, step_s)

    def _count(self, first_step: int, step_ms: tuple[float, ...]) -> None:
        from robust_run.report.metrics import Spread

        self.spread = self.spread or Spread(STEP_EDGES_S)
        for length_ms in step_ms[max(self._through + 1 - first_step, 0) :]:
            self.spread.add(length_ms / 1e3)
        self._through = max(self._through, first_step + len(step_ms) - 1)


def _latest(said: Paces) -> tuple[int, float] | None:
    """Return the rank of a node that waits longest for its data, and for how many seconds in a step."""
    waits = [(sorted(each.data_ms)[len(each.data_ms) // 2], each.rank) for each in said.pace.ranks if each.data_ms]
    data_ms, rank = max(waits, default=(0.0, -1))
    return (rank, data_ms / 1e3) if data_ms > 0 else None
