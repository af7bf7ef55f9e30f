"""Whether an attempt starts from copies that other nodes hold in memory: what counts, who brings what, and what is said of it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from robust_run.ckpt_io.memory.types import generation_uuid
from robust_run.ckpt_io.seen import FolderLook, MemoryGeneration, SeenCheckpoint
from robust_run.launcher.core.resume.choosing import Next, ResumeChoice, ResumeWait
from robust_run.launcher.core.resume.looks import ANSWER_S, Choosing, LookAsked, MemoryWorld
from robust_run.launcher.core.resume.memory import decide, point
from robust_run.launcher.core.resume.parts import FROM_EVICTED_S
from robust_run.launcher.core.resume.resuming import sentence
from robust_run.launcher.core.state import MemoryAddress, MemoryHolder
from robust_run.launcher.model.resume_events import PartsElsewhere, PassedOver, ResumeChosen

NOW_UNIX_S = 1e9
NODES = ("a", "b", "c", "spare")
RANKS = {"a": (0, 1), "b": (2, 3), "c": (4, 5)}
WORLD = MemoryWorld(
    job="run",
    world_size=6,
    ranks=RANKS,
    held_by=tuple(
        MemoryHolder(node=node, name=f"host-{node}", first_rank=ranks[0], nproc=2) for node, ranks in RANKS.items()
    ),
    reach={node: MemoryAddress(host=f"host-{node}", port=7) for node in NODES},
    names={node: f"host-{node}" for node in NODES},
)
#: `b` is gone, and another came in its place.
WITHOUT_B = msgspec.structs.replace(WORLD, ranks={"a": (0, 1), "spare": (2, 3), "c": (4, 5)})


def held(step: int, *ranks: int, copies: tuple[int, ...] = (), attempt: int = 0, of: int = 6) -> MemoryGeneration:
    return MemoryGeneration(
        attempt=attempt, step=step, world_size=of, ranks=ranks, copies=copies, created_s=NOW_UNIX_S - 10.0
    )


def said(**by_node: MemoryGeneration | tuple[MemoryGeneration, ...]) -> dict[str, tuple[MemoryGeneration, ...]]:
    return {node: each if isinstance(each, tuple) else (each,) for node, each in by_node.items()}


#: Each holds its own, and copies of the one before it.
A, B, C = held(7, 0, 1, copies=(4, 5)), held(7, 2, 3, copies=(0, 1)), held(7, 4, 5, copies=(2, 3))


def next_of(
    memory: Mapping[str, tuple[MemoryGeneration, ...]],
    world: MemoryWorld = WORLD,
    *,
    stored: int | None = None,
    holders: tuple[str, ...] = (),
    due: tuple[str, ...] = (),
    now_s: float = 0.0,
    avoid: Mapping[str, PassedOver] | None = None,
) -> Next:
    seen = SeenCheckpoint(name=f"step-{stored}", uuid=f"u{stored}", step=stored, created_s=NOW_UNIX_S - 10.0, fault="")
    look = FolderLook(seen=(seen,) if stored is not None else ())

    def asked(node: str) -> LookAsked:
        is_due = node in due
        return LookAsked(number=1, look=None if is_due else look, held=memory.get(node, ()), is_due=is_due)

    choosing = Choosing(
        attempt=2,
        of=len(world.ranks),
        began_s=0.0,
        folder="/ckpt",
        asked={node: asked(node) for node in world.ranks},
        holders={node: asked(node) for node in holders},
        memory=world,
        avoid=avoid or {},
    )
    return decide(choosing, now_s, NOW_UNIX_S + now_s, lambda node: f"host-{node}")


def chosen(*arguments: object, **more: object) -> ResumeChoice:
    found = next_of(*arguments, **more)  # type: ignore[arg-type]
    assert isinstance(found, ResumeChoice), found
    return found


def step_of(found: ResumeChoice) -> tuple[str, int | None]:
    if found.memory is not None:
        return point(WORLD, found.memory).source, found.memory.step
    return ("storage", found.seen.step) if found.seen is not None else ("beginning", None)


def brought(found: ResumeChoice) -> list[tuple[tuple[int, ...], str]]:
    assert found.memory is not None
    return [(each.ranks, each.name) for each in found.memory.elsewhere]


# --- what counts


def test_where_all_nodes_are_there_nothing_is_brought() -> None:
    found = chosen(said(a=A, b=B, c=C))
    assert (step_of(found), brought(found)) == (("memory", 7), [])


def test_a_node_that_is_gone_is_made_up_for_by_the_copy_on_its_peer() -> None:
    found = chosen(said(a=A, c=C), WITHOUT_B)
    assert step_of(found) == ("peer", 7)
    assert found.memory is not None
    assert found.memory.elsewhere == (PartsElsewhere(ranks=(2, 3), of="host-b", name="host-c", host="host-c", port=7),)
    assert not found.passed_over


EVICTED_B = msgspec.structs.replace(WITHOUT_B, evicted=frozenset(("b",)))


def test_a_node_that_was_evicted_gives_its_own_parts_if_nobody_has_copies_and_not_for_ever() -> None:
    """As it does with --ckpt-copies 0."""
    memory = said(a=held(7, 0, 1), b=held(7, 2, 3), c=held(7, 4, 5))
    found = chosen(memory, EVICTED_B, holders=("b",), stored=5)
    assert (step_of(found), brought(found)) == (("peer", 7), [((2, 3), "host-b")])
    assert found.memory is not None and [each.within_s for each in found.memory.elsewhere] == [FROM_EVICTED_S]


def test_a_copy_on_a_node_that_is_well_comes_before_what_an_evicted_one_has() -> None:
    found = chosen(said(a=A, b=B, c=C), EVICTED_B, holders=("b",))
    assert (step_of(found), brought(found)) == (("peer", 7), [((2, 3), "host-c")])
    assert found.memory is not None and [each.within_s for each in found.memory.elsewhere] == [0.0]


def test_an_evicted_node_that_says_nothing_is_waited_for_so_long_and_then_storage_decides() -> None:
    memory = said(a=held(7, 0, 1), c=held(7, 4, 5))
    asked = {"holders": ("b",), "due": ("b",), "stored": 5}
    assert isinstance(next_of(memory, EVICTED_B, now_s=ANSWER_S - 0.1, **asked), ResumeWait)  # type: ignore[arg-type]
    assert step_of(chosen(memory, EVICTED_B, now_s=ANSWER_S, **asked)) == ("storage", 5)


def test_an_evicted_node_whose_part_is_not_newer_than_storage_is_not_asked_for_it() -> None:
    memory = said(a=held(7, 0, 1), b=held(7, 2, 3), c=held(7, 4, 5))
    assert step_of(chosen(memory, EVICTED_B, holders=("b",), stored=8)) == ("storage", 8)


def test_a_node_and_its_peer_that_are_both_gone_leave_storage_and_that_is_said() -> None:
    world = msgspec.structs.replace(WORLD, ranks={"a": (0, 1), "spare": (2, 3), "other": (4, 5)})
    found = chosen(said(a=A), world, stored=3)
    assert step_of(found) == ("storage", 3)
    (over,) = found.passed_over
    assert over.why == "host-b, which held a part of it, is gone, and no other node has a copy"


def test_an_older_generation_that_is_whole_is_taken_where_the_newest_has_no_copy() -> None:
    memory = said(a=(A, held(6, 0, 1)), c=(held(7, 4, 5), held(6, 4, 5, copies=(2, 3))))
    found = chosen(memory, WITHOUT_B, stored=3)
    assert (step_of(found), brought(found)) == (("peer", 6), [((2, 3), "host-c")])


def test_a_copy_that_is_older_than_all_that_others_hold_makes_no_whole() -> None:
    memory = said(a=(A, held(6, 0, 1)), c=(held(7, 4, 5), held(6, 4, 5), held(5, copies=(2, 3))))
    assert step_of(chosen(memory, WITHOUT_B, stored=3)) == ("storage", 3)


def test_half_a_copy_is_none() -> None:
    assert step_of(chosen(said(a=A, c=held(7, 4, 5, copies=(2,))), WITHOUT_B)) == ("beginning", None)


def test_a_copy_of_another_world_does_not_count() -> None:
    assert step_of(chosen(said(a=A, c=(held(7, 4, 5), held(7, copies=(2, 3), of=8))), WITHOUT_B)) == (
        "beginning",
        None,
    )


def test_a_copy_of_another_attempt_does_not_count() -> None:
    memory = said(a=A, c=(held(7, 4, 5), held(7, copies=(2, 3), attempt=1)))
    assert step_of(chosen(memory, WITHOUT_B)) == ("beginning", None)


def test_a_copy_of_what_rolled_back_code_made_does_not_count() -> None:
    world = msgspec.structs.replace(WITHOUT_B, untrusted=frozenset((0,)))
    assert step_of(chosen(said(a=A, c=C), world, stored=3)) == ("storage", 3)


def test_a_copy_of_a_past_that_did_not_happen_does_not_count() -> None:
    """Attempt 1 began at step 5 without this node: what attempt 0 made after that is of another course."""
    world = msgspec.structs.replace(WITHOUT_B, began_at={1: 5})
    assert step_of(chosen(said(a=A, c=C), world, stored=3)) == ("storage", 3)


def test_a_node_that_returns_with_an_older_past_does_not_bring_it_back() -> None:
    world = msgspec.structs.replace(WORLD, began_at={1: 5})
    now = [held(9, *ranks, attempt=1) for ranks in RANKS.values()]
    found = chosen(said(a=(now[0], held(12, 0, 1)), b=(now[1], held(12, 2, 3)), c=(now[2], held(12, 4, 5))), world)
    assert step_of(found) == ("memory", 9)


def test_one_that_could_not_be_brought_is_passed_over_and_the_one_before_is_taken() -> None:
    uuid = generation_uuid("run", 0, 7)
    over = PassedOver(step=7, uuid=uuid, name="memory-0-7", why="rank 2 on host-spare: host-c did not give its copy")
    memory = said(a=(A, held(6, 0, 1)), c=(C, held(6, 4, 5, copies=(2, 3))))
    found = chosen(memory, WITHOUT_B, avoid={uuid: over})
    assert step_of(found) == ("peer", 6)
    assert [(each.step, each.why) for each in found.passed_over] == [(7, over.why)]


def test_a_keeper_that_cannot_be_reached_gives_nothing() -> None:
    world = msgspec.structs.replace(WITHOUT_B, reach={"a": MemoryAddress(host="host-a", port=7)})
    assert step_of(chosen(said(a=A, c=C), world)) == ("beginning", None)


# --- where parts are


def test_ranks_that_moved_get_their_parts_from_where_they_ran() -> None:
    world = msgspec.structs.replace(WORLD, ranks={"a": (0, 1), "c": (2, 3), "b": (4, 5)})
    found = chosen(said(a=A, b=held(7, 2, 3), c=held(7, 4, 5)), world)
    assert (step_of(found), brought(found)) == (("peer", 7), [((2, 3), "host-b"), ((4, 5), "host-c")])


def test_a_rank_that_moved_to_the_node_with_its_copy_gets_it_there() -> None:
    world = msgspec.structs.replace(WORLD, ranks={"a": (0, 1), "c": (2, 3), "spare": (4, 5)})
    found = chosen(said(a=A, c=C), world)
    assert brought(found) == [((2, 3), "host-c"), ((4, 5), "host-c")]


def test_a_node_that_lost_its_ranks_still_gives_what_it_holds() -> None:
    found = chosen(said(a=A, b=B, c=held(7, 4, 5)), WITHOUT_B, holders=("b",))
    assert (step_of(found), brought(found)) == (("peer", 7), [((2, 3), "host-b")])


def test_a_standby_that_holds_copies_is_as_good_as_a_node() -> None:
    world = msgspec.structs.replace(WORLD, world_size=2, ranks={"fresh": (0, 1)})
    found = chosen(said(spare=held(7, copies=(0, 1), of=2)), world, holders=("spare",))
    assert (step_of(found), brought(found)) == (("peer", 7), [((0, 1), "host-spare")])


# --- waiting


def test_a_holder_that_has_not_answered_is_waited_for_where_it_may_have_what_is_missing() -> None:
    memory = said(a=A, c=held(7, 4, 5))
    assert isinstance(next_of(memory, WITHOUT_B, holders=("b",), due=("b",)), ResumeWait)
    late = chosen(memory, WITHOUT_B, holders=("b",), due=("b",), now_s=ANSWER_S, stored=3)
    assert step_of(late) == ("storage", 3)


def test_a_holder_is_not_waited_for_where_the_newest_is_whole_without_it() -> None:
    assert step_of(chosen(said(a=A, c=C), WITHOUT_B, holders=("b",), due=("b",))) == ("peer", 7)


def test_a_holder_is_not_waited_for_where_all_ranks_are_where_they_were() -> None:
    memory = said(a=(held(7, 0, 1), held(6, 0, 1)), b=held(6, 2, 3), c=(held(7, 4, 5), held(6, 4, 5)))
    assert step_of(chosen(memory, holders=("spare",), due=("spare",))) == ("memory", 6)


# --- words


def words(*elsewhere: PartsElsewhere) -> str:
    event = ResumeChosen(attempt=1, source="peer", step=4000, steps_lost=1, elsewhere=elsewhere)
    return sentence(event, (), ())


def part(of: str, name: str, *ranks: int) -> PartsElsewhere:
    return PartsElsewhere(ranks=ranks, of=of, name=name, host=name, port=7)


def test_it_is_said_whose_part_comes_from_where() -> None:
    assert words(part("node-2", "node-0", 4, 5)) == (
        "attempt 1 starts at step 4000 from memory, node-2's part from its copy on node-0, 1 step lost"
    )
    assert words(part("", "node-1", 2, 3)) == (
        "attempt 1 starts at step 4000 from memory, ranks 2 and 3 from node-1, 1 step lost"
    )


def test_of_many_the_first_two_are_named_and_the_others_counted() -> None:
    many = [part(f"node-{each}", f"node-{each + 4}", each) for each in range(4)]
    assert words(*many) == (
        "attempt 1 starts at step 4000 from memory, node-0's part from its copy on node-4, "
        "node-1's part from its copy on node-5, 2 more from others, 1 step lost"
    )


# --- whatever nodes say

SETS = st.lists(st.integers(0, 5), unique=True, max_size=6).map(lambda ranks: tuple(sorted(ranks)))
GENERATIONS = st.builds(
    lambda step, attempt, ranks, copies: held(step, *ranks, copies=copies, attempt=attempt),
    st.integers(0, 3), st.integers(0, 1), SETS, SETS,
)  # fmt: skip
HELD = st.lists(GENERATIONS, max_size=4, unique_by=lambda each: (each.attempt, each.step)).map(tuple)


@given(memory=st.fixed_dictionaries(dict.fromkeys(("a", "c", "spare", "b"), HELD)))
def test_each_rank_has_its_part_here_or_it_is_brought_from_who_has_it(
    memory: dict[str, tuple[MemoryGeneration, ...]],
) -> None:
    found = chosen(memory, WITHOUT_B, holders=("b",)).memory
    parts = {
        (node, each.attempt, each.step): {*each.ranks, *each.copies} for node, all_ in memory.items() for each in all_
    }
    for attempt in range(2):
        for step in range(4):
            there = set().union(*(parts.get((node, attempt, step), set()) for node in memory))
            if there >= set(range(6)):
                assert found is not None and (found.step, found.attempt) >= (step, attempt)
    if found is None:
        return
    brought_of = {rank: each.host.removeprefix("host-") for each in found.elsewhere for rank in each.ranks}
    for node, ranks in WITHOUT_B.ranks.items():
        for rank in ranks:
            holder = brought_of.get(rank, node)
            assert rank in parts[holder, found.attempt, found.step]
