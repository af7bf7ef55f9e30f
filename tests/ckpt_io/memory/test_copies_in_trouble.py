"""Whatever is at the other end, or becomes of it: nothing half counts, nothing that was whole is lost, saving goes on."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import time
from collections.abc import Callable

import msgspec
import pytest
from jobs import wait_for
from keepers import LIMIT_S, KeeperGround, contents, load, memory_of, save
from other_keepers import OURS, linked, other_keeper, parcel_of, push, push_of, send

from robust_run.ckpt_io.errors import CheckpointError
from robust_run.ckpt_io.memory.agent_protocol import AttemptBegins, Bring, Source
from robust_run.ckpt_io.memory.budget import MemoryFacts, rounded
from robust_run.ckpt_io.memory.buffers import Ledger
from robust_run.ckpt_io.memory.client import MemoryClient
from robust_run.ckpt_io.memory.copies.copying import FETCH_AGAIN_S, FETCH_RESTS_S, CopyFailed, Errand, fetch
from robust_run.ckpt_io.memory.copies.greeting import Credentials
from robust_run.ckpt_io.memory.copies.link import Link, LinkLost
from robust_run.ckpt_io.memory.copies.words import Go, Kept, NoRoom, NotHere, Pull, Stale

Nodes = Callable[..., KeeperGround]
Ranks = Callable[..., MemoryClient]
PART = b"part" * 1000


def saves_go_on(keeper: KeeperGround, client: MemoryClient, steps: range, size_bytes: int = 10_000) -> None:
    for step in steps:
        assert save(client, step, size_bytes=size_bytes)
        assert keeper.look()[0] == (0, step, (0,))


def has_buffers(client: MemoryClient) -> None:
    """Copies of others have room after this node's own ranks."""
    assert client.begin(99, 10_000)


def test_one_with_another_key_gets_nothing_and_gives_nothing(node: Nodes, rank_of: Ranks) -> None:
    first, second = node(), node(key=b"x" * 32)
    first.begin_attempt(0, (0,))
    first.copy_to(second)
    client = rank_of(first)
    saves_go_on(first, client, range(1, 6))
    assert "no copies of checkpoints in memory on node-1: it hung up" in first.noted("node-1")
    assert second.copies() == [] and not memory_of(second.process.pid)
    with pytest.raises(LinkLost), linked(first, Credentials(b"y" * 32)):
        pass
    saves_go_on(first, client, range(6, 10))
    assert len(first.notes) == 1, "it is said once"


def test_strangers_cost_nothing_and_keep_no_keeper_out(node: Nodes, rank_of: Ranks) -> None:
    first, second = node(), node()
    first.begin_attempt(0, (0,))
    with contextlib.ExitStack() as stack:
        for number in range(200):
            stranger = stack.enter_context(socket.create_connection(("127.0.0.1", second.port), LIMIT_S))
            with contextlib.suppress(OSError):
                stranger.sendall([b"", b"GET / HTTP/1.1\r\n\r\n", os.urandom(48), b"\xff" * 5000][number % 4])
        before = set(os.listdir(f"/proc/{second.process.pid}/fd"))
        first.copy_to(second)
        client = rank_of(first)
        saves_go_on(first, client, range(1, 4))
        second.copies_until(bool)
        assert len(before) < 60
    assert first.notes == second.notes == []


@pytest.mark.parametrize("sent", [0, 1, 2000, len(PART) - 1])
def test_a_part_that_is_torn_does_not_count_and_the_next_one_does(node: Nodes, sent: int) -> None:
    keeper = node()
    with linked(keeper) as link:
        assert push(link, PART, push_of(PART, 1))
    with linked(keeper) as link:
        link.send(push_of(PART, 2))
        link.receive_one(Go)
        if sent:
            send(link, PART[:sent])
    assert keeper.copies() == [(0, 1, (0,))]
    with linked(keeper) as link:
        assert push(link, PART, push_of(PART, 3))
    assert keeper.copies() == [(0, 3, (0,)), (0, 1, (0,))]


