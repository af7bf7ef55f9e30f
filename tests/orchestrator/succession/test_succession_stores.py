"""Journal and queues in the log of the voters: a successor has all that was decided, whoever wrote it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robust_run.launcher.model.code_events import Ledger
from robust_run.orchestrator.model.demand_state import Needs
from robust_run.orchestrator.model.queue_state import QueueState
from robust_run.orchestrator.model.spec import RoleSpec, RolesSpec
from robust_run.orchestrator.model.state import JobState, Member
from robust_run.orchestrator.model.succession_words import Entry, What
from robust_run.orchestrator.model.update_words import RoleCode
from robust_run.orchestrator.model.words import Begun, JobStarted, Line, NodeLeads, NodeOffered, WorldEnded, WorldRuns
from robust_run.orchestrator.model.words import MemberName as Name
from robust_run.orchestrator.queue.book import RECONNECT_S
from robust_run.orchestrator.rules import core
from robust_run.orchestrator.rules.again import MOMENTS, another_clock
from robust_run.orchestrator.rules.queue_core import counts
from robust_run.orchestrator.succession.stores import LoggedJournal, LoggedQueue, Past, void
from robust_run.roles.queue_words import ConsumerGone, Done, GiveBack, Keep, Put, QueueEvent, Took

SPEC = RolesSpec(name="job", roles=(RoleSpec(name="a", command=("a.py",), restart="alone"),))


class Written:
    """A log in memory."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def append(self, what: What, name: str, data: bytes) -> None:
        self.entries.append(Entry(len(self.entries) + 1, 1, what, name, data))

    def without_void(self, committed: int) -> list[Entry]:
        is_void = void(self.entries, committed)
        return [each for each in self.entries if each.index > committed or not is_void(each)]


events = st.one_of(
    st.builds(
        Put,
        key=st.sampled_from(["", "a", "b", "c"]),
        generation=st.integers(0, 3),
        payload=st.binary(max_size=4),
    ),
    st.builds(Took, consumer=st.sampled_from(["r/0:0", "r/1:0"]), count=st.integers(1, 3), least=st.integers(0, 3)),
    st.builds(Done, consumer=st.sampled_from(["r/0:0", "r/1:0"]), numbers=st.tuples(st.integers(0, 6))),
    st.builds(Keep, consumer=st.sampled_from(["r/0:0", "r/1:0"]), numbers=st.tuples(st.integers(0, 6))),
    st.builds(GiveBack, consumer=st.sampled_from(["r/0:0", "r/1:0"]), numbers=st.tuples(st.integers(0, 6))),
    st.builds(ConsumerGone, consumer=st.sampled_from(["r/0:0", "r/1:0"])),
)


def seen(state: QueueState) -> object:
    held = {n: (h.item, h.standing, h.consumer, h.until_s, h.taken_s, h.tries) for n, h in state.held.items()}
    return (
        held,
        state.put_by,
        state.taken_by,
        sorted(n for n in set(state.waiting) if n in held),
        state.next_number,
        state.identity,
        msgspec.structs.replace(counts(state), again=0),
    )  # how often somebody asked in vain is not on record


@settings(max_examples=60, deadline=None)
@given(
    leaders=st.lists(
        st.tuples(st.floats(0, 1e6), st.lists(st.tuples(st.floats(0, 900), events, st.booleans()), max_size=12)),
        min_size=1,
        max_size=4,
    ),
    upto=st.integers(0, 200),
)
def test_each_leader_s_queue_is_that_of_the_one_before_whatever_its_clock_says(
    leaders: list[tuple[float, list[tuple[float, QueueEvent, bool]]]], upto: int
) -> None:
    log = Written()
    for began_s, happened in leaders:
        now_s = began_s
        for committed in (0, upto):
            past = Past(log.without_void(min(committed, len(log.entries))))
            found = past.queues.get("q", QueueState())
        queue = LoggedQueue("q", found, log, now_s)
        for later_s, event, is_whole in happened:
            now_s += later_s
            queue.tell(event, now_s)
            if is_whole:
                queue.write_whole()
        assert seen(Past(log.entries).queues["q"]) == seen(queue.state)
        assert seen(Past(log.without_void(min(upto, len(log.entries)))).queues["q"]) == seen(queue.state)


def test_who_works_on_items_has_time_to_come_to_the_new_leader() -> None:
    log = Written()
    first = LoggedQueue("q", QueueState(), log, 1000.0)
    first.tell(Put(key="a", generation=0, payload=b"x"), 1000.0)
    first.tell(Took(consumer="r/0:0", count=1), 1001.0)
    second = LoggedQueue("q", Past(log.entries).queues["q"], log, 5.0)
    assert not second.tell(Took(consumer="r/1:0", count=1), 5.0 + RECONNECT_S - 1).items
    assert second.tell(Took(consumer="r/1:0", count=1), 5.0 + RECONNECT_S).items


def test_how_long_somebody_works_on_items_does_not_grow_with_the_leader_nor_shrink_below_what_is_known() -> None:
    """Whoever is stopped, and is waited for since long, is started again: by no other machine's clock."""
    for now_s in (1e9, 5.0):
        log = Written()
        first = LoggedQueue("q", QueueState(), log, 1000.0)
        for key in ("a", "b"):
            first.tell(Put(key=key, generation=0, payload=b"x", producer="p/0:0"), 1000.0)
        first.tell(Took(consumer="r/0:0", count=1), 1001.0)
        first.tell(Took(consumer="r/1:0", count=1), 1061.0)
        state = LoggedQueue("q", Past(log.entries).queues["q"], log, now_s).state
        assert [now_s - held.taken_s for held in state.held.values()] == [60.0, 0.0]
        assert ({"p/0:0": now_s - 61}, {"r/0:0": now_s - 60, "r/1:0": now_s}) == (state.put_by, state.taken_by)


