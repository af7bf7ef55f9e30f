"""A work queue gives each item to one consumer at a time, loses none, and counts each once, whatever consumers go back to."""

from __future__ import annotations

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from robust_run.orchestrator.model.queue_state import QueueState
from robust_run.orchestrator.rules import queue_core as core
from robust_run.orchestrator.rules.queue_core import counts, expire, position, step
from robust_run.roles.queue_words import (
    MOST_ITEM_BYTES,
    MOST_TAKE_BYTES,
    ConsumerGone,
    Done,
    GiveBack,
    Keep,
    Position,
    Put,
    QueueLimits,
    Release,
    Renew,
    Restore,
    Took,
)

LEASE_S = 10.0


def new_queue(items: int = 100, size: int = 1000, identity: str = "q") -> QueueState:
    """Return an empty queue."""
    return QueueState(limits=QueueLimits(items=items, bytes=size, lease_s=LEASE_S), identity=identity)


def put(state: QueueState, *keys: str, generation: int = 0, payload: bytes = b"x") -> list[bool]:
    """Put items; return which were accepted."""
    return [step(state, Put(key=key, generation=generation, payload=payload), 0.0).accepted for key in keys]


def take(state: QueueState, consumer: str, count: int = 1, now_s: float = 0.0, least: int = 0) -> list[int]:
    """Take items; return their numbers."""
    return [item.number for item in step(state, Took(consumer=consumer, count=count, least=least), now_s).items]


def test_items_are_taken_in_the_order_in_which_they_were_put() -> None:
    state = new_queue()
    put(state, "a", "b", "c")
    assert take(state, "one", 2) == [0, 1]
    assert take(state, "two", 2) == [2]
    assert take(state, "three", 1) == []


def test_an_item_of_a_consumer_that_is_gone_is_given_to_the_next_and_says_how_often_it_was_taken() -> None:
    state = new_queue()
    put(state, "a")
    take(state, "one")
    step(state, ConsumerGone(consumer="one"), 1.0)
    (item,) = step(state, Took(consumer="two", count=1), 1.0).items
    assert (item.number, item.tries) == (0, 2)


def test_what_a_consumer_kept_stays_kept_when_it_is_gone() -> None:
    state = new_queue()
    put(state, "a")
    step(state, Keep(consumer="one", numbers=tuple(take(state, "one"))), 0.0)
    step(state, ConsumerGone(consumer="one"), 1.0)
    assert take(state, "two") == []
    assert counts(state).kept == 1


def test_a_lease_that_is_over_goes_to_the_next_and_who_is_late_is_told() -> None:
    state = new_queue()
    put(state, "a")
    take(state, "slow")
    assert take(state, "next", now_s=LEASE_S - 0.1) == []
    assert take(state, "next", now_s=LEASE_S) == [0]
    assert step(state, Done(consumer="slow", numbers=(0,)), LEASE_S).lost == (0,)
    assert step(state, Done(consumer="next", numbers=(0,)), LEASE_S).lost == ()


def test_a_consumer_that_says_that_it_still_works_keeps_its_lease() -> None:
    state = new_queue()
    put(state, "a")
    take(state, "slow")
    step(state, Renew(consumer="slow"), LEASE_S - 1)
    assert take(state, "next", now_s=LEASE_S + 1) == []
    assert expire(state, 2 * LEASE_S) == (0,)


def test_who_says_the_same_twice_because_the_answer_was_lost_is_told_the_same() -> None:
    state = new_queue()
    put(state, "a", "b")
    take(state, "one", 2)
    for _ in range(2):
        assert step(state, Done(consumer="one", numbers=(0,)), 0.0).lost == ()
        assert step(state, Keep(consumer="one", numbers=(1,)), 0.0).lost == ()
    assert step(state, Done(consumer="two", numbers=(0,)), 0.0).lost == (0,)
    assert step(state, Keep(consumer="two", numbers=(1,)), 0.0).lost == (1,)
    assert counts(state).done == 1


def test_a_key_that_the_queue_has_or_had_counts_once() -> None:
    state = new_queue()
    assert step(state, Put(key="a", generation=0, payload=b""), 0.0).is_again is False
    assert step(state, Put(key="a", generation=0, payload=b""), 0.0).is_again
    step(state, Done(consumer="one", numbers=tuple(take(state, "one"))), 0.0)
    again = step(state, Put(key="a", generation=9, payload=b""), 0.0)
    assert (again.is_again, again.accepted) == (True, True)
    assert counts(state).again == 2


def test_what_is_too_old_is_dropped_and_may_be_made_again() -> None:
    state = new_queue()
    put(state, "a", "b", generation=1)
    put(state, "c", generation=2)
    answer = step(state, Took(consumer="t", count=5, least=2), 0.0)
    assert [item.key for item in answer.items] == ["c"]
    assert answer.stale == (0, 1)
    assert step(state, Put(key="a", generation=2, payload=b""), 0.0).is_again is False
    assert counts(state).stale == 2