def test_a_part_that_is_not_what_was_said_does_not_count(node: Nodes) -> None:
    keeper = node()
    with linked(keeper) as link:
        link.send(push_of(PART, 1))
        link.receive_one(Go)
        send(link, PART[::-1])
        with pytest.raises(LinkLost):
            link.receive()
    assert keeper.copies() == []


def test_more_than_there_is_room_for_is_refused_and_takes_nothing(node: Nodes) -> None:
    keeper = node(limit_bytes=1 << 20)
    with linked(keeper) as link:
        for size_bytes in (1 << 20, 1 << 40):
            asked = push_of(PART, 1)
            link.send(msgspec.structs.replace(asked, room_bytes=size_bytes))
            assert "too little memory" in link.receive_one(NoRoom).reason
        assert not memory_of(keeper.process.pid)
        assert push(link, PART, push_of(PART, 1)), "a smaller one has room"


def test_a_past_that_did_not_happen_is_neither_kept_nor_taken(node: Nodes, rank_of: Ranks) -> None:
    keeper = node()
    keeper.begin_attempt(0, (5,), world=6)
    has_buffers(rank_of(keeper, 5, 6))
    with linked(keeper) as link:
        assert push(link, PART, push_of(PART, 4)) and push(link, PART, push_of(PART, 8))
        keeper.begin_attempt(1, (5,), resumed_step=4, world=6)
        assert keeper.copies() == [(0, 4, (0,))]
        link.send(push_of(PART, 9))
        assert "did not happen" in link.receive_one(Stale).reason
        link.send(Pull(rank=0, attempt=0, step=8))
        link.receive_one(NotHere)
        has_buffers(rank_of(keeper, 5, 6, 1))
        assert push(link, PART, push_of(PART, 5, attempt=1))
    assert keeper.copies() == [(1, 5, (0,)), (0, 4, (0,))]
    keeper.begin_attempt(2, (5,), world=6)
    assert keeper.copies() == []


def test_a_generation_that_all_ranks_have_is_not_given_up_for_one_that_some_have(node: Nodes) -> None:
    keeper, ranks = node(), (0, 1)
    with linked(keeper) as link:
        for step in (1, 2):
            assert all(push(link, PART, push_of(PART, step, rank, ranks=ranks)) for rank in ranks)
        for step in (3, 4, 5):
            assert push(link, PART, push_of(PART, step, 0, ranks=ranks))
            assert (0, 2, (0, 1)) in keeper.copies()
        larger = PART * 5
        assert push(link, larger, push_of(larger, 6, 0, ranks=ranks))
        assert (0, 2, (0, 1)) in keeper.copies()
        assert push(link, larger, push_of(larger, 6, 1, ranks=ranks))
        assert keeper.copies()[0] == (0, 6, (0, 1))
    assert len(memory_of(keeper.process.pid)) == 4


def test_a_peer_without_room_is_said_once_and_saving_goes_on(node: Nodes, rank_of: Ranks) -> None:
    first, second = node(), node(limit_bytes=1 << 20)
    first.begin_attempt(0, (0,))
    first.copy_to(second)
    client = rank_of(first)
    saves_go_on(first, client, range(1, 12), 2_000_000)
    assert "too little memory for checkpoints of rank 0: 2 buffers" in first.noted("node-1")
    saves_go_on(first, client, range(12, 16), 2_000_000)
    assert len(first.notes) == 1 and second.copies() == []


def test_a_peer_that_takes_nothing_does_not_slow_saves(node: Nodes, rank_of: Ranks) -> None:
    over = threading.Event()

    def stand_still(link: Link) -> None:
        link.receive()
        link.send(Go())
        over.wait(LIMIT_S)

    first = node()
    first.begin_attempt(0, (0,))
    with other_keeper(stand_still) as peer:
        first.tell(peer.order())
        saves_go_on(first, rank_of(first), range(1, 21), 20_000_000)
        over.set()
    assert len(memory_of(first.process.pid)) <= 4, "three buffers, and one that is sent"


def steps_of(keeper: KeeperGround) -> list[int]:
    return [step for _, step, _ in keeper.look()]


