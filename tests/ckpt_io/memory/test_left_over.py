"""What a keeper holds of nodes that have left: it stays as long as an attempt may start from it, and is given back then.

A node that is lost for good and one that is lost for a moment look the same to the keeper of its copies. So what counts is what
is known here: who sends in this attempt, and whether this node's ranks have saved in it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from keepers import KeeperGround, load, memory_of, save
from other_keepers import linked, push, push_of

from robust_run.ckpt_io.memory import generations
from robust_run.ckpt_io.memory.agent_protocol import Bring, LookInMemory, MemoryLook, Source
from robust_run.ckpt_io.memory.client import MemoryClient
from robust_run.ckpt_io.memory.copies import guests
from robust_run.ckpt_io.memory.copies.guests import GUEST_BUFFERS, Guests
from robust_run.ckpt_io.memory.copies.words import Push
from robust_run.ckpt_io.memory.generations import Holdings

Nodes = Callable[..., KeeperGround]
Ranks = Callable[..., MemoryClient]
PART = b"part" * 1000


def with_copies(held: Guests, step: int, ranks: tuple[int, ...], during: int, attempt: int, first_id: int) -> Guests:
    """Copies of a node's ranks come, whole."""
    for at, rank in enumerate(ranks):
        said: Push = push_of(PART, step, rank, attempt, ranks)
        said = msgspec.structs.replace(said, during=during)
        held = guests.expect(held, said)
        ids = range(first_id + GUEST_BUFFERS * at, first_id + GUEST_BUFFERS * (at + 1))
        held = guests.add(held, rank, len(PART), ids)
        held, counts = guests.came(guests.place(held, ids[0], said, 1), ids[0], 1, is_right=True)
        assert counts
    return held


# --- the rule


def test_where_nobody_sends_any_more_copies_stay_until_no_attempt_can_start_from_them() -> None:
    held = with_copies(Guests(), 7, (2, 3), during=0, attempt=0, first_id=1)
    held = guests.begin_attempt(held, 1, 7)
    assert guests.spare(held, ()) == (), "the attempt starts from them"
    assert guests.spare(held, (), may_forget=True) == (1, 2, 3, 4)
    assert guests.spare(held, (1,), may_forget=True) == (2, 3, 4), "one that is read is left alone"


def test_where_the_node_still_sends_nothing_is_forgotten() -> None:
    held = guests.begin_attempt(with_copies(Guests(), 7, (2, 3), during=0, attempt=0, first_id=1), 1, 7)
    held = guests.expect(held, msgspec.structs.replace(push_of(PART, 8, 2, 1, (2, 3)), during=1))
    assert guests.spare(held, (), may_forget=True) == ()


def test_another_one_that_sends_has_the_place_once_it_has_something_later_here() -> None:
    """In the attempt after, and in the same one: who sent before has another peer, or is gone."""
    for during, attempt in ((1, 1), (0, 0)):
        held = with_copies(Guests(), 7, (2, 3), during=0, attempt=0, first_id=1)
        held = with_copies(held, 7 + attempt, (4,), during, attempt, first_id=5)
        if not attempt:
            assert guests.spare(held, ()) == (2, 4), "of the same step they may be all there is, but for empty buffers"
        held = with_copies(held, 9, (4,), during, attempt, first_id=7)
        assert set(guests.spare(held, ())) >= {1, 2, 3, 4}


# --- real keepers


def buffers_of(keeper: KeeperGround) -> int:
    return len(memory_of(keeper.process.pid))


def test_a_node_that_goes_on_alone_gives_back_the_copies_of_one_that_has_left_and_not_before_it_has_saved(
    node: Nodes, rank_of: Ranks
) -> None:
    keeper = node()
    keeper.begin_attempt(0, (0,), world=2)
    client = rank_of(keeper, 0, 2)
    assert save(client, 6, world=2)
    with linked(keeper) as link:
        assert push(link, PART, push_of(PART, 6, 1, ranks=(1,)))
    keeper.begin_attempt(1, (0,), resumed_step=6, world=1, resumed_attempt=0)
    assert keeper.copies() == [(0, 6, (1,))], "another attempt may start from it, if the node is back by then"
    alone = rank_of(keeper, 0, 1, 1)
    assert save(alone, 7, attempt=1)
    while keeper.copies():
        pass
    assert buffers_of(keeper) == 3, "its own rank's"