def test_an_item_that_waits_is_replaced_by_a_later_generation_of_it_never_by_an_earlier_one() -> None:
    state = new_queue()
    put(state, "a", generation=1, payload=b"old")
    put(state, "a", generation=3, payload=b"newer")
    put(state, "a", generation=2, payload=b"late")
    (item,) = step(state, Took(consumer="t", count=5, least=3), 0.0).items
    assert item.payload == b"newer"
    put(state, "a", generation=4)
    assert state.held[0].item.payload == b"newer", "one that is worked on is not changed"


def test_a_full_queue_takes_nothing_in_until_there_is_room_and_what_is_kept_takes_none_but_bytes() -> None:
    state = new_queue(items=2, size=100)
    assert put(state, "a", "b", "c") == [True, True, False]
    step(state, Keep(consumer="t", numbers=tuple(take(state, "t"))), 0.0)
    assert put(state, "c") == [True]
    step(state, Keep(consumer="t", numbers=tuple(take(state, "t", 2))), 0.0)
    assert put(state, "d", payload=bytes(98)) == [False]
    assert put(state, "e", payload=bytes(97)) == [True]


def test_an_item_that_can_never_fit_is_a_flaw_not_a_wait() -> None:
    assert "larger than 10" in step(new_queue(size=10), Put(key="", generation=0, payload=bytes(11)), 0.0).flaw
    large = new_queue(size=2 * MOST_ITEM_BYTES)
    assert step(large, Put(key="", generation=0, payload=bytes(MOST_ITEM_BYTES + 1)), 0.0).flaw


