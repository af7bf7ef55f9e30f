"""Who waits for whom across roles: from a worker that waits at an empty queue to the one that should have filled it. Pure.

    trainer/0:0 has been waiting for 45 s for an item at queue samples
        <- rollout/3:0, which fills it, has worked on 2 items of prompts for 44 s

A queue that is empty is no fault: nothing is done by these lines. They say where to look; why that worker does not come on, its
own launcher says (`robust why`), which also ends waits that are proven to be hangs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

#: Shorter waits are the rhythm of the work.
LEAST_S = 10.0
#: A queue that is full because of what was kept for a trainer that may go back.
FULL_OF_KEPT = 0.5
MOST_LINES = 8
MOST_STEPS = 8


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


def chains(queues: Mapping[str, QueueNow], now_s: float) -> Iterator[str]:
    """Yield a line for each worker that has waited for long, the longest first."""
    waits = [
        (since_s, worker, name, what)
        for name, queue in queues.items()
        for what, waiting in (("an item", queue.takers), ("room", queue.putters))
        for worker, since_s in waiting.items()
        if now_s - since_s >= LEAST_S
    ]
    for since_s, worker, name, what in sorted(waits)[:MOST_LINES]:
        steps = " <- ".join(_steps(queues, worker, name, what, now_s))
        line = f"{worker} has been waiting for {now_s - since_s:.0f} s for {what} at queue {name}"
        if what == "room" and queues[name].kept_share >= FULL_OF_KEPT:
            kept = f"{queues[name].kept_share:.0%} of its room holds items that were kept"
            yield f"{line}: {kept}; release() those that no checkpoint goes back to, or raise queue_bytes"
        else:
            yield line + (steps and f" <- {steps}")


def _steps(queues: Mapping[str, QueueNow], worker: str, name: str, what: str, now_s: float) -> Iterator[str]:
    """Yield who should have come, and what that one waits for, until one is found that waits for nobody here."""
    seen = {worker}
    for _ in range(MOST_STEPS):
        queue = queues[name]
        others = queue.fillers if what == "an item" else queue.drainers
        open_ = {each: last_s for each, last_s in others.items() if each not in seen}
        if not open_:
            if not others:
                yield f"nobody has {'put anything into' if what == 'an item' else 'taken anything from'} it yet"
            return
        waiting = _waiting(queues)
        # One that is at work is who the others wait for; of several the one that has been for longest.
        working = {each: held for each in open_ if (held := _held(queues, each)) is not None and each not in waiting}
        if working:
            each = min(working, key=lambda one: working[one][1])
            count, since_s, of = working[each]
            items = f"{count} item{'s' if count > 1 else ''} of {of}"
            yield f"{each}, which {_does(what)} it, has worked on {items} for {now_s - since_s:.0f} s"
            return
        idle = [each for each in open_ if each not in waiting]
        if idle:
            each = min(idle, key=lambda one: open_[one])
            yield f"{each}, which {_does(what)} it, did so {now_s - open_[each]:.0f} s ago, and waits at no queue"
            return
        each = min(open_, key=lambda one: waiting[one][0])
        since_s, name, what = waiting[each]
        seen.add(each)
        yield f"{each} has been waiting for {now_s - since_s:.0f} s for {what} at queue {name}"


def _does(what: str) -> str:
    return "fills" if what == "an item" else "empties"


def _waiting(queues: Mapping[str, QueueNow]) -> dict[str, tuple[float, str, str]]:
    """Return, by worker, since when it waits, where and for what."""
    found: dict[str, tuple[float, str, str]] = {}
    for name, queue in queues.items():
        for what, waiting in (("an item", queue.takers), ("room", queue.putters)):
            for worker, since_s in waiting.items():
                found[worker] = min(found.get(worker, (since_s, name, what)), (since_s, name, what))
    return found


def _held(queues: Mapping[str, QueueNow], worker: str) -> tuple[int, float, str] | None:
    """Return how many items a worker works on, since when on the oldest, and of which queue."""
    held = [
        (since_s, count, name)
        for name, q in queues.items()
        for count, since_s in [q.leases.get(worker, (0, 0.0))]
        if count
    ]
    if not held:
        return None
    since_s, count, name = min(held)
    return count, since_s, name
