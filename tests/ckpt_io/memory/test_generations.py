"""Which buffer a part goes to: whatever the ranks do, the newest generation that they have in common stays."""

from __future__ import annotations

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from robust_run.ckpt_io.memory import freeing, generations
from robust_run.ckpt_io.memory.generations import Generation, Holdings, Part
from robust_run.ckpt_io.memory.types import BUFFERS

RANKS = (0, 1, 2)
SIZE = 1000
#: Of the node in an attempt; the world has as many ranks.
ranks_of_a_node = st.sampled_from([(0,), (0, 1), (0, 1, 2), (1, 2)])
ranks = st.sampled_from(RANKS)
picks = st.integers(0, 1 << 20)


class Node(RuleBasedStateMachine):
    """A keeper's decisions, and ranks that save, die and come back at any moment."""

    def __init__(self) -> None:
        super().__init__()
        self.held = Holdings()
        self.next_id, self.next_maker = 1, 1
        self.given: set[int] = set()
        self.makers: dict[int, int] = {}
        self.steps: dict[int, int] = {}
        self.sizes: dict[int, int] = {}
        self.hashing: dict[int, Part] = {}
        self.reading: dict[int, int] = {}
        self.resumed: int | None = None

    def busy(self) -> set[int]:
        return set(self.hashing) | set(self.reading.values())

    def of(self, rank: int) -> tuple[int, ...]:
        return generations.large(self.held, rank, self.sizes[rank])

    @rule(ranks=ranks_of_a_node, resumed=st.none() | st.integers(0, 30))
    def begin_attempt(self, ranks: tuple[int, ...], resumed: int | None) -> None:
        before = {each.id: each.part for each in self.held.buffers}
        attempt = self.held.attempt + 1
        self.held = generations.begin_attempt(self.held, attempt, ranks, len(ranks), resumed)
        latest = -1 if resumed is None else resumed
        for each in self.held.buffers:
            was = before[each.id]
            stays = was is not None and was.state != "making" and was.step <= latest
            assert each.part == (was if stays else None)
        self.resumed = resumed
        self.makers.clear()
        self.reading.clear()
        self.sizes.clear()
        self.steps = dict.fromkeys(ranks, latest)

    @precondition(lambda self: self.held.ranks)
    @rule(pick=picks, is_larger=st.booleans(), on=st.integers(0, 2))
    def make(self, pick: int, is_larger: bool, on: int) -> None:
        rank = self.held.ranks[pick % len(self.held.ranks)]
        if rank not in self.makers:
            self.makers[rank] = self.next_maker
            self.next_maker += 1
        self.reserve(rank, is_larger)
        step = self.steps[rank] + on
        newest = generations.common(self.held)
        free = set(self.of(rank)) - self.busy()
        before = {each.id: each.part for each in self.held.buffers}
        self.held, chosen = generations.make(self.held, rank, step, maker=self.makers[rank], free=free)
        self.steps[rank] = max(self.steps[rank], step)
        assert generations.common(self.held) == newest
        if isinstance(chosen, int):
            assert chosen in free
            part = next(each.part for each in self.held.buffers if each.id == chosen)
            assert part is not None and part.state == "making" and part.generation == (self.held.attempt, step)
        else:
            mine = [before[each.id] for each in self.held.buffers if each.id in free]
            assert None not in mine or "held already" in chosen or "cannot" in chosen

    def reserve(self, rank: int, is_larger: bool) -> None:
        self.sizes[rank] = self.sizes.get(rank, SIZE) + (SIZE if is_larger else 0)
        self.free(freeing.superseded(self.held, self.sizes, self.busy()))
        new = range(self.next_id, self.next_id + BUFFERS - len(self.of(rank)))
        self.next_id += len(new)
        assert not self.given & set(new)
        self.given |= set(new)
        self.held = generations.add(self.held, rank, self.sizes[rank], new)
        assert len(self.of(rank)) == BUFFERS

    def free(self, ids: tuple[int, ...]) -> None:
        newest = generations.common(self.held)
        assert not set(ids) & self.busy()
        self.held = generations.without(self.held, ids)
        for rank in self.sizes:
            spare = [each.id for each in self.held.buffers if each.rank == rank and each.part is None]
            assert set(spare) <= set(self.of(rank)) | self.busy(), "an empty buffer that nobody will use"
        assert generations.common(self.held) == newest

    @rule(rank=ranks, is_right=st.booleans())
    def copied(self, rank: int, is_right: bool) -> None:
        for each in self.held.buffers:
            part = each.part
            if part is None or part.state != "making" or part.maker != self.makers.get(rank):
                continue
            used = 10 if is_right else each.size_bytes + 1
            noted = generations.copied(self.held, each.id, part.maker, part.step, used, 1.0)
            assert (noted is not None) == is_right
            assert generations.copied(self.held, each.id, part.maker + 1, part.step, 10, 1.0) is None
            assert generations.copied(self.held, each.id, part.maker, part.step + 1, 10, 1.0) is None
            if noted is not None:
                self.held = noted
                self.hashing[each.id] = msgspec.structs.replace(part, state="copied", used_bytes=10, created_s=1.0)

    @rule(rank=ranks)
    def worker_gone(self, rank: int) -> None:
        newest = generations.common(self.held)
        maker = self.makers.pop(rank, None)
        self.reading.pop(rank, None)
        if maker is not None:
            self.held = generations.forget(self.held, maker)
            assert all(
                each.part is None or each.part.maker != maker or each.part.state != "making"
                for each in self.held.buffers
            )
        assert generations.common(self.held) == newest

    @precondition(lambda self: self.hashing)
    @rule(pick=picks, is_readable=st.sampled_from([True, True, False]))
    def hashed(self, pick: int, is_readable: bool) -> None:
        buffer = sorted(self.hashing)[pick % len(self.hashing)]
        part = self.hashing.pop(buffer)
        self.held = generations.hashed(self.held, buffer, part, b"d" if is_readable else None)

    @precondition(lambda self: self.makers)
    @rule(pick=picks)
    def fetch(self, pick: int) -> None:
        rank = sorted(self.makers)[pick % len(self.makers)]
        found = [
            each.id for each in self.held.buffers if each.rank == rank and each.part and each.part.state == "whole"
        ]
        if found:
            self.reading[rank] = found[pick % len(found)]

    @rule(rank=ranks)
    def read(self, rank: int) -> None:
        self.reading.pop(rank, None)

    @rule()
    def free_superseded(self) -> None:
        self.free(freeing.superseded(self.held, self.sizes, self.busy()))

    @invariant()
    def only_whole_parts_are_told(self) -> None:
        whole: dict[Generation, set[int]] = {}
        for each in self.held.buffers:
            if each.part is not None and each.part.state == "whole":
                whole.setdefault(each.part.generation, set()).add(each.rank)
        told = generations.held(self.held)
        assert {(each.attempt, each.step): set(each.ranks) for each in told} == whole
        assert [(each.attempt, each.step) for each in told] == sorted(whole, reverse=True)

    @invariant()
    def nothing_of_a_past_that_did_not_happen_is_told(self) -> None:
        latest = -1 if self.resumed is None else self.resumed
        assert all(each.step <= latest for each in generations.held(self.held) if each.attempt < self.held.attempt)

    @invariant()
    def no_buffer_is_there_twice(self) -> None:
        assert len({each.id for each in self.held.buffers}) == len(self.held.buffers)


