"""Whether an attempt starts from memory: what counts, what does not, and how it competes with storage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from robust_run.ckpt_io.memory.types import generation_uuid
from robust_run.ckpt_io.seen import FolderLook, MemoryGeneration, SeenCheckpoint
from robust_run.launcher.core.resume.choosing import LEAST_S, TROUBLE_S, Again, Next, Nothing, ResumeChoice, ResumeWait
from robust_run.launcher.core.resume.looks import ANSWER_S, Choosing, LookAsked, MemoryWorld
from robust_run.launcher.core.resume.memory import decide, newest, point, point_named, world_of
from robust_run.launcher.core.resume.parts import HeldWhole
from robust_run.launcher.core.state import JobState, MemoryHolder
from robust_run.launcher.model.code_events import CodeRecord, CodeVersion, Ledger
from robust_run.launcher.model.job import Placement
from robust_run.launcher.model.resume_events import PassedOver, ResumePoint, SavedCheckpoint

NOW_UNIX_S = 1e9
EMPTY = FolderLook()
WORLD = MemoryWorld(
    job="run",
    world_size=4,
    ranks={"a": (0, 1), "b": (2, 3)},
    held_by=(
        MemoryHolder(node="a", name="host-a", first_rank=0, nproc=2),
        MemoryHolder(node="b", name="host-b", first_rank=2, nproc=2),
    ),
)


def held(step: int, *ranks: int, attempt: int = 0, of: int = 4, age_s: float = 10.0) -> MemoryGeneration:
    """What a node holds: ten seconds old."""
    return MemoryGeneration(attempt=attempt, step=step, world_size=of, ranks=ranks, created_s=NOW_UNIX_S - age_s)


def a(*steps: int, **more: Any) -> tuple[MemoryGeneration, ...]:
    return tuple(held(step, 0, 1, **more) for step in steps)


def b(*steps: int, **more: Any) -> tuple[MemoryGeneration, ...]:
    return tuple(held(step, 2, 3, **more) for step in steps)


def stored(*steps: int, age_s: float = 10.0, fault: str = "", written_by: str = "") -> FolderLook:
    return FolderLook(
        seen=tuple(
            SeenCheckpoint(
                name=f"step-{step}",
                uuid=f"u{step}",
                step=step,
                created_s=NOW_UNIX_S - age_s,
                fault=fault,
                written_by=written_by,
            )
            for step in sorted(steps, reverse=True)
        )
    )


def choosing(
    memory: Mapping[str, tuple[MemoryGeneration, ...]],
    looks: FolderLook | Mapping[str, FolderLook | None] = EMPTY,
    world: MemoryWorld = WORLD,
    folder: str = "/ckpt",
    **more: Any,
) -> Choosing:
    """A choice in which the nodes of `world` have said this; None: one has said nothing. The attempt is the third."""
    by_node = looks if isinstance(looks, Mapping) else dict.fromkeys(world.ranks, looks)
    asked = {
        node: LookAsked(number=1, look=by_node[node], held=memory.get(node, ()), is_due=by_node[node] is None)
        for node in world.ranks
    }
    return Choosing(attempt=2, of=len(asked), began_s=0.0, folder=folder, asked=asked, memory=world, **more)


def next_of(of: Choosing, now_s: float = 0.0) -> Next:
    return decide(of, now_s, NOW_UNIX_S + now_s, lambda node: f"host-{node}")


def chosen(of: Choosing, now_s: float = 0.0) -> ResumeChoice:
    found = next_of(of, now_s)
    assert isinstance(found, ResumeChoice), found
    return found


def step_of(found: ResumeChoice) -> tuple[str, int | None]:
    if found.memory is not None:
        return "memory", found.memory.step
    return ("storage", found.seen.step) if found.seen is not None else ("beginning", None)


def passed(found: ResumeChoice) -> list[tuple[int | None, str]]:
    return [(each.step, each.why) for each in found.passed_over]


# --- what counts


def test_the_newest_that_all_nodes_hold_whole_is_taken() -> None:
    found = chosen(choosing({"a": a(7, 6), "b": b(6, 5)}))
    assert step_of(found) == ("memory", 6)
    assert not found.passed_over, "that a newer one was in the making is no news"


def test_it_is_as_old_as_its_last_part() -> None:
    found = chosen(choosing({"a": a(6, age_s=9.0), "b": b(6, age_s=2.0)}))
    assert found.memory is not None and found.memory.created_s == NOW_UNIX_S - 2.0


def test_of_one_step_the_later_attempt_s_counts() -> None:
    of = choosing({"a": (*a(6), *a(6, attempt=1)), "b": (*b(6), *b(6, attempt=1))})
    assert (found := chosen(of).memory) is not None and found.attempt == 1


def test_parts_of_different_attempts_make_no_whole() -> None:
    assert step_of(chosen(choosing({"a": a(6, attempt=1), "b": b(6)}))) == ("beginning", None)


def test_what_an_attempt_that_was_not_yet_has_made_is_not_believed() -> None:
    assert step_of(chosen(choosing({"a": a(6, attempt=2), "b": b(6, attempt=2)}))) == ("beginning", None)


def test_a_rank_that_was_dying_leaves_the_one_before() -> None:
    assert step_of(chosen(choosing({"a": a(7, 6), "b": (held(7, 2), *b(6))}))) == ("memory", 6)


def test_a_world_of_another_size_does_not_count() -> None:
    found = chosen(choosing({"a": a(6, of=8), "b": b(6, of=8)}))
    assert step_of(found) == ("beginning", None)
    assert passed(found) == [(6, "it is of 8 ranks, and 4 run now")]


def test_ranks_that_moved_to_other_nodes_do_not_find_their_parts_where_nodes_give_nothing_away() -> None:
    found = chosen(choosing({"a": b(6), "b": a(6)}))
    assert step_of(found) == ("beginning", None)
    assert passed(found) == [(6, "its ranks run on other nodes now")]


def test_a_node_that_came_in_another_s_place_holds_nothing() -> None:
    world = msgspec.structs.replace(WORLD, ranks={"a": (0, 1), "spare": (2, 3)})
    found = chosen(choosing({"a": a(6)}, stored(3), world))
    assert step_of(found) == ("storage", 3)
    assert passed(found) == [(6, "host-b, which held a part of it, is gone")]


def test_a_keeper_that_said_nothing_in_time_is_as_one_that_holds_nothing() -> None:
    found = chosen(choosing({"a": a(6)}, stored(3)))
    assert step_of(found) == ("storage", 3)
    assert passed(found) == [(6, "host-b does not hold its part")]


def test_what_a_rank_found_damaged_is_avoided_and_the_one_before_taken() -> None:
    uuid = generation_uuid("run", 0, 7)
    over = PassedOver(step=7, uuid=uuid, name="memory-0-7", why="rank 3 on b: it has a wrong digest")
    of = choosing({"a": a(7, 6), "b": b(7, 6)}, avoid={uuid: over})
    assert step_of(chosen(of)) == ("memory", 6)
    assert passed(chosen(of)) == [(7, over.why)]


def test_what_rolled_back_code_made_does_not_count() -> None:
    world = msgspec.structs.replace(WORLD, untrusted=frozenset((1,)))
    of = choosing({"a": (*a(9, attempt=1), *a(6)), "b": (*b(9, attempt=1), *b(6))}, world=world)
    assert step_of(chosen(of)) == ("memory", 6)
    assert passed(chosen(of)) == [(9, "code that was rolled back made it")]


# --- storage


def test_the_higher_step_wins_and_memory_on_a_tie() -> None:
    memory = {"a": a(6), "b": b(6)}
    assert step_of(chosen(choosing(memory, stored(5)))) == ("memory", 6)
    assert step_of(chosen(choosing(memory, stored(6)))) == ("memory", 6)
    assert step_of(chosen(choosing(memory, stored(7, 5)))) == ("storage", 7)


def test_a_newer_one_in_storage_that_is_damaged_does_not_keep_from_memory() -> None:
    found = chosen(choosing({"a": a(6), "b": b(6)}, stored(7, fault="a part is missing")), now_s=LEAST_S)
    assert step_of(found) == ("memory", 6)
    assert passed(found) == [(7, "host-a: a part is missing")]


def test_a_newer_one_that_rolled_back_code_wrote_does_not_win() -> None:
    found = chosen(choosing({"a": a(6), "b": b(6)}, stored(7, written_by="run/2"), untrusted=("run/2",)))
    assert step_of(found) == ("memory", 6)


def test_nodes_that_disagree_about_storage_cost_no_wait_where_memory_is_newer() -> None:
    assert step_of(chosen(choosing({"a": a(6), "b": b(6)}, {"a": stored(5), "b": stored()}))) == ("memory", 6)


def test_a_newer_one_that_not_all_see_is_waited_for_no_longer_than_it_is_worth() -> None:
    looks = {"a": stored(9, age_s=1.0), "b": stored(5)}
    of = choosing({"a": a(6, age_s=6.0), "b": b(6, age_s=6.0)}, looks)
    assert isinstance(next_of(of), Again)
    assert isinstance(next_of(of, now_s=4.9), Again)
    assert step_of(chosen(of, now_s=5.0)) == ("memory", 6)


def test_a_folder_that_cannot_be_read_is_no_reason_to_fail_or_to_wait() -> None:
    found = chosen(choosing({"a": a(6), "b": b(6)}, FolderLook(trouble="input/output error")))
    assert step_of(found) == ("memory", 6)


def test_unless_a_newer_one_is_known_to_be_there() -> None:
    saved = SavedCheckpoint(step=8, uuid="u8", name="step-8", created_unix_s=NOW_UNIX_S - 1.0)
    of = choosing({"a": a(6, age_s=4.0), "b": b(6, age_s=4.0)}, FolderLook(trouble="input/output error"), saved=saved)
    assert isinstance(next_of(of), Again)
    assert step_of(chosen(of, now_s=3.0)) == ("memory", 6)


def test_a_node_that_has_not_answered_is_waited_for() -> None:
    assert isinstance(next_of(choosing({"a": a(6)}, {"a": stored(3), "b": None})), ResumeWait)
    late = choosing({"a": a(6)}, {"a": stored(3), "b": None})
    assert step_of(chosen(late, now_s=ANSWER_S)) == ("storage", 3)


def test_what_storage_cannot_tell_stays_untold_without_memory() -> None:
    of = choosing({"a": a(6)}, FolderLook(trouble="input/output error"))
    assert isinstance(next_of(of, now_s=TROUBLE_S), Nothing), "nothing is thrown away unknowingly"


# --- jobs without a folder


def test_without_a_folder_what_was_lost_is_said_and_the_job_begins_anew() -> None:
    world = msgspec.structs.replace(WORLD, ranks={"a": (0, 1), "spare": (2, 3)})
    found = chosen(choosing({"a": a(6)}, world=world, folder=""))
    assert step_of(found) == ("beginning", None)
    assert passed(found) == [(6, "host-b, which held a part of it, is gone")]


def test_where_nobody_holds_anything_it_is_said_where_the_attempt_before_had_started() -> None:
    last = ResumePoint(source="memory", step=5, uuid="m5", name="memory-0-5")
    found = chosen(choosing({}, world=msgspec.structs.replace(WORLD, last=last), folder=""))
    assert passed(found) == [(5, "no node holds it any more")]


def test_before_anything_was_saved_there_is_nothing_to_say() -> None:
    assert passed(chosen(choosing({}, folder=""))) == []


# --- its words as a resume point


def test_what_a_node_says_it_was_told_is_what_it_was_told() -> None:
    told = point(WORLD, HeldWhole(attempt=1, step=6, created_s=NOW_UNIX_S))
    assert (told.address, told.name) == ("rrck+memory://1/6", "memory-1-6")
    assert point_named(told.name, told.step, told.uuid, told.created_unix_s) == told


def test_a_replay_starts_from_storage_and_rolled_back_code_is_known_by_its_attempts() -> None:
    layout = (
        Placement(node="a", group_rank=0, first_rank=0, nproc=2),
        Placement(node="b", group_rank=1, first_rank=2, nproc=2),
    )
    version = CodeVersion(number=2, tree="t", by="ann")
    state = JobState(phase="opening", attempt=3, layout=layout, versions_run={0: 1, 1: 2, 2: 1})
    state.code = Ledger(
        records=(
            CodeRecord(version=msgspec.structs.replace(version, number=1), fate="trusted"),
            CodeRecord(version=version, fate="rolled_back"),
        )
    )
    world = world_of(state, "run", 3)
    assert world is not None
    assert (world.world_size, dict(world.ranks), world.untrusted) == (4, WORLD.ranks, {1})
    assert world_of(state, "run", 2) is None
    state.phase = "replaying"
    assert world_of(state, "run", 3) is None


# --- whatever nodes say

GENERATIONS = st.builds(
    held,
    st.integers(0, 5),
    attempt=st.integers(0, 2),
    of=st.sampled_from([4, 4, 4, 8]),
).flatmap(
    lambda each: st.sampled_from([(0, 1), (2, 3), (0, 1, 2, 3), (0,), (2,), ()]).map(
        lambda ranks: msgspec.structs.replace(each, ranks=ranks)
    )
)
HELD = st.lists(GENERATIONS, max_size=5).map(tuple)


@given(
    memory=st.fixed_dictionaries({"a": HELD, "b": HELD}),
    steps=st.lists(st.integers(0, 6), max_size=3, unique=True),
    damaged=st.sets(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=3),
    untrusted=st.frozensets(st.integers(0, 2), max_size=1),
)
def test_what_is_chosen_is_held_whole_by_every_node_for_just_its_ranks(
    memory: dict[str, tuple[MemoryGeneration, ...]],
    steps: list[int],
    damaged: set[tuple[int, int]],
    untrusted: frozenset[int],
) -> None:
    avoid = {generation_uuid("run", *each): PassedOver(step=each[1], name="x", why="damaged") for each in damaged}
    of = choosing(memory, stored(*steps), msgspec.structs.replace(WORLD, untrusted=untrusted), avoid=avoid)
    found = chosen(of)

    def is_usable(attempt: int, step: int) -> bool:
        whole = all(
            any(
                (each.attempt, each.step, each.world_size) == (attempt, step, 4) and set(each.ranks) >= set(ranks)
                for each in memory[node]
            )
            for node, ranks in WORLD.ranks.items()
        )
        return whole and (attempt, step) not in damaged and attempt not in untrusted and attempt < 2

    usable = [step for attempt in range(3) for step in range(6) if is_usable(attempt, step)]
    best_stored = max(steps, default=-1)
    if found.memory is not None:
        assert is_usable(found.memory.attempt, found.memory.step)
        assert found.memory.step == max(usable) >= best_stored
        assert not found.memory.elsewhere, "nobody gives anything away here"
    else:
        assert max(usable, default=-1) < best_stored or not usable
        assert step_of(found) == (("storage", best_stored) if steps else ("beginning", None))
    assert (newest(of, WORLD if not untrusted else of.memory or WORLD) is None) == (not usable)


def test_a_past_that_did_not_happen_does_not_count() -> None:
    """Attempt 1 ran elsewhere and began at step 50; what attempt 0 made beyond that is another course of the training."""
    memory = {"a": a(40, 100), "b": b(40, 100)}
    world = msgspec.structs.replace(WORLD, began_at={1: 50})
    found = newest(choosing(memory, world=world), world)
    assert found is not None and found.step == 40
    assert newest(choosing(memory), WORLD).step == 100  # type: ignore[union-attr]