def test_parts_that_were_brought_stay_until_the_copies_of_another_node_have_come(node: Nodes, rank_of: Ranks) -> None:
    """Else its loss right after the first save would leave nothing that is whole."""
    lost, keeper, other = node(), node(), node()
    lost.begin_attempt(0, (0, 1))
    assert all(save(rank_of(lost, rank, 2), 5, rank, world=2) for rank in (0, 1))
    lost.look_until(lambda found: (0, 5, (0, 1)) in found)
    sources = tuple(Source(rank, "127.0.0.1", lost.port, "lost") for rank in (0, 1))
    keeper.tell(Bring(attempt=1, from_attempt=0, step=5, sources=sources))
    keeper.begin_attempt(1, (0,), resumed_step=5, world=3, resumed_attempt=0)
    client = rank_of(keeper, 0, 3, 1)
    assert client.fetch(0, 5, 1) is not None and client.fetch(0, 5) is not None
    client.have_read(0, 5, 1)
    client.have_read(0, 5)
    keeper.copy_to(other, attempt=1)
    for step in (6, 7, 8):
        assert save(client, step, attempt=1, world=3)
        assert any(1 in ranks for _, _, ranks in keeper.look()), "the other node may be lost before it has a copy"
    with linked(keeper) as link:
        assert push(link, PART, msgspec.structs.replace(push_of(PART, 8, 2, 1, (2,)), world_size=3))
    assert save(client, 9, attempt=1, world=3)
    keeper.look_until(lambda found: all(1 not in ranks for _, _, ranks in found))
    assert (1, 8, (2,)) in keeper.copies()


def test_copies_that_need_the_room_have_it_before_what_ranks_have_left(node: Nodes, rank_of: Ranks) -> None:
    keeper = node(limit_bytes=7 << 20)
    keeper.begin_attempt(0, (0, 1))
    assert all(save(rank_of(keeper, rank, 2), 5, rank, world=2) for rank in (0, 1))
    keeper.look_until(lambda found: (0, 5, (0, 1)) in found)
    assert buffers_of(keeper) == 6, "of a MiB each"
    keeper.begin_attempt(1, (0,), resumed_step=5, world=2, resumed_attempt=0)
    keeper.copy_to(keeper, attempt=1, name="another, which never sends")
    client = rank_of(keeper, 0, 2, 1)
    with linked(keeper) as link:
        large = push_of(PART, 6, 1, 1, (1,))
        large = msgspec.structs.replace(large, world_size=2, room_bytes=2 << 20)
        assert save(client, 6, attempt=1, world=2)
        keeper.look_until(lambda found: (1, 6, (0,)) in found)
        assert push(link, PART, large)
    assert keeper.copies() == [(1, 6, (1,))]
    assert load(client, 1, 6) is not None


def test_a_look_says_how_much_more_there_is_room_for_and_how_large_parts_are(node: Nodes, rank_of: Ranks) -> None:
    keeper = node(limit_bytes=10 << 20)
    keeper.begin_attempt(0, (0,))
    assert room(keeper) == 10 << 20
    assert save(rank_of(keeper), 1)
    (held,) = keeper.generations()
    assert held.largest_bytes == 1 << 20
    assert room(keeper) == 7 << 20, "three buffers are taken"


def room(keeper: KeeperGround) -> int | None:
    keeper.tell(LookInMemory(number=1000))
    while (look := keeper.next_of(MemoryLook)).number != 1000:
        pass
    return look.room_bytes


# --- what an attempt of another world started from


def test_the_generation_of_another_world_that_an_attempt_started_from_is_not_written_over_before_there_is_another() -> (
    None
):
    """Ranks of the same size as before have their old buffers, and save in them."""
    held = Holdings(attempt=0, world_size=4, ranks=(0, 1))
    for rank in (0, 1):
        held = generations.add(held, rank, 100, range(3 * rank, 3 * rank + 3))
        for step in (2, 3):
            held = saved(held, rank, step)
    held = generations.begin_attempt(held, 1, (0, 1), 2, 3, 0)
    held = saved(saved(held, 0, 4), 0, 5)
    held, chosen = generations.make(held, 0, 6, maker=0, free=range(6))
    assert isinstance(chosen, str), "rank 1 has saved nothing yet"
    assert all(generations.find(held, rank, (0, 3)) for rank in (0, 1))
    held = saved(held, 1, 4)
    held, chosen = generations.make(held, 0, 7, maker=0, free=range(6))
    assert isinstance(chosen, int) and generations.find(held, 0, (0, 3)) is None, "now there is step 4"


def saved(held: Holdings, rank: int, step: int) -> Holdings:
    held, chosen = generations.make(held, rank, step, maker=rank, free=range(6))
    assert isinstance(chosen, int), chosen
    noted = generations.copied(held, chosen, rank, step, 10, 1.0)
    assert noted is not None
    part = next(each.part for each in noted.buffers if each.id == chosen)
    assert part is not None
    return generations.hashed(noted, chosen, part, bytes(16))