TestNode = Node.TestCase
TestNode.settings = settings(max_examples=40, stateful_step_count=30)


def test_a_rank_that_is_ahead_waits_and_then_goes_on() -> None:
    held = generations.begin_attempt(Holdings(), 0, (0, 1), 2, None)
    held = generations.add(generations.add(held, 0, SIZE, (1, 2, 3)), 1, SIZE, (4, 5, 6))
    for step in (1, 2, 3):
        held = saved(held, 0, step)
    held, chosen = generations.make(held, 0, 4, maker=10, free={1, 2, 3})
    assert isinstance(chosen, str) and "all buffers are in use" in chosen
    held = saved(held, 1, 1)
    assert generations.common(held) == (0, 1)
    held, chosen = generations.make(held, 0, 5, maker=10, free={1, 2, 3})
    assert isinstance(chosen, str), "its oldest is the newest in common"
    held = saved(held, 1, 2)
    held, chosen = generations.make(held, 0, 6, maker=10, free={1, 2, 3})
    assert chosen == 1 and generations.common(held) == (0, 2)


def saved(held: Holdings, rank: int, step: int) -> Holdings:
    free = {each.id for each in held.buffers if each.rank == rank}
    held, chosen = generations.make(held, rank, step, maker=10 + rank, free=free)
    assert isinstance(chosen, int)
    noted = generations.copied(held, chosen, 10 + rank, step, 10, 1.0)
    assert noted is not None
    return noted
