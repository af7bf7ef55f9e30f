"""Copies of other nodes' parts: whatever comes, breaks off or begins anew, the newest that all of a node's ranks have stays."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from robust_run.ckpt_io.memory.copies import guests
from robust_run.ckpt_io.memory.copies.guests import GUEST_BUFFERS, Guests, Needed
from robust_run.ckpt_io.memory.copies.words import Push
from robust_run.ckpt_io.memory.generations import Holdings

RANKS = (0, 1, 2)
OWN = Holdings(ranks=(9,))
picks = st.integers(0, 1 << 20)


class Desk(RuleBasedStateMachine):
    """One node sends its ranks' parts, in attempts that begin and end."""

    def __init__(self) -> None:
        super().__init__()
        self.held = Guests()
        self.attempt, self.resumed, self.step, self.size = 0, -1, 0, 10
        self.next_id, self.next_maker = 1, 1
        self.coming: dict[int, tuple[int, Push]] = {}
        self.read: set[int] = set()

    def newest(self) -> tuple[int, int] | None:
        return guests.common(self.held, RANKS)

    @rule(rank=st.sampled_from(RANKS), on=st.integers(0, 2), is_larger=st.sampled_from([False] * 5 + [True]))
    def push(self, rank: int, on: int, is_larger: bool) -> None:
        self.step, self.size = self.step + on, self.size + is_larger
        newest = self.newest()
        push = Push(
            rank=rank,
            ranks=RANKS,
            attempt=self.attempt,
            step=self.step,
            world_size=10,
            used_bytes=self.size,
            room_bytes=self.size,
            digest=bytes(16),
            created_s=1.0,
            during=self.attempt,
            stride=1,
        )
        if guests.refusal(self.held, OWN, push) or guests.find(self.held, rank, push.generation):
            return
        self.held = guests.expect(self.held, push)
        self.free()
        chosen = guests.choose(self.held, push, self.read)
        if isinstance(chosen, Needed):
            ids = range(self.next_id, self.next_id + chosen.wanted)
            self.next_id += chosen.wanted
            self.held = guests.add(self.held, rank, chosen.size_bytes, ids)
            chosen = guests.choose(self.held, push, self.read)
        assert not isinstance(chosen, Needed)
        if chosen != "busy":
            assert chosen not in self.coming and chosen not in self.read
            self.held = guests.place(self.held, chosen, push, self.next_maker)
            self.coming[chosen] = (self.next_maker, push)
            self.next_maker += 1
        assert self.newest() == newest

    @precondition(lambda self: self.coming)
    @rule(pick=picks, is_right=st.sampled_from([True, True, False]))
    def come(self, pick: int, is_right: bool) -> None:
        buffer = sorted(self.coming)[pick % len(self.coming)]
        maker, push = self.coming.pop(buffer)
        newest = self.newest() or (-1, -1)
        self.held, nothing = guests.came(self.held, buffer, maker + 1, is_right=True)
        assert not nothing, "only the one who sends it says so"
        self.held, counts = guests.came(self.held, buffer, maker, is_right=is_right)
        assert counts == (is_right and not guests.is_past(self.held, push))
        self.free()
        assert (self.newest() or (-1, -1)) >= newest

    def free(self) -> None:
        newest = self.newest()
        ids = guests.spare(self.held, self.read)
        assert not set(ids) & (self.read | set(self.coming))
        self.held = guests.without(self.held, ids)
        assert self.newest() == newest

    @rule(back=st.integers(0, 3))
    def begin_attempt(self, back: int) -> None:
        self.attempt += 1
        self.step = self.resumed = max(0, self.step - back)
        before = {each.id: each.part for each in self.held.buffers}
        self.held = guests.begin_attempt(self.held, self.attempt, self.resumed)
        for each in self.held.buffers:
            was = before[each.id]
            if was is not None and was.state == "whole" and was.step <= self.resumed:
                assert each.part == was, "the attempt may start from it"

    @rule(pick=picks)
    def lend(self, pick: int) -> None:
        whole = [each.id for each in self.held.buffers if each.part is not None and each.part.state == "whole"]
        if whole:
            self.read.add(whole[pick % len(whole)])

    @rule()
    def return_all(self) -> None:
        self.read.clear()

    @invariant()
    def nothing_of_a_past_that_did_not_happen_is_told(self) -> None:
        whole = [each.part for each in self.held.buffers if each.part is not None and each.part.state == "whole"]
        assert all(part.attempt == self.attempt or part.step <= self.resumed for part in whole)

    @invariant()
    def no_more_buffers_than_needed(self) -> None:
        """Those that come in smaller ones, or are read, stay until they are done."""
        for rank, size in self.held.senders.items():
            large = [each for each in self.held.buffers if each.rank == rank and each.size_bytes >= size]
            assert not size or len(large) <= GUEST_BUFFERS


TestDesk = Desk.TestCase
TestDesk.settings = settings(max_examples=80, stateful_step_count=40)