def test_what_was_sent_stays_until_more_is_where_copies_take_longer_than_steps(node: Nodes, rank_of: Ranks) -> None:
    """Or the loss of the node that has the copies would leave nothing in common with those that sent it theirs."""
    sent: list[int] = []

    def every_fourth(link: Link) -> None:
        while True:
            sent.append(link.receive(LIMIT_S).step)
            link.send(Kept(stride=4))

    first = node()
    first.begin_attempt(0, (0,))
    client = rank_of(first)
    with other_keeper(every_fourth) as peer:
        assert save(client, 1)
        first.tell(peer.order())
        wait_until(lambda: sent == [1])
        assert save(client, 2)
        wait_until(lambda: len(memory_of(first.process.pid)) == 4)
        for step in range(3, 20):
            assert save(client, step), step
            assert steps_of(first)[0] == step
            wait_until(lambda step=step: step < 4 or step // 4 * 4 in sent)  # type: ignore[misc]
            before, held = sent[-2:], steps_of(first)
            if before == sent[-2:]:
                assert {each for each in before if each >= 4} <= set(held), (step, sent)
        assert {1, 4, 8, 12, 16} <= set(sent)
        last = sent[-2]
        assert load(client, 0, last) == contents(last, 0, 10_000)
        first.begin_attempt(1, (0,), resumed_step=19)
        again = rank_of(first, attempt=1)
        assert save(again, 20, attempt=1)
        wait_until(lambda: len(memory_of(first.process.pid)) == 3)


def test_without_room_for_a_fourth_buffer_saving_goes_on_in_three(node: Nodes, rank_of: Ranks) -> None:
    sent: list[int] = []

    def every_fourth(link: Link) -> None:
        while True:
            sent.append(link.receive(LIMIT_S).step)
            link.send(Kept(stride=4))

    first = node(limit_bytes=3 * rounded(10_000))
    first.begin_attempt(0, (0,))
    with other_keeper(every_fourth) as peer:
        first.tell(peer.order())
        client, step = rank_of(first), 0
        while sum(each % 4 == 0 for each in sent) < 2:  # a busy sender may find some gone
            step += 1
            saves_go_on(first, client, range(step, step + 1))
            assert step < 10_000, sent
    wait_until(lambda: len(memory_of(first.process.pid)) == 3)
    assert first.notes == []


def wait_until(is_so: Callable[[], bool]) -> None:
    give_up_at_s = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < give_up_at_s
        time.sleep(0.01)


def test_a_peer_that_is_killed_costs_one_line_and_another_one_takes_its_place(node: Nodes, rank_of: Ranks) -> None:
    first, second, third = node(), node(), node()
    first.begin_attempt(0, (0,))
    first.copy_to(second)
    client = rank_of(first)
    saves_go_on(first, client, range(1, 3))
    second.copies_until(bool)
    second.kill()
    saves_go_on(first, client, range(3, 9))
    first.noted("no copies of checkpoints in memory on node-1")
    first.copy_to(third, name="node-2")
    third.copies_until(lambda held: bool(held) and held[0][1] >= 8)
    assert len(first.notes) == 1


@pytest.mark.parametrize("sent", [0, 1, 2000])
def test_a_source_that_dies_in_the_middle_is_named(node: Nodes, rank_of: Ranks, sent: int) -> None:
    def die(link: Link) -> None:
        link.receive_one(Pull)
        link.send(parcel_of(PART, 3))
        if sent:
            send(link, PART[:sent])

    keeper = node()
    with other_keeper(die) as source:
        keeper.tell(Bring(attempt=1, from_attempt=0, step=3, sources=(source.source(),)))
        keeper.begin_attempt(1, (0,), resumed_step=3)
        with pytest.raises(CheckpointError, match="node-x did not give its copy: it hung up in the middle of a part"):
            rank_of(keeper, attempt=1).fetch(0, 3)
    assert keeper.look() == [] and not memory_of(keeper.process.pid)


def breaks_off(times: int) -> tuple[Callable[[Link], None], list[int]]:
    """One who hangs up in the middle of a part so often, and then gives all of it; and how far each try came."""
    tries: list[int] = []

    def give(link: Link) -> None:
        link.receive_one(Pull)
        link.send(parcel_of(PART, 3))
        is_torn = len(tries) < times
        tries.append(1000 if is_torn else len(PART))
        send(link, PART[: tries[-1]])
        if is_torn:
            link.cut()

    return give, tries


def test_a_link_that_breaks_once_in_the_middle_of_a_part_is_tried_again_and_the_part_is_whole(
    node: Nodes, rank_of: Ranks
) -> None:
    give, tries = breaks_off(1)
    keeper = node()
    with other_keeper(give) as source:
        keeper.tell(Bring(attempt=1, from_attempt=0, step=3, sources=(source.source(),)))
        keeper.begin_attempt(1, (0,), resumed_step=3)
        part = rank_of(keeper, attempt=1).fetch(0, 3)
        assert part is not None and bytes(part.view[: len(PART)]) == PART
        part.close()
    assert tries == [1000, len(PART)], "it broke off once"
    assert keeper.notes == []
    # What was handed out to the rank is closed a moment after it is sent.
    wait_for(lambda: len(memory_of(keeper.process.pid)) == 1, "what came in part to be freed", LIMIT_S)


def test_a_link_that_stays_broken_is_given_up_after_so_many_tries_and_it_is_said(node: Nodes, rank_of: Ranks) -> None:
    give, tries = breaks_off(1000)
    keeper = node()
    with other_keeper(give) as source:
        keeper.tell(Bring(attempt=1, from_attempt=0, step=3, sources=(source.source(),)))
        keeper.begin_attempt(1, (0,), resumed_step=3)
        with pytest.raises(CheckpointError, match=rf"in the middle of a part \({len(FETCH_RESTS_S) + 1} times\)"):
            rank_of(keeper, attempt=1).fetch(0, 3)
    assert len(tries) == len(FETCH_RESTS_S) + 1
    assert "could not be brought here" in keeper.noted("node-x") and not memory_of(keeper.process.pid)


def test_one_who_says_that_it_does_not_hold_the_part_is_not_asked_again(node: Nodes, rank_of: Ranks) -> None:
    asked: list[int] = []

    def has_not(link: Link) -> None:
        asked.append(link.receive_one(Pull).step)
        link.send(NotHere(reason="it is gone"))

    keeper = node()
    with other_keeper(has_not) as source:
        keeper.tell(Bring(attempt=1, from_attempt=0, step=3, sources=(source.source(),)))
        keeper.begin_attempt(1, (0,), resumed_step=3)
        with pytest.raises(CheckpointError, match=r"did not give its copy: it is gone$"):
            rank_of(keeper, attempt=1).fetch(0, 3)
    assert asked == [3]


def test_a_try_that_comes_too_late_is_not_made() -> None:
    """By the clock that is given: each look at it is most of the limit later."""
    clock = iter(range(0, 1000, int(FETCH_AGAIN_S * 0.7)))
    errand = Errand(Source(0, "127.0.0.1", 1, "node-x"), Pull(rank=0, attempt=0, step=3))
    tries: list[int] = []

    def hang_up(link: Link) -> None:
        tries.append(link.receive_one(Pull).step)

    with other_keeper(hang_up) as source:
        errand.source = source.source()
        with pytest.raises(CopyFailed, match=r"it hung up \(2 times\)"):
            fetch(errand, OURS, Ledger(MemoryFacts, 1 << 30), lambda: float(next(clock)))
    assert len(tries) == 2


def test_what_nobody_waits_for_is_not_tried_again() -> None:
    errand = Errand(Source(0, "127.0.0.1", 1, "node-x"), Pull(rank=0, attempt=0, step=3))

    def hang_up(link: Link) -> None:
        link.receive_one(Pull)
        errand.off.set()

    with other_keeper(hang_up) as source:
        errand.source = source.source()
        with pytest.raises(CopyFailed, match=r"it hung up$"):
            fetch(errand, OURS, Ledger(MemoryFacts, 1 << 30))


def test_a_rank_waits_for_a_part_that_comes_slowly(node: Nodes, rank_of: Ranks) -> None:
    """For longer than the keeper may take for any other answer."""
    go_on = threading.Event()

    def give_slowly(link: Link) -> None:
        link.receive_one(Pull)
        link.send(parcel_of(PART, 3))
        send(link, PART[:100])
        go_on.wait(LIMIT_S)
        send(link, PART[100:])

    keeper = node()
    with other_keeper(give_slowly) as source:
        keeper.tell(Bring(attempt=1, from_attempt=0, step=3, sources=(source.source(),)))
        keeper.begin_attempt(1, (0,), resumed_step=3)
        client = MemoryClient.connect(keeper.folder, rank=0, world_size=1, attempt=1, timeout_s=3.0)
        later = threading.Timer(4.0, go_on.set)
        later.start()
        part = client.fetch(0, 3)
        assert part is not None and bytes(part.view[: len(PART)]) == PART
        part.close()
        client.close()
        later.join()


def test_a_source_that_was_evicted_and_is_slow_is_given_up(node: Nodes, rank_of: Ranks) -> None:
    """As long as some of it comes it would be waited for, else."""
    is_over = threading.Event()

    def give_slowly(link: Link) -> None:
        link.receive_one(Pull)
        link.send(parcel_of(PART, 3))
        for byte in PART:
            if is_over.wait(0.05):
                return
            send(link, bytes((byte,)))

    keeper = node()
    with other_keeper(give_slowly) as other:
        source = msgspec.structs.replace(other.source(), within_s=0.3)
        keeper.tell(Bring(attempt=1, from_attempt=0, step=3, sources=(source,)))
        keeper.begin_attempt(1, (0,), resumed_step=3)
        with pytest.raises(
            CheckpointError, match=f"node-x did not give its copy: [0-9]+ of {len(PART)} bytes came in 0.3 s"
        ):
            rank_of(keeper, attempt=1).fetch(0, 3)
        is_over.set()
    assert keeper.look() == [] and not memory_of(keeper.process.pid)


def test_what_nobody_waits_for_any_more_leaves_nothing(node: Nodes) -> None:
    go_on = threading.Event()

    def give_late(link: Link) -> None:
        link.receive_one(Pull)
        link.send(parcel_of(PART, 3))
        go_on.wait(LIMIT_S)
        send(link, PART)

    keeper = node()
    with other_keeper(give_late) as source:
        keeper.tell(Bring(attempt=1, from_attempt=0, step=3, sources=(source.source(),)))
        keeper.begin_attempt(2, (0,))
        go_on.set()
        while memory_of(keeper.process.pid):
            keeper.look()
    assert keeper.look() == [] and keeper.notes == []


@pytest.mark.parametrize("seed", range(4))
def test_wherever_either_is_killed_what_is_there_is_whole(node: Nodes, rank_of: Ranks, seed: int) -> None:
    """What a third one is told of the two can be fetched from them, and is what was saved."""
    dice = random.Random(seed)
    size_bytes = 5_000_000
    first, second = node(), node()
    first.begin_attempt(0, (0,))
    first.copy_to(second)
    client = rank_of(first)
    for step in range(1, dice.randint(2, 6)):
        assert save(client, step, size_bytes=size_bytes)
    victim, other = (first, second) if dice.random() < 0.5 else (second, first)
    threading.Event().wait(dice.random() * 0.05)
    victim.kill()
    left = [(each.step, each.ranks or each.copies) for each in other.generations()]
    assert left or other is second
    third = node()
    for attempt, (step, ranks) in enumerate(left, 1):
        assert ranks == (0,)
        source = Source(0, "127.0.0.1", other.port, "other")
        third.tell(Bring(attempt=attempt, from_attempt=0, step=step, sources=(source,)))
        third.tell(AttemptBegins(attempt=attempt, ranks=(0,), world_size=1, resumed_step=step))
        third.look()
        assert load(rank_of(third, attempt=attempt), 0, step) == contents(step, 0, size_bytes)