def test_so_much_is_taken_at_once_as_one_answer_can_carry() -> None:
    state = new_queue(size=1 << 30)
    put(state, *map(str, range(10)), payload=bytes(MOST_ITEM_BYTES))
    assert len(take(state, "t", 10)) == MOST_TAKE_BYTES // MOST_ITEM_BYTES
    assert take(state, "t", 1) == [MOST_TAKE_BYTES // MOST_ITEM_BYTES], "the next is not lost"


def test_a_checkpoint_of_another_queue_has_nothing_of_this_one() -> None:
    state = new_queue()
    put(state, "a", "b")
    earlier_run = Position(through=500, of="another")
    step(state, Release(position=earlier_run), 0.0)
    step(state, Restore(consumer="t", position=earlier_run), 0.0)
    assert take(state, "t", 5) == [0, 1]


def test_what_another_consumer_kept_is_never_in_a_position_nor_restored() -> None:
    state = new_queue()
    put(state, *"abcd")
    step(state, Keep(consumer="one", numbers=tuple(take(state, "one", 2))), 0.0)
    step(state, Keep(consumer="two", numbers=tuple(take(state, "two", 2))), 0.0)
    assert position(state, "two") == Position(through=-1, beyond=(2, 3), of="q")
    step(state, Restore(consumer="two", position=Position()), 0.0)
    assert take(state, "x", 9) == [2, 3]


def test_keys_and_who_was_done_are_forgotten_in_time() -> None:
    state = new_queue()
    most = core.DONE_REMEMBERED + 3
    for number in range(most):
        put(state, str(number))
        step(state, Done(consumer="t", numbers=tuple(take(state, "t"))), 0.0)
    assert len(state.done_by) == core.DONE_REMEMBERED
    assert len(state.keys) <= core.KEYS_REMEMBERED


WORKERS = ("w0", "w1", "w2")


class Queues(RuleBasedStateMachine):
    """Workers that are done with items, and trainers that keep them and go back to their checkpoints, against a plain model."""

    def __init__(self) -> None:
        super().__init__()
        self.state = new_queue(items=12, size=60)
        self.now_s = 0.0
        self.put = 0
        self.where: dict[int, str] = {}
        """What the model says of each number: waiting, leased by whom, trained by whom, done."""
        self.until: dict[int, float] = {}
        self.history: dict[str, list[int]] = {"t0": [], "t1": []}
        self.saved: dict[str, list[tuple[Position, list[int]]]] = {"t0": [], "t1": []}
        self.released: dict[str, int] = {"t0": 0, "t1": 0}

    def leased(self, consumer: str) -> tuple[int, ...]:
        """Return what a consumer works on, by the model."""
        self.expire()
        return tuple(n for n, where in self.where.items() if where == f"leased {consumer}")

    def expire(self) -> None:
        """Play the time."""
        expire(self.state, self.now_s)
        for number, where in self.where.items():
            if where.startswith("leased") and self.until[number] <= self.now_s:
                self.where[number] = "waiting"

    @rule(again=st.booleans(), size=st.integers(0, 9))
    def produce(self, again: bool, size: int) -> None:
        """A producer puts a new item, or one that it has put before."""
        key = str(max(self.put - 1, 0) if again else self.put)
        full = sum(not w.startswith("kept") for w in self.where.values() if w != "done") >= 12
        answer = step(self.state, Put(key=key, generation=0, payload=bytes(size)), self.now_s)
        if again and self.put:
            assert answer.is_again
        elif answer.accepted:
            assert not full
            self.where[self.put] = "waiting"
            self.put += 1
        else:
            assert full or self.state.bytes + size > 60

    @rule(consumer=st.sampled_from(("w0", "w1", "w2", "t0", "t1")), count=st.integers(1, 4))
    def consume(self, consumer: str, count: int) -> None:
        """A consumer takes: the oldest that nobody has."""
        self.expire()
        expected = sorted(n for n, where in self.where.items() if where == "waiting")[:count]
        assert take(self.state, consumer, count, self.now_s) == expected
        for number in expected:
            self.where[number], self.until[number] = f"leased {consumer}", self.now_s + LEASE_S

    @rule(consumer=st.sampled_from(WORKERS), late=st.booleans())
    def finish(self, consumer: str, late: bool) -> None:
        """A worker is done, perhaps with one that is not its own any more."""
        mine = self.leased(consumer)[:2]
        others = tuple(n for n, w in self.where.items() if not w.startswith(("leased " + consumer, "done")))[:1]
        named = mine + others if late else mine
        assert step(self.state, Done(consumer=consumer, numbers=named), self.now_s).lost == named[len(mine) :]
        self.where.update(dict.fromkeys(mine, "done"))

    @rule(consumer=st.sampled_from(WORKERS), ends=st.booleans())
    def leave(self, consumer: str, ends: bool) -> None:
        """A worker ends, or gives back what it has."""
        mine = self.leased(consumer)
        step(
            self.state,
            ConsumerGone(consumer=consumer) if ends else GiveBack(consumer=consumer, numbers=mine),
            self.now_s,
        )
        self.where.update(dict.fromkeys(mine, "waiting"))

    @rule(consumer=st.sampled_from(WORKERS))
    def renew(self, consumer: str) -> None:
        """A worker works on."""
        self.until.update(dict.fromkeys(self.leased(consumer), self.now_s + LEASE_S))
        step(self.state, Renew(consumer=consumer), self.now_s)

    @rule(passed_s=st.floats(0.0, 7.0))
    def wait(self, passed_s: float) -> None:
        """Time passes."""
        self.now_s += passed_s

    @rule(trainer=st.sampled_from(("t0", "t1")), count=st.integers(1, 3))
    def train(self, trainer: str, count: int) -> None:
        """A trainer trains on what it has taken."""
        mine = self.leased(trainer)[:count]
        assert step(self.state, Keep(consumer=trainer, numbers=mine), self.now_s).lost == ()
        self.where.update(dict.fromkeys(mine, f"kept {trainer}"))
        self.history[trainer] += mine

    @rule(trainer=st.sampled_from(("t0", "t1")))
    def save(self, trainer: str) -> None:
        """A trainer writes a checkpoint."""
        self.saved[trainer].append((position(self.state, trainer), list(self.history[trainer])))

    @rule(trainer=st.sampled_from(("t0", "t1")), which=st.integers(0, 3))
    def roll_back(self, trainer: str, which: int) -> None:
        """A trainer dies, and begins again from one of its checkpoints that it has not given up."""
        step(self.state, ConsumerGone(consumer=trainer), self.now_s)
        saved = self.saved[trainer]
        index = max(len(saved) - 1 - which, self.released[trainer])
        found, history = saved[index] if index < len(saved) else (Position(), [])
        if index >= len(saved) and self.released[trainer]:
            return
        step(self.state, Restore(consumer=trainer, position=found), self.now_s)
        del saved[index + 1 :]
        for number, where in self.where.items():
            if where in (f"kept {trainer}", f"leased {trainer}") and number not in history:
                self.where[number] = "waiting"
        self.history[trainer] = list(history)

    @precondition(lambda self: any(self.saved.values()))
    @rule(trainer=st.sampled_from(("t0", "t1")))
    def release(self, trainer: str) -> None:
        """A trainer will not go back to before its newest checkpoint."""
        if not self.saved[trainer]:
            return
        found, history = self.saved[trainer][-1]
        step(self.state, Release(position=found), self.now_s)
        self.released[trainer] = len(self.saved[trainer]) - 1
        self.where.update(dict.fromkeys(history, "done"))

    @invariant()
    def counts_agree(self) -> None:
        """Each item is somewhere, once."""
        self.expire()
        found = counts(self.state)
        wheres = [where.partition(" ")[0] for where in self.where.values()]
        assert (found.waiting, found.leased, found.kept) == tuple(map(wheres.count, ("waiting", "leased", "kept")))
        assert found.put == self.put == found.waiting + found.leased + found.kept + found.done + found.stale
        assert found.bytes == sum(len(held.item.payload) for held in self.state.held.values())
        assert self.state.kept == found.kept

    @invariant()
    def each_counts_once(self) -> None:
        """No item is twice in what trainers have trained on, and none of it is given to anybody."""
        trained = self.history["t0"] + self.history["t1"]
        assert len(set(trained)) == len(trained)
        assert all(self.where[number].startswith(("kept", "done")) for number in trained)

    @invariant()
    def it_can_be_kept(self) -> None:
        """All of it goes through a file."""
        data = msgspec.msgpack.encode(self.state)
        assert msgspec.msgpack.decode(data, type=QueueState) == self.state


Queues.TestCase.settings = settings(settings.default, stateful_step_count=60)
test_queues = Queues.TestCase
