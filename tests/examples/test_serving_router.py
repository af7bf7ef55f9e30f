"""Which expert member is asked: one that holds the expert, another where it is lost or late, and nobody twice in vain."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "serving"))

from router import Part, Router, Sends, held, holders

PATIENCE_S = 1.0


def router(members: int = 2, copies: int = 1, up: int | None = None) -> Router:
    found = Router(members, copies, PATIENCE_S)
    for member in range(members if up is None else up):
        assert found.came(member, 0.0) == {}
    return found


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 4))
def test_each_expert_is_held_by_as_many_members_as_was_said(experts: int, members: int, copies: int) -> None:
    held_by = {member: held(member, experts, members, copies) for member in range(members)}
    for expert in range(experts):
        found = [member for member, those in held_by.items() if expert in those]
        assert sorted(found) == sorted(holders(expert, members, copies))
        assert len(found) == min(copies, members)


def test_rows_go_to_the_one_that_holds_their_expert() -> None:
    assert router(2).ask(1, [0, 1, 2, 5], 0.0) == {0: [Part(1, 0), Part(1, 2)], 1: [Part(1, 1), Part(1, 5)]}


def test_of_two_that_hold_it_to_the_one_with_less_to_do() -> None:
    both = router(2, copies=2)
    sends = both.ask(1, range(8), 0.0)
    assert sorted(map(len, sends.values())) == [4, 4]


def test_what_a_lost_member_had_goes_to_another_at_once() -> None:
    both = router(2, copies=2)
    sends = both.ask(1, [0, 1], 0.0)
    assert both.went(0, 0.1) == {1: sends[0]}
    assert both.went(1, 0.2) == {}
    assert both.came(1, 0.3) == {1: [Part(1, 0), Part(1, 1)]}
    assert both.close(1) == 3, "one when the first was lost, both when the second was"


def test_where_nobody_else_holds_it_it_waits_for_as_long_as_it_takes() -> None:
    one = router(2)
    assert one.ask(1, [0, 1], 0.0)[0] == [Part(1, 0)]
    assert one.went(0, 0.1) == {}
    assert one.look(1e6) == {}
    assert one.came(0, 2e6) == {0: [Part(1, 0)]}
    assert one.answered(0, Part(1, 0))


def test_what_is_asked_while_nobody_is_there_is_sent_when_one_comes() -> None:
    none = router(2, up=0)
    assert none.ask(1, [0, 1], 0.0) == {}
    assert none.came(1, 5.0) == {1: [Part(1, 1)]}
    assert none.came(0, 6.0) == {0: [Part(1, 0)]}
    assert none.close(1) == 0, "it was asked once"


def test_one_that_is_late_is_left_alone_and_another_is_asked_as_well_once() -> None:
    both = router(2, copies=2)
    (first,) = both.ask(1, [0], 0.0)
    other = 1 - first
    assert both.look(0.9) == {}
    assert both.look(1.0) == {other: [Part(1, 0)]}
    assert both.look(1.1) == {}
    assert both.look(99.0) == {}, "both are late: nothing helps but waiting"
    assert both.answered(other, Part(1, 0))
    assert not both.answered(first, Part(1, 0)), "the second answer is one too many"
    assert both.close(1) == 1


def test_one_that_is_late_gets_no_new_work_until_it_answers() -> None:
    both = router(2, copies=2)
    (late,) = both.ask(1, [0], 0.0)
    both.look(1.0)
    both.answered(1 - late, Part(1, 0))
    assert both.ask(2, [0, 1, 2], 1.1) == {1 - late: [Part(2, 0), Part(2, 1), Part(2, 2)]}
    both.answered(late, Part(1, 0))
    assert late in both.ask(3, [0], 1.2)


def test_one_that_is_late_and_the_only_one_is_asked_all_the_same() -> None:
    one = router(1)
    one.ask(1, [0], 0.0)
    one.look(1.0)
    assert one.ask(2, [0], 1.1) == {0: [Part(2, 0)]}


def test_a_ticket_that_is_given_up_is_not_sent_any_more() -> None:
    one = router(1)
    one.ask(1, [0], 0.0)
    one.close(1)
    assert one.went(0, 0.1) == {}
    assert one.came(0, 0.2) == {}


class Members:
    """Expert members as a router sees them: who is there, and what each was sent and has not answered."""

    def __init__(self, count: int, copies: int) -> None:
        self.count, self.copies = count, copies
        self.router = Router(count, copies, PATIENCE_S)
        self.up: set[int] = set()
        self.has: dict[int, set[Part]] = {member: set() for member in range(count)}
        self.wanted: set[Part] = set()

    def sent(self, sends: Sends) -> None:
        for member, parts in sends.items():
            assert member in self.up
            for part in parts:
                assert member in holders(part.expert, self.count, self.copies)
                assert part in self.wanted, "it was answered"
                assert part not in self.has[member], "it has it already"
                self.has[member].add(part)

    def ask(self, ticket: int, experts: set[int], now_s: float) -> None:
        self.wanted.update(Part(ticket, expert) for expert in experts)
        self.sent(self.router.ask(ticket, experts, now_s))

    def turn(self, member: int, now_s: float) -> None:
        """Come if it is away, go if it is here: with all that it has."""
        if member in self.up:
            self.up.remove(member)
            self.has[member].clear()
            self.sent(self.router.went(member, now_s))
        else:
            self.up.add(member)
            self.sent(self.router.came(member, now_s))

    def answer(self, member: int) -> None:
        if self.has[member]:
            part = self.has[member].pop()
            assert self.router.answered(member, part) is (part in self.wanted)
            self.wanted.discard(part)

    def check(self) -> None:
        for part in self.wanted:
            able = self.up & set(holders(part.expert, self.count, self.copies))
            assert not able or any(part in self.has[each] for each in able), "it lies about, and somebody could have it"


EVENTS = st.lists(st.tuples(st.sampled_from(("ask", "turn", "look", "answer")), st.integers(0, 99)), max_size=40)


@given(st.integers(1, 4), st.integers(1, 3), EVENTS)
def test_whatever_happens_all_is_answered_in_the_end(count: int, copies: int, events: list[tuple[str, int]]) -> None:
    """Each member answers what it was sent, unless it is lost before: nothing is forgotten, nothing goes where it is not held."""
    members, now_s = Members(count, copies), 0.0
    for number, (what, value) in enumerate(events):
        now_s += value / 50
        if what == "ask":
            members.ask(number, {value % 8, value // 8 % 8}, now_s)
        elif what == "turn":
            members.turn(value % count, now_s)
        elif what == "look":
            members.sent(members.router.look(now_s))
        else:
            members.answer(value % count)
        members.check()
    for member in set(range(count)) - members.up:
        members.turn(member, now_s)
    for member in range(count):
        while members.has[member]:
            members.answer(member)
    assert not members.wanted
    assert members.router.on_their_way == 0
