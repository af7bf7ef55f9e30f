"""Whether an attempt starts from what more or fewer ranks have saved: only if all of their parts are there, and have room."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.ckpt_io.memory.types import generation_uuid
from robust_run.ckpt_io.seen import FolderLook, MemoryGeneration, SeenCheckpoint
from robust_run.launcher.core.resume.choosing import Next, ResumeChoice, ResumeWait
from robust_run.launcher.core.resume.looks import ANSWER_S, Choosing, LookAsked, MemoryWorld
from robust_run.launcher.core.resume.memory import decide, newest, point, point_named
from robust_run.launcher.core.resume.parts import of_placement
from robust_run.launcher.core.resume.resuming import sentence
from robust_run.launcher.core.resume.spreading import MOST_PARTS
from robust_run.launcher.core.state import MemoryAddress, MemoryHolder
from robust_run.launcher.model.job import Placement
from robust_run.launcher.model.resume_events import PassedOver, ResumeChosen

NOW_UNIX_S = 1e9
NODES = ("a", "b", "c")
MIB = 1 << 20
#: Two nodes of two ranks were; one is left.
HELD_BY = tuple(
    MemoryHolder(node=node, name=f"host-{node}", first_rank=first, nproc=2) for node, first in (("a", 0), ("b", 2))
)
ONE = MemoryWorld(
    job="run",
    world_size=2,
    ranks={"a": (0, 1)},
    held_by=HELD_BY,
    reach={node: MemoryAddress(host=f"host-{node}", port=7) for node in NODES},
    names={node: f"host-{node}" for node in NODES},
)
#: One node of two ranks was; another has come (back).
TWO = msgspec.structs.replace(ONE, world_size=4, ranks={"a": (0, 1), "b": (2, 3)}, held_by=HELD_BY[:1])


def held(
    step: int, *ranks: int, of: int, copies: tuple[int, ...] = (), attempt: int = 0, largest_bytes: int = MIB
) -> MemoryGeneration:
    return MemoryGeneration(
        attempt=attempt,
        step=step,
        world_size=of,
        ranks=ranks,
        copies=copies,
        created_s=NOW_UNIX_S - 10.0,
        largest_bytes=largest_bytes,
    )


def next_of(
    memory: Mapping[str, tuple[MemoryGeneration, ...]],
    world: MemoryWorld,
    *,
    stored: int | None = None,
    room: Mapping[str, int] | None = None,
    holders: tuple[str, ...] = (),
    due: tuple[str, ...] = (),
    now_s: float = 0.0,
    avoid: Mapping[str, PassedOver] | None = None,
) -> Next:
    return decide(
        choosing(memory, world, stored, room, holders, due, avoid), now_s, NOW_UNIX_S, lambda node: f"host-{node}"
    )


def choosing(
    memory: Mapping[str, tuple[MemoryGeneration, ...]],
    world: MemoryWorld,
    stored: int | None = None,
    room: Mapping[str, int] | None = None,
    holders: tuple[str, ...] = (),
    due: tuple[str, ...] = (),
    avoid: Mapping[str, PassedOver] | None = None,
) -> Choosing:
    seen = SeenCheckpoint(name=f"step-{stored}", uuid=f"u{stored}", step=stored, created_s=NOW_UNIX_S - 10.0, fault="")
    look = FolderLook(seen=(seen,) if stored is not None else ())

    def asked(node: str) -> LookAsked:
        is_due = node in due
        return LookAsked(
            number=1,
            look=None if is_due else look,
            held=() if is_due else memory.get(node, ()),
            is_due=is_due,
            room_bytes=(room or {}).get(node),
        )

    return Choosing(
        attempt=2,
        of=len(world.ranks),
        began_s=0.0,
        folder="/ckpt",
        asked={node: asked(node) for node in world.ranks},
        holders={node: asked(node) for node in holders},
        memory=world,
        avoid=avoid or {},
    )


def chosen(*arguments: object, **more: object) -> ResumeChoice:
    found = next_of(*arguments, **more)  # type: ignore[arg-type]
    assert isinstance(found, ResumeChoice), found
    return found


def step_of(found: ResumeChoice) -> tuple[str, int | None]:
    if found.memory is not None:
        return point(ONE, found.memory).source, found.memory.step
    return ("storage", found.seen.step) if found.seen is not None else ("beginning", None)


#: What the node that is left holds: its own, and copies of the other's.
LEFT = (held(7, 0, 1, of=4, copies=(2, 3)), held(6, 0, 1, of=4))


# --- fewer ranks


def test_a_node_that_is_left_with_all_parts_goes_on_from_memory() -> None:
    found = chosen({"a": LEFT}, ONE, stored=3)
    assert (step_of(found), found.passed_over) == (("peer", 7), ())
    assert found.memory is not None and found.memory.saved_by == 4
    assert [each.ranks for each in found.memory.elsewhere] == [(2, 3)], "its own copies become its own"


def test_its_name_and_address_say_how_many_saved_it() -> None:
    found = chosen({"a": LEFT}, ONE).memory
    assert found is not None
    told = point(ONE, found)
    assert (told.name, told.address) == ("memory-0-7-of-4", "rrck+memory://0/7?of=4")
    again = point_named(told.name, told.step, told.uuid, told.created_unix_s)
    assert (again.name, again.address, again.uuid) == (told.name, told.address, told.uuid)


def test_a_part_that_nobody_has_leaves_storage_and_it_is_said_who_had_it() -> None:
    found = chosen({"a": (held(7, 0, 1, of=4, copies=(2,)),)}, ONE, stored=3)
    assert step_of(found) == ("storage", 3)
    assert [each.why for each in found.passed_over] == [
        "it is of 4 ranks, and 2 run now; host-b, which held a part of it, is gone, and no other node has a copy"
    ]


def test_an_older_generation_of_which_all_parts_are_there_is_taken() -> None:
    found = chosen({"a": (held(7, 0, 1, of=4), held(6, 0, 1, of=4, copies=(2, 3)))}, ONE, stored=3)
    assert step_of(found) == ("peer", 6)


def test_parts_of_one_step_of_two_worlds_make_no_whole() -> None:
    found = chosen({"a": (held(7, 0, 1, of=4), held(7, of=3, copies=(2, 3)))}, ONE, stored=3)
    assert step_of(found) == ("storage", 3)


def test_parts_of_one_step_of_two_attempts_make_no_whole() -> None:
    found = chosen({"a": (held(7, 0, 1, of=4), held(7, of=4, copies=(2, 3), attempt=1))}, ONE, stored=3)
    assert step_of(found) == ("storage", 3)


def test_the_lost_node_s_part_is_taken_where_it_gave_it_before_it_was_put_aside() -> None:
    found = chosen({"a": (held(7, 0, 1, of=4),), "b": (held(7, 2, 3, of=4),)}, ONE, holders=("b",))
    assert step_of(found) == ("peer", 7)
    assert found.memory is not None
    assert [(each.ranks, each.name) for each in found.memory.elsewhere] == [((2, 3), "host-b")]


# --- more ranks


def test_a_node_that_comes_back_is_brought_all_parts() -> None:
    found = chosen({"a": (held(9, 0, 1, of=2),)}, TWO, stored=3)
    assert step_of(found) == ("peer", 9)
    assert found.memory is not None
    (lent,) = found.memory.elsewhere
    assert (lent.ranks, lent.name, lent.for_all) == ((0, 1), "host-a", True)
    placements = [Placement(node=node, group_rank=at, first_rank=2 * at, nproc=2) for at, node in enumerate("ab")]
    assert [of_placement((lent,), each) for each in placements] == [(lent,), (lent,)], "each takes what it lacks"


def test_what_a_node_that_is_back_held_before_it_was_lost_does_not_count() -> None:
    """It went on alone from step 7 in attempt 1: steps 8 and 9 of attempt 0 did not happen, whoever still has them."""
    world = msgspec.structs.replace(TWO, began_at={1: 7})
    stale = (held(9, 2, 3, of=4, copies=(0, 1)),)
    found = chosen({"a": (held(8, 0, 1, of=2, attempt=1),), "b": stale}, world)
    assert found.memory is not None and (found.memory.attempt, found.memory.step) == (1, 8)


def test_a_keeper_that_gives_nothing_away_is_no_lender() -> None:
    world = msgspec.structs.replace(TWO, reach={})
    assert step_of(chosen({"a": (held(9, 0, 1, of=2),)}, world, stored=3)) == ("storage", 3)


def test_a_node_that_has_not_answered_is_waited_for_and_then_holds_nothing() -> None:
    memory = {"a": (held(9, 0, 1, of=3),), "b": (held(9, 2, of=3),)}
    assert isinstance(next_of(memory, TWO, due=("b",), stored=3), ResumeWait)
    assert step_of(chosen(memory, TWO, due=("b",), stored=3, now_s=ANSWER_S)) == ("storage", 3)


# --- a world of the same size


def test_a_generation_of_this_world_is_never_spread_anew() -> None:
    memory = {"a": (held(9, 0, 1, of=4),), "b": (held(9, 2, 3, of=4),)}
    found = chosen(memory, TWO).memory
    assert found is not None and (found.saved_by, found.elsewhere) == (0, ())


# --- room


def test_where_a_node_has_no_room_for_all_parts_storage_is_taken_and_the_numbers_are_said() -> None:
    memory = {"a": (held(9, 0, 1, of=2, largest_bytes=3 << 30),)}
    found = chosen(memory, TWO, stored=3, room={"a": 0, "b": (6 << 30) - 1})
    assert step_of(found) == ("storage", 3)
    assert [each.why for each in found.passed_over] == [
        "it is of 2 ranks, and 4 run now: host-b needs 6.0 GiB for parts of other nodes, and 6.0 GiB may be used there"
    ]
    assert step_of(chosen(memory, TWO, stored=3, room={"a": 0, "b": 6 << 30})) == ("peer", 9)


def test_copies_that_a_node_keeps_anyway_take_no_room() -> None:
    assert step_of(chosen({"a": LEFT}, ONE, room={"a": 0})) == ("peer", 7)


def test_more_parts_than_connections_are_not_spread_anew() -> None:
    ranks = range(MOST_PARTS + 1)
    found = chosen({"a": (held(9, *ranks, of=len(ranks)),)}, ONE, stored=3)
    assert step_of(found) == ("storage", 3)
    assert f"at most {MOST_PARTS} parts" in found.passed_over[0].why


# --- words


@pytest.mark.parametrize(("lost", "words"), [(1, ", 1 step lost"), (None, "")])
def test_it_is_said_how_many_ranks_saved_it(lost: int | None, words: str) -> None:
    event = ResumeChosen(attempt=1, source="peer", step=9, saved_world_size=4, world_size=2, steps_lost=lost)
    assert sentence(event, (), ()) == f"attempt 1 starts at step 9 from memory (of 4 ranks, now 2){words}"


# --- whatever nodes say

SIZES = st.sampled_from([1, 2, 3, 4])
RANKS = st.lists(st.integers(0, 3), unique=True, max_size=4).map(lambda ranks: tuple(sorted(ranks)))
GENERATIONS = st.builds(
    lambda step, attempt, of, ranks, copies: held(
        step,
        *(rank for rank in ranks if rank < of),
        of=of,
        copies=tuple(rank for rank in copies if rank < of and rank not in ranks),
        attempt=attempt,
    ),
    st.integers(0, 3), st.integers(0, 1), SIZES, RANKS, RANKS,
)  # fmt: skip
HELD = st.lists(GENERATIONS, max_size=4, unique_by=lambda each: (each.attempt, each.step)).map(tuple)
ROOMS = st.dictionaries(st.sampled_from(NODES), st.integers(0, 4).map(lambda parts: parts * MIB))
Said = dict[str, tuple[MemoryGeneration, ...]]


def parts_of(memory: Said, attempt: int, step: int, of: int) -> dict[str, tuple[set[int], set[int]]]:
    """By node: its own parts of a generation, and its copies."""
    return {
        node: (set(each.ranks), set(each.copies))
        for node, all_ in memory.items()
        for each in all_
        if (each.attempt, each.step, each.world_size) == (attempt, step, of)
    }


@given(
    memory=st.fixed_dictionaries(dict.fromkeys(NODES, HELD)),
    world=st.sampled_from([ONE, TWO]),
    room=ROOMS,
    reachable=st.sets(st.sampled_from(NODES)),
    damaged=st.sets(st.tuples(st.integers(0, 1), st.integers(0, 3)), max_size=2),
)
def test_what_is_chosen_has_all_parts_within_reach_and_room_and_is_the_newest_such(
    memory: Said, world: MemoryWorld, room: dict[str, int], reachable: set[str], damaged: set[tuple[int, int]]
) -> None:
    world = msgspec.structs.replace(world, reach={node: at for node, at in world.reach.items() if node in reachable})
    avoid = {generation_uuid("run", *each): PassedOver(step=each[1], name="x", why="damaged") for each in damaged}
    holders = tuple(node for node in NODES if node not in world.ranks)
    now = choosing(memory, world, None, room, holders, (), avoid)
    found = newest(now, world)
    assert found == newest(choosing(dict(reversed(memory.items())), world, None, room, holders, (), avoid), world)

    def is_spreadable(attempt: int, step: int, of: int) -> bool:
        there = parts_of(memory, attempt, step, of)
        given_ = set().union(*(own | copies for node, (own, copies) in there.items() if node in reachable))
        for node in world.ranks:
            own, copies = there.get(node, (set(), set()))
            near = own | (copies if node in reachable else set())
            lacking = set(range(of)) - near
            if not lacking <= given_ or len(lacking) * MIB > room.get(node, 1 << 40):
                return False
        return bool(there)

    can = {
        (step, attempt)
        for attempt in range(2)
        for step in range(4)
        for of in range(1, 5)
        if of != world.world_size and (attempt, step) not in damaged and is_spreadable(attempt, step, of)
    }
    if found is None:
        assert not can
        return
    assert (found.step, found.attempt) >= max(can, default=(-1, -1))
    assert (found.attempt, found.step) not in damaged
    if not found.saved_by:
        return
    assert found.saved_by != world.world_size and (found.step, found.attempt) in can
    there = parts_of(memory, found.attempt, found.step, found.saved_by)
    lent = {rank: each.host.removeprefix("host-") for each in found.elsewhere for rank in each.ranks}
    for rank, node in lent.items():
        assert rank in there[node][0] | there[node][1], "whoever is named has it"
    for node in world.ranks:
        own, _ = there.get(node, (set(), set()))
        assert own | lent.keys() >= set(range(found.saved_by)), "each node is told where the rest is"
