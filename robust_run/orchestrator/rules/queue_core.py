"""Decisions of a work queue: (state, event, now) to the next state and an answer. Pure, deterministic, replayed from a journal.

At least once: an item is gone only when a consumer said so. A consumer that says so late, after its lease was over and the item
went to another, is told; whoever is first counts. Who says the same twice, because the answer was lost, is told the same.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import msgspec

from robust_run.orchestrator.model.queue_state import Answer, Held, QueueState
from robust_run.roles.queue_words import (
    MOST_ITEM_BYTES,
    MOST_TAKE_BYTES,
    ConsumerGone,
    Counts,
    Done,
    GiveBack,
    Item,
    Keep,
    Position,
    Put,
    QueueEvent,
    Release,
    Renew,
    Restore,
    Took,
)

#: Keys of items that are gone are remembered for so many puts, so that one that is put again late is known.
KEYS_REMEMBERED = 1 << 16
#: And so many items that are gone, with who was done with them.
DONE_REMEMBERED = 1 << 12


def step(state: QueueState, event: QueueEvent, now_s: float) -> Answer:
    """Change the state by one event. Never raises."""
    match event:
        case Put():
            return _put(state, event, now_s)
        case Took():
            expire(state, now_s)
            return _take(state, event, now_s)
        case Done() | Keep() | GiveBack():
            return _settle(state, event)
        case Restore():
            return _restore(state, event)
        case Release(position=position):
            if position.of == state.identity:
                has = _having(position)
                for number in [n for n, held in state.held.items() if held.standing == "kept" and has(n)]:
                    _drop(state, number, "done")
        case ConsumerGone(consumer=consumer):
            _return(state, leased_to(state, consumer))
        case Renew(consumer=consumer):
            for held in state.held.values():
                if _is_leased(held, consumer):
                    held.until_s = now_s + state.limits.lease_s
    return Answer()


def expire(state: QueueState, now_s: float) -> tuple[int, ...]:
    """Take back what was leased for too long; return its numbers."""
    over = tuple(n for n, held in state.held.items() if held.standing == "leased" and held.until_s <= now_s)
    _return(state, over)
    return over


def next_expiry_s(state: QueueState) -> float | None:
    """Return when a lease is over next, if none is renewed."""
    return min((held.until_s for held in state.held.values() if held.standing == "leased"), default=None)


def position(state: QueueState, consumer: str) -> Position:
    """Return what a consumer has kept, in the form that goes into its checkpoint.

    Numbers that are gone or were never its own are in it too where that makes it shorter: they are never asked about.
    """
    open_numbers = [n for n, held in state.held.items() if held.standing != "kept" or held.consumer != consumer]
    through = min(open_numbers, default=state.next_number) - 1
    kept = sorted(n for n, h in state.held.items() if h.standing == "kept" and h.consumer == consumer and n > through)
    return Position(through=through, beyond=tuple(kept), of=state.identity)


def leased_to(state: QueueState, consumer: str) -> tuple[int, ...]:
    """Return the numbers of what a consumer works on."""
    return tuple(n for n, held in state.held.items() if _is_leased(held, consumer))


def counts(state: QueueState) -> Counts:
    """Return how full it is."""
    standings = [held.standing for held in state.held.values()]
    return Counts(
        waiting=standings.count("waiting"),
        leased=standings.count("leased"),
        kept=standings.count("kept"),
        bytes=state.bytes,
        **state.counts,
    )


def resume(state: QueueState, now_s: float, wait_s: float, *, another_clock: bool) -> None:
    """Another process goes on with a queue: who works on items has `wait_s` to come back. `another_clock`: times are of another
    machine, or may be; no time has passed since the newest of them.
    """
    taken = [held.taken_s for held in state.held.values() if held.standing != "waiting"]
    newest_s = max((*taken, *state.put_by.values(), *state.taken_by.values()), default=now_s)
    by_s = now_s - newest_s if another_clock or newest_s > now_s else 0.0
    for held in state.held.values():
        held.taken_s, held.until_s = held.taken_s + by_s, now_s + wait_s
    for moments in (state.put_by, state.taken_by):
        moments.update({name: at_s + by_s for name, at_s in moments.items()})


def _put(state: QueueState, event: Put, now_s: float) -> Answer:
    size = len(event.payload)
    most = min(MOST_ITEM_BYTES, state.limits.bytes)
    if size > most:
        return Answer(accepted=False, flaw=f"an item of {size} bytes is larger than {most}; put a path to it instead")
    if event.key and event.key in state.keys:
        return _put_again(state, event, state.keys[event.key])
    if len(state.held) - state.kept >= state.limits.items or state.bytes + size > state.limits.bytes:
        return Answer(accepted=False)
    number = state.next_number
    state.next_number += 1
    item = Item(number, event.generation, event.key, event.payload)
    state.held[number] = Held(item)
    heapq.heappush(state.waiting, number)
    state.bytes += size
    if event.key:
        state.keys[event.key] = number
    if event.producer:
        state.put_by[event.producer] = now_s
    _count(state, "put")
    return Answer()


def _put_again(state: QueueState, event: Put, number: int) -> Answer:
    """A key that is known. One of a later generation takes the place of one that waits: that might be refused as too old."""
    held = state.held.get(number)
    if held is None or held.standing != "waiting" or held.item.generation >= event.generation:
        _count(state, "again")
        return Answer(is_again=True)
    more = len(event.payload) - len(held.item.payload)
    if state.bytes + more > state.limits.bytes:
        return Answer(accepted=False)
    state.bytes += more
    held.item = Item(number, event.generation, event.key, event.payload)
    return Answer()


def _take(state: QueueState, event: Took, now_s: float) -> Answer:
    taken: list[Item] = []
    stale: list[int] = []
    size = 0
    while state.waiting and len(taken) < max(event.count, 1):
        held = state.held.get(state.waiting[0])
        if held is not None and held.standing == "waiting":
            if held.item.generation < event.least:
                _drop(state, held.item.number, "stale")
                stale.append(held.item.number)
            else:
                size += len(held.item.payload)
                if taken and size > MOST_TAKE_BYTES:
                    break
                held.standing, held.consumer, held.until_s = "leased", event.consumer, now_s + state.limits.lease_s
                held.tries, held.taken_s = held.tries + 1, now_s
                taken.append(msgspec.structs.replace(held.item, tries=held.tries))
        heapq.heappop(state.waiting)
    if taken:
        state.taken_by[event.consumer] = now_s
    return Answer(items=tuple(taken), stale=tuple(stale))


def _settle(state: QueueState, event: Done | Keep | GiveBack) -> Answer:
    lost = []
    for number in dict.fromkeys(event.numbers):
        held = state.held.get(number)
        if held is None or not _is_leased(held, event.consumer):
            if not _was_settled(state, event, number):
                lost.append(number)
        elif isinstance(event, Done):
            _drop(state, number, "done")
            state.done_by[number] = event.consumer
            if len(state.done_by) > DONE_REMEMBERED:
                del state.done_by[next(iter(state.done_by))]
        elif isinstance(event, Keep):
            held.standing = "kept"
            state.kept += 1
        else:
            _return(state, (number,))
    return Answer(lost=tuple(lost))


def _was_settled(state: QueueState, event: Done | Keep | GiveBack, number: int) -> bool:
    """Whether this consumer has said the same before."""
    if isinstance(event, Done):
        return state.done_by.get(number) == event.consumer
    held = state.held.get(number)
    return isinstance(event, Keep) and held is not None and held.standing == "kept" and held.consumer == event.consumer


def _restore(state: QueueState, event: Restore) -> Answer:
    """Give back what the checkpoint does not have. What it has and another was given since is the consumer's again: it was
    trained on before that checkpoint. A checkpoint with another queue's numbers has nothing of this one."""
    has = _having(event.position if event.position.of == state.identity else Position())
    back = []
    for number, held in state.held.items():
        if has(number):
            state.kept += held.standing != "kept"
            held.standing, held.consumer = "kept", event.consumer
        elif held.consumer == event.consumer and held.standing != "waiting":
            back.append(number)
    _return(state, back)
    return Answer()


