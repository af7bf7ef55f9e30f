"""Who waits for whom across roles: from a worker that waits at an empty queue to the one that should have filled it. Pure.

    trainer/0:0 has been waiting for 45 s for an item at queue samples
        <- rollout/3:0, which fills it, has worked on 2 items of prompts for 44 s

A queue that is empty is no fault: nothing is done by these lines. They say where to look; why that worker does not come on, its
own launcher says (`robust why` goes on there), which also ends waits that are proven to be hangs. One alone that is stopped is
started again (`stopped`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from robust_run.roles.view_words import WaitChain, WaitStep

#: Shorter waits are the rhythm of the work.
LEAST_S = 10.0
#: A queue that is full because of what was kept for a trainer that may go back.
FULL_OF_KEPT = 0.5
MOST_LINES = 8
MOST_STEPS = 8
ARROW = " <- "
#: How members stand whose workers may do something at this moment.
_AT_WORK = frozenset(("", "running"))
_COMES_BACK = frozenset(("starting", "pausing", "waits", "stopping"))


class QueueNow(msgspec.Struct, frozen=True, kw_only=True):
    """What goes on at one queue. Workers are named as queues know them, `rollout/3:0`; times are of the monotonic clock."""

    takers: Mapping[str, float] = {}
    """Who waits for an item, and since when."""
    putters: Mapping[str, float] = {}
    """Who waits for room, and since when."""
    fillers: Mapping[str, float] = {}
    """Who has put items into it, and when last."""
    drainers: Mapping[str, float] = {}
    """Who has taken items, and when last."""
    leases: Mapping[str, tuple[int, float]] = {}
    """Who works on items: how many, and since when on the oldest."""
    kept_share: float = 0.0
    """What share of its room is taken by items that were kept, and not released."""


_Wait = tuple[float, str, str]
"""Since when a worker waits, at which queue, and for what."""


class _Scene:
    """All queues at one moment. `standings`: of members, by name; those that are not in it are at work."""

    def __init__(self, queues: Mapping[str, QueueNow], now_s: float, standings: Mapping[str, str]) -> None:
        self.queues, self.now_s, self._standings = queues, now_s, standings
        self.waiting: dict[str, _Wait] = {}
        for name, queue in queues.items():
            for what, waiting in (("an item", queue.takers), ("room", queue.putters)):
                for worker, since_s in waiting.items():
                    self.waiting[worker] = min(self.waiting.get(worker, (since_s, name, what)), (since_s, name, what))

    def standing(self, worker: str) -> str:
        """Return how the member of a worker stands; empty: not known."""
        return self._standings.get(member_of(worker), "")

    def is_at_work(self, worker: str) -> bool:
        """Whether it may do something now."""
        return self.standing(worker) in _AT_WORK

    def held(self, worker: str) -> tuple[float, int, str] | None:
        """Return since when a worker works on its oldest item, on how many, and of which queue."""
        held = [
            (since_s, count, name)
            for name, queue in self.queues.items()
            for count, since_s in [queue.leases.get(worker, (0, 0.0))]
            if count
        ]
        return min(held, default=None)

    def for_s(self, since_s: float) -> float:
        return max(self.now_s - since_s, 0.0)


def chains(
    queues: Mapping[str, QueueNow], now_s: float, standings: Mapping[str, str] | None = None
) -> Iterator[WaitChain]:
    """Yield a chain for each worker that has waited for long, the longest first. `standings`: how members stand, by name."""
    scene = _Scene(queues, now_s, standings or {})
    waits = [
        (since_s, worker, name, what)
        for name, queue in queues.items()
        for what, waiting in (("an item", queue.takers), ("room", queue.putters))
        for worker, since_s in waiting.items()
        if now_s - since_s >= LEAST_S
    ]
    for since_s, worker, name, what in sorted(waits)[:MOST_LINES]:
        yield _chain(scene, worker, (since_s, name, what))


def awaited(queues: Mapping[str, QueueNow], now_s: float, standings: Mapping[str, str] | None = None) -> frozenset[str]:
    """Return for whom somebody has been waiting for long: workers at the ends of chains, which wait for nobody themselves."""
    last = [chain.steps[-1] for chain in chains(queues, now_s, standings)]
    return frozenset(step.worker for step in last if step.does in ("works", "rests"))


def _chain(scene: _Scene, worker: str, wait: _Wait) -> WaitChain:
    """Return who should have come, and what that one waits for, until one is found that waits for nobody here."""
    _, name, what = wait
    if what == "room" and scene.queues[name].kept_share >= FULL_OF_KEPT:
        kept = f"{scene.queues[name].kept_share:.0%} of its room holds items that were kept"
        hint = f"{kept}; release() those that no checkpoint goes back to, or raise queue_bytes"
        return WaitChain(steps=(_waits(scene, worker, wait),), hint=hint)
    steps = [_waits(scene, worker, wait)]
    while len(steps) <= MOST_STEPS:
        others = scene.queues[name].fillers if what == "an item" else scene.queues[name].drainers
        if not others:
            end = f"nobody has {'put anything into' if what == 'an item' else 'taken anything from'} it yet"
            return WaitChain(steps=tuple(steps), end=end)
        seen = {step.worker for step in steps}
        last = _at_the_end(scene, {each: last_s for each, last_s in others.items() if each not in seen})
        if last is not None:
            return WaitChain(steps=(*steps, last))
        waiting = [each for each in others if each not in seen and each in scene.waiting and scene.is_at_work(each)]
        if not waiting:
            return _without_more(scene, steps, others)
        worker = min(waiting, key=lambda each: (scene.waiting[each], each))
        steps.append(_waits(scene, worker, scene.waiting[worker]))
        _, name, what = scene.waiting[worker]
    return WaitChain(steps=tuple(steps), end="and so on")


def _at_the_end(scene: _Scene, others: Mapping[str, float]) -> WaitStep | None:
    """Return the one that the others wait for: one that works; of several the one that has for longest. None: all wait."""
    open_ = [each for each in others if each not in scene.waiting and scene.is_at_work(each)]
    working = {each: held for each in open_ if (held := scene.held(each)) is not None}
    if working:
        each = min(working, key=lambda one: (working[one], one))
        since_s, count, of = working[each]
        return WaitStep(worker=each, does="works", for_s=scene.for_s(since_s), queue=of, items=count)
    if open_:
        each = min(open_, key=lambda one: (others[one], one))
        return WaitStep(worker=each, does="rests", for_s=scene.for_s(others[each]))
    return None


def _without_more(scene: _Scene, steps: list[WaitStep], others: Mapping[str, float]) -> WaitChain:
    """Return a chain whose last one waits only for those who are in it already, or who are away."""
    circle = next((number for number, step in enumerate(steps) if step.worker in others), None)
    away = sorted(each for each in others if not scene.is_at_work(each))
    coming = [each for each in away if scene.standing(each) in _COMES_BACK]
    if circle is not None and not coming:
        return WaitChain(steps=tuple(steps), circle=circle)
    each = next(iter(coming or away))
    return WaitChain(
        steps=(
            *steps,
            WaitStep(worker=each, does="is_away", for_s=scene.for_s(others[each]), what=scene.standing(each)),
        )
    )


def _waits(scene: _Scene, worker: str, wait: _Wait) -> WaitStep:
    since_s, name, what = wait
    return WaitStep(worker=worker, does="waits", for_s=scene.for_s(since_s), queue=name, what=what)


def member_of(worker: str) -> str:
    """Return the member of `rollout/3:0`: `rollout/3`."""
    return worker.rpartition(":")[0]


def apart(chains: Sequence[WaitChain]) -> list[tuple[WaitChain, list[str]]]:
    """Return chains that are not the end of a longer one, each with further workers that wait for the same."""
    found: dict[tuple[object, ...], tuple[WaitChain, list[str]]] = {}
    for chain in chains:
        if any(_is_part(chain, other) for other in chains):
            continue
        first, *rest = chain.steps
        alike = (first.queue, first.what, *(step.worker for step in rest), chain.end, chain.circle, chain.hint)
        if alike in found:
            found[alike][1].append(f"{first.worker} ({first.for_s:.0f} s)")
        else:
            found[alike] = (chain, [])
    return list(found.values())


def _is_part(chain: WaitChain, other: WaitChain) -> bool:
    own, longer = ([step.worker for step in each.steps] for each in (chain, other))
    return len(own) < len(longer) and longer[-len(own) :] == own and chain.circle is None


def lines_of(chains: Sequence[WaitChain]) -> list[str]:
    """Return chains for people, those alike in one line."""
    return [line_of(chain) + also(others) for chain, others in apart(chains)]


def also(others: Sequence[str]) -> str:
    """Return that others wait for the same."""
    return f"; so {'do' if len(others) > 1 else 'does'} {', '.join(others)}" if others else ""


def line_of(chain: WaitChain) -> str:
    """Return a chain for people."""
    parts = [_said(step, chain.steps[number - 1] if number else None) for number, step in enumerate(chain.steps)]
    if chain.circle is not None:
        in_it = chain.steps[chain.circle :]
        if len(in_it) == 1:
            parts.append(f"only {in_it[0].worker} itself {_does(in_it[0])} it")
        else:
            again = f"{in_it[0].worker}, which {_does(in_it[-1])} it"
            parts.append(f"{again}: these {len(in_it)} wait for each other in a circle")
    parts += [chain.end] if chain.end else []
    return ARROW.join(parts) + (f": {chain.hint}" if chain.hint else "")


def _said(step: WaitStep, before: WaitStep | None) -> str:
    if step.does == "waits" or before is None:
        return f"{step.worker} has been waiting for {step.for_s:.0f} s for {step.what} at queue {step.queue}"
    who = f"{step.worker}, which {_does(before)} it,"
    if step.does == "works":
        return f"{who} has worked on {step.items} item{'s' if step.items > 1 else ''} of {step.queue} for {step.for_s:.0f} s"
    if step.does == "is_away":
        how = {"given_up": "was given up", "held": "is not wanted now"}.get(step.what, f"is {step.what}")
        return f"{who} {how}; it did so {step.for_s:.0f} s ago"
    return f"{who} did so {step.for_s:.0f} s ago, and waits at no queue"


def _does(before: WaitStep) -> str:
    """Return what who comes next does to the queue that this one waits at."""
    return "fills" if before.what == "an item" else "empties"
