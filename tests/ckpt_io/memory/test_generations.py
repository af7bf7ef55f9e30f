"""Which buffer a part goes to: over any course of saves, deaths and attempts, what all ranks have in common is never lost."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from robust_run.ckpt_io.memory import generations
from robust_run.ckpt_io.memory.generations import Holdings, Part

RANKS = (0, 1)


class Saves(RuleBasedStateMachine):
    """Two ranks of one node; a connection of a rank in an attempt is a number."""

    def __init__(self) -> None:
        super().__init__()
        self.holdings = Holdings()
        self.making: dict[int, tuple[int, int]] = {}
        """By rank: buffer and step."""
        self.hashing: dict[int, Part] = {}
        self.reading: set[int] = set()
        self.steps = {0: 0, 1: 0}
        self.known: tuple[int, int] | None = None
        """The newest generation that was in common at the last look."""

    def maker(self, rank: int) -> int:
        return self.holdings.attempt * 10 + rank

    @initialize()
    def begins(self) -> None:
        self.holdings = generations.begin_attempt(self.holdings, 0, RANKS, 2, None)
        for rank in RANKS:
            self.holdings = generations.add(self.holdings, rank, 1000, range(rank * 3, rank * 3 + 3))

    @rule(rank=st.sampled_from(RANKS))
    def begin(self, rank: int) -> None:
        self.steps[rank] += 1
        before = generations.common(self.holdings)
        free = {each.id for each in self.holdings.buffers} - set(self.hashing) - self.reading
        self.holdings, chosen = generations.make(
            self.holdings, rank, self.steps[rank], maker=self.maker(rank), free=free
        )
        self.making.pop(rank, None)
        if isinstance(chosen, int):
            assert chosen in free and chosen // 3 == rank
            self.making[rank] = (chosen, self.steps[rank])
        assert generations.common(self.holdings) == before, "a save that begins takes nothing away"

    @precondition(lambda self: self.making)
    @rule(data=st.data())
    def copied(self, data: st.DataObject) -> None:
        rank = data.draw(st.sampled_from(sorted(self.making)))
        buffer, step = self.making.pop(rank)
        noted = generations.copied(self.holdings, buffer, self.maker(rank), step, 100, 1.0)
        assert noted is not None
        self.holdings = noted
        part = next(each.part for each in noted.buffers if each.id == buffer)
        assert part is not None
        self.hashing[buffer] = part

    @precondition(lambda self: self.hashing)
    @rule(data=st.data())
    def hashed(self, data: st.DataObject) -> None:
        buffer = data.draw(st.sampled_from(sorted(self.hashing)))
        self.holdings = generations.hashed(self.holdings, buffer, self.hashing.pop(buffer), b"d" * 16)

    @rule(rank=st.sampled_from(RANKS))
    def dies(self, rank: int) -> None:
        self.making.pop(rank, None)
        self.holdings = generations.forget(self.holdings, self.maker(rank))

    @rule(buffer=st.integers(0, 5))
    def reads(self, buffer: int) -> None:
        self.reading ^= {buffer}

    @rule(is_from_memory=st.booleans())
    def begins_again(self, is_from_memory: bool) -> None:
        for buffer, part in list(self.hashing.items()):  # a look waits for these
            self.holdings = generations.hashed(self.holdings, buffer, part, b"d" * 16)
        self.hashing.clear()
        whole = [each for each in generations.held(self.holdings) if each.ranks == RANKS]
        resumed = max((each.step for each in whole), default=None) if is_from_memory else None
        self.holdings = generations.begin_attempt(self.holdings, self.holdings.attempt + 1, RANKS, 2, resumed)
        self.making.clear()
        self.known = None
        self.steps = dict.fromkeys(RANKS, resumed or 0)
        told = generations.held(self.holdings)
        assert all(each.step <= (resumed if resumed is not None else -1) for each in told)
        if resumed is not None:
            assert any(each.step == resumed and each.ranks == RANKS for each in told), "where it starts stays"

    @invariant()
    def what_is_in_common_only_gets_newer(self) -> None:
        now = generations.common(self.holdings)
        assert self.known is None or (now is not None and now >= self.known)
        self.known = now

    @invariant()
    def three_buffers_a_rank_and_nothing_unfinished_is_told(self) -> None:
        assert sorted(each.id for each in self.holdings.buffers) in ([], list(range(6)))
        whole = {
            (each.part.generation, each.rank)
            for each in self.holdings.buffers
            if each.part is not None and each.part.state == "whole"
        }
        told = {((each.attempt, each.step), rank) for each in generations.held(self.holdings) for rank in each.ranks}
        assert told == whole


TestSaves = Saves.TestCase
TestSaves.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