def _having(position: Position) -> Callable[[int], bool]:
    """Return `position.has`, fast for many."""
    through, beyond = position.through, frozenset(position.beyond)
    return lambda number: number <= through or number in beyond


def _return(state: QueueState, numbers: list[int] | tuple[int, ...]) -> None:
    for number in numbers:
        held = state.held[number]
        state.kept -= held.standing == "kept"
        held.standing, held.consumer, held.until_s = "waiting", "", 0.0
        heapq.heappush(state.waiting, number)
        _count(state, "returned")


def _drop(state: QueueState, number: int, why: str) -> None:
    held = state.held.pop(number)
    state.bytes -= len(held.item.payload)
    state.kept -= held.standing == "kept"
    _count(state, why)
    if held.item.key and why == "stale":
        state.keys.pop(held.item.key, None)  # what it is about may be made again, with a newer generation
    elif held.item.key:
        state.gone_keys[held.item.key] = None
        if len(state.gone_keys) > KEYS_REMEMBERED:
            oldest = next(iter(state.gone_keys))
            del state.gone_keys[oldest]
            state.keys.pop(oldest, None)


def _is_leased(held: Held, consumer: str) -> bool:
    return held.standing == "leased" and held.consumer == consumer


def _count(state: QueueState, name: str) -> None:
    state.counts[name] = state.counts.get(name, 0) + 1