def test_a_queue_that_was_not_written_whole_is_as_it_was_before() -> None:
    """The leader was lost in the midst of it, and the one that follows goes on."""
    log = Written()
    queue = LoggedQueue("q", QueueState(), log, 0.0)
    for number in range(3):
        queue.tell(Put(key=str(number), generation=0, payload=b"x"), 0.0)
    before = len(log.entries)
    queue.write_whole()
    log.entries = log.entries[: before + 2]
    again = LoggedQueue("q", Past(log.entries).queues["q"], log, 0.0)
    assert counts(again.state).waiting == 3
    again.write_whole()
    assert counts(Past(log.without_void(len(log.entries))).queues["q"]).waiting == 3


def test_the_journal_is_that_of_all_leaders_and_in_a_file_for_people(tmp_path: Path) -> None:
    log, said = Written(), list[str]()
    first = LoggedJournal(str(tmp_path), SPEC, Past([]), log, said.append)
    first.add(Line(at=1.0, mono=500.0, event=NodeOffered(node="a", slots=4)))
    first.add(Line(at=2.0, mono=501.0, event=Begun()))
    second = LoggedJournal(str(tmp_path), SPEC, Past(log.entries), log, said.append)
    assert [event for event, _ in second.past] == [NodeOffered(node="a", slots=4), Begun()]
    first.add(Line(at=9.0, mono=999.0, event=Begun()))  # one that was deposed, and stood still in the midst of a line
    second.add(Line(at=3.0, mono=7.0, event=NodeLeads(node="b", term=2)))
    lines = [json.loads(line) for line in (tmp_path / "roles.jsonl").read_bytes().splitlines()]
    assert [line.get("event", {}).get("type") for line in lines] == [None, "node_offered", "begun", "node_leads"]
    assert (Past(log.entries).spec, said) == (SPEC, [])
    first.close()
    second.close()


def test_times_of_the_machine_that_led_mean_nothing_to_the_next() -> None:
    """A member that was to wait for a second does not wait for days because another machine's clock says less."""
    past = [
        (NodeOffered(node="a", slots=4), 1e6),
        (Begun(), 1e6),
        (WorldRuns(member=Name("a", 0), serial=1), 1e6),
        (WorldEnded(member=Name("a", 0), serial=1, code=1), 1e6 + 5),
    ]
    state = core.replay(SPEC, past)
    member = state.members[Name("a", 0)]
    assert member.standing == "pausing"
    wait_s = member.until_s - (1e6 + 5)
    core.step(SPEC, state, NodeLeads(node="b", term=2), 3.0)
    assert member.until_s == 3.0 + wait_s


def structs(kind: object, found: dict[type[msgspec.Struct], tuple[str, ...]]) -> None:
    """Find all that a state is made of, with the fields that are seconds."""
    for each in get_args(kind):
        structs(each, found)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in found:
        fields = {name: of for name, of in get_type_hints(kind).items() if name in kind.__struct_fields__}
        found[kind] = tuple(name for name in fields if name.endswith("_s") and not name.endswith("_unix_s"))
        for of in fields.values():
            structs(of, found)


def test_every_time_in_a_job_s_state_is_moved_to_the_next_leader_s_clock_or_is_a_duration() -> None:
    durations = {JobState: {"patience_s"}, Needs: {"lacks_s", "idles_s"}, Ledger: {"usual_step_s"}}
    found: dict[type[msgspec.Struct], tuple[str, ...]] = {}
    structs(JobState, found)
    assert len(found) > 6
    for kind, names in found.items():
        assert set(names) == {*MOMENTS.get(kind, ()), *durations.get(kind, ())}, kind


@pytest.mark.parametrize("event", [NodeLeads(node="b", term=2), JobStarted(start="again")])
@pytest.mark.parametrize("now_s", [3.0, 1e9])
def test_what_was_to_come_is_as_far_away_by_the_next_leader_s_clock(
    now_s: float, event: NodeLeads | JobStarted
) -> None:
    """Updates that are due, members that have just come, roles that were just resized, restarts that were just asked for."""
    state = core.replay(SPEC, [(NodeOffered(node="a", slots=4), 1e6), (Begun(), 1e6)])
    states: tuple[msgspec.Struct, ...] = (Member(name=Name("b", 0), standing="running"), RoleCode(), Needs())
    for each in states:
        for name in MOMENTS[type(each)]:
            setattr(each, name, 1e6 + 40)
    state.members[Name("b", 0)], state.codes["b"], state.needs["b"] = states  # type: ignore[assignment]
    another_clock(state, now_s)
    for each in states:
        assert [getattr(each, name) for name in MOMENTS[type(each)]] == [now_s + 40] * len(MOMENTS[type(each)])
    state.last_s, state.codes["a"] = 1e6, RoleCode(due_s=1e6 + 40)
    core.step(SPEC, state, event, now_s)
    assert (state.codes["a"].due_s, state.last_s) == (now_s + 40, now_s)


def test_what_was_never_to_come_does_not_come_with_another_clock() -> None:
    state = JobState(codes={"a": RoleCode()}, members={Name("a", 0): Member(name=Name("a", 0))}, last_s=1e6)
    core.step(SPEC, state, NodeLeads(node="b", term=2), 3.0)
    assert (state.codes["a"].due_s, state.members[Name("a", 0)].asked_s) == (0.0, None)
