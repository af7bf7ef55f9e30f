"""Who waits for whom, over ranks and hosts to what is waited for in the end: one line."""

from __future__ import annotations

import msgspec
import pytest
from tracer.verdict.looking import settled

from robust_run.tracer.types import Scene
from robust_run.tracer.verdict import RankPatience, chains, describe_waits, look
from robust_run.tracer.wake.types import DescriptorReading, SocketReading, ThreadReading, WakeReading
from robust_run.tracer.words import SENTENCE_CHARACTERS
from tests.tracer.verdict.scenes import Call, World, seen_as
from tests.tracer.wake import readings
from tests.tracer.wake.readings import reading, thread, time_at

STUCK = Call("stuck")
ALL = Call("collective", op="all_reduce")


def recv(peer: int, group: str = "0") -> Call:
    return Call("recv", group, peer=peer)


def scene(*programs: list[Call], per_node: int = 64, **groups: tuple[int, ...]) -> Scene:
    """Return what is seen of ranks with these programs 6 s after they got stuck."""
    table = {
        "0": (tuple(range(len(programs))), "default_pg"),
        **{name: (ranks, name) for name, ranks in groups.items()},
    }
    return World(table, list(programs), per_node=per_node).run().scene()


def read(seen: Scene, **wakes: WakeReading) -> Scene:
    """Return the scene with what was read of ranks: `r0=...`."""
    sights = list(seen.ranks)
    for name, wake in wakes.items():
        sights[int(name[1:])] = msgspec.structs.replace(sights[int(name[1:])], wake=wake)
    return msgspec.structs.replace(seen, ranks=tuple(sights))


def socket(here: str, there: str, *, quiet_s: float | None = 12.0, inode: int = 7) -> SocketReading:
    return SocketReading(
        inode=inode, kind="tcp", here=here, there=there, is_listening=not there, received_bytes=9, quiet_s=quiet_s
    )


def awaits(one: SocketReading, call: str = "recvfrom") -> WakeReading:
    """A rank whose main thread waits for data on a connection."""
    link = DescriptorReading(fd=3, target=f"socket:[{one.inode}]", kind="socket")
    return reading(readings.process(thread(call, 3), descriptors=(link,)), sockets=(one,))


def curl(one: SocketReading) -> WakeReading:
    """A rank that waits for a curl that waits for data."""
    link = DescriptorReading(fd=3, target=f"socket:[{one.inode}]", kind="socket")
    child = readings.process(thread("recvfrom", 3, tid=200), pid=200, parent=100, command="curl", descriptors=(link,))
    return reading(readings.process(thread("wait4", 200), children=(200,)), child, sockets=(one,))


def sleeps(seconds: float) -> ThreadReading:
    return thread("nanosleep", 64, at0=time_at(seconds))


def lines(seen: Scene) -> list[str]:
    return chains(seen).lines


SERVICE = socket("10.0.0.1:5000", "10.9.9.9:443")


def test_all_wait_for_one_and_that_for_a_service() -> None:
    seen = read(scene([STUCK], *[[ALL] for _ in range(7)], per_node=4), r0=curl(SERVICE))
    assert lines(seen) == [
        "rank 0 has been waited for in all_reduce #1 of the world for 6.0 s: "
        "ranks 1-7 ← rank 0 (gpu-00, data.py:88 get) ← pid 200 curl ← 10.9.9.9:443, no byte for 12 s"
    ]
    (chain,) = chains(seen).drawn
    assert (chain.ranks, chain.waiters, chain.is_circle) == ((0,), tuple(range(1, 8)), False)
    assert chain.since_s == pytest.approx(6.0)


def test_it_is_in_the_verdict_and_first_in_what_why_prints() -> None:
    seen = read(scene([STUCK], [ALL], [ALL]), r0=curl(SERVICE))
    found = look(seen, RankPatience(after_s=5.0)).verdict
    assert found is not None
    assert found.evidence[0] == describe_waits(seen)[0] == lines(seen)[0]


def test_of_one_host_no_host_is_named() -> None:
    (line,) = lines(scene([STUCK], [ALL]))
    assert line.endswith(": rank 1 ← rank 0 (data.py:88 get)"), "and without a reading it ends at the rank"


def test_a_pipeline_is_followed_from_stage_to_stage() -> None:
    (line,) = lines(read(scene([STUCK], [recv(0)], [recv(1)], [recv(2)]), r0=reading(readings.process(sleeps(9)))))
    assert line == (
        "rank 0 has been waited for in recv #1 from rank 0 for 6.0 s: "
        "rank 3 ← rank 2 ← rank 1 ← rank 0 (data.py:88 get) sleeps for at most 9.0 s more"
    )


def test_waits_in_other_groups_and_for_peers_are_one_chain() -> None:
    tensor = Call("collective", "tp", "all_reduce")
    (line,) = lines(scene([STUCK], [tensor], [recv(1)], [recv(1)], tp=(0, 1)))
    assert line.endswith(": ranks 2-3 ← rank 1 ← rank 0 (data.py:88 get)")


def test_a_long_chain_is_cut_in_the_middle() -> None:
    (line,) = lines(scene([STUCK], *[[recv(rank)] for rank in range(99)], per_node=128))
    assert line.endswith(": rank 99 ← rank 98 ← ... 95 more ... ← rank 2 ← rank 1 ← rank 0 (data.py:88 get)")


def test_two_that_are_alike_are_one_end_and_others_have_a_line_each() -> None:
    seen = scene([STUCK], [STUCK], [ALL], [ALL])
    assert [line.partition(": ")[2] for line in lines(seen)] == ["ranks 2-3 ← ranks 0-1 (data.py:88 get)"]
    seen = read(seen, r0=curl(SERVICE), r1=reading(readings.process(sleeps(9))))
    assert [line.partition(": ")[2] for line in lines(seen)] == [
        "ranks 2-3 ← rank 0 (data.py:88 get) ← pid 200 curl ← 10.9.9.9:443, no byte for 12 s",
        "ranks 2-3 ← rank 1 (data.py:88 get) sleeps for at most 9.0 s more",
    ]
    other = socket("10.0.0.1:5001", "10.9.9.9:443", quiet_s=90.0)
    seen = read(seen, r0=curl(SERVICE), r1=curl(other))
    assert [line.partition(": ")[2] for line in lines(seen)] == [
        "ranks 2-3 ← ranks 0-1 (data.py:88 get) ← of rank 0: pid 200 curl ← 10.9.9.9:443, no byte for 12 s"
    ]


def test_of_many_ends_the_first_are_drawn_and_the_others_counted() -> None:
    groups = {f"g{first}": (first, first + 1) for first in range(0, 20, 2)}
    programs = [[STUCK] if rank % 2 == 0 else [Call("collective", f"g{rank - 1}", "barrier")] for rank in range(20)]
    found = chains(scene(*programs, **groups))
    assert len(found.drawn) == 4
    assert found.left_out == (8, 10, 12, 14, 16, 18)
    assert found.lines[-1] == "6 more ranks are waited for (8,10,12,14,...)"


def test_a_circle_ends_where_it_begins() -> None:
    seen = scene([recv(1)], [recv(0)], [ALL], per_node=1)
    assert lines(seen) == [
        "ranks 0 and 1 have been waiting for each other for 6.0 s: rank 0 (gpu-00, in recv #1 from rank 1) ← "
        "rank 1 (gpu-01, in recv #1 from rank 0) ← rank 0 (rank 2 waits for them)"
    ]
    (chain,) = chains(seen).drawn
    assert (chain.ranks, chain.waiters, chain.is_circle) == ((0, 1), (2,), True)
    found = settled(seen, RankPatience(after_s=5.0))
    assert found is not None
    later = msgspec.structs.replace(seen, at_s=seen.at_s + 2.5)
    assert lines(later)[0] in found.evidence


def test_a_circle_of_groups_is_drawn_by_its_parts_and_a_long_one_is_cut() -> None:
    one, other = Call("collective", "a", "all_reduce"), Call("collective", "b", "all_reduce")
    seen = scene([one], [one], [other], [other], a=(0, 1, 2, 3), b=(0, 1, 2, 3))
    (line,) = lines(seen)
    assert line.endswith(
        ": ranks 0-1 (in all_reduce #1 of group a) ← ranks 2-3 (in all_reduce #1 of group b) ← ranks 0-1"
    )
    (line,) = lines(scene(*[[recv((rank + 1) % 50)] for rank in range(50)]))
    assert line == (
        "50 ranks (0-49) have been waiting for each other for 6.0 s: "
        "rank 0 ← rank 1 ← ... 46 more ... ← rank 48 ← rank 49 ← rank 0"
    )


def test_a_rank_that_was_stopped_where_all_have_come_holds_up_the_others() -> None:
    seen = seen_as(World({"0": ((0, 1, 2), "")}, [[ALL]] * 3, frozen={1}).run().scene(), 1, state="T", stopped_by=19)
    found = settled(seen, RankPatience(after_s=5.0))
    assert found is not None
    (line,) = [line for line in found.evidence if "←" in line]
    assert line.endswith(" is stopped ← a SIGCONT")
    assert ": ranks 0,2 ← rank 1 (" in line


def test_who_has_ended_or_is_on_a_silent_node_is_said() -> None:
    (line,) = lines(scene([Call("exit")], [ALL]))
    assert line.endswith("rank 1 ← rank 0 has ended with exit code 0")
    seen = scene([STUCK], [ALL], per_node=1)
    seen = msgspec.structs.replace(seen, ranks=seen.ranks[1:], silent_nodes=("gpu-00",))
    assert lines(seen)[0].endswith("rank 1 ← rank 0 on a node that does not answer")


def test_where_nobody_waits_there_is_no_chain() -> None:
    assert lines(scene([STUCK], [STUCK])) == []


def test_of_a_lock_its_threads_are_named_and_not_what_an_idle_one_listens_to() -> None:
    link = DescriptorReading(fd=3, target="socket:[7]", kind="socket", access="rw")
    loop = DescriptorReading(fd=4, target="anon_inode:[eventpoll]", kind="other", watched=((3, "r"), (5, "r")))
    listens = thread("epoll_wait", 4, 0, 8, 10_000, tid=101)
    rank = readings.process(thread("futex", 64, 0x80), listens, descriptors=(link, loop))
    (line,) = lines(read(scene([STUCK], [ALL]), r0=reading(rank, sockets=(SERVICE,))))
    assert line.endswith("rank 1 ← rank 0 (data.py:88 get) waits for the other thread")


# -- connections to ranks of the job

HERE, THERE = "10.0.0.1:5000", "10.0.0.2:6000"


def test_a_connection_to_another_rank_is_followed_there() -> None:
    seen = scene([STUCK], [STUCK], [ALL], per_node=1)
    seen = read(seen, r0=awaits(socket(HERE, THERE)), r1=curl(SERVICE))
    other = msgspec.structs.replace(seen.ranks[1].wake, sockets=(SERVICE, socket(THERE, HERE, inode=8)))
    (first, *_) = lines(read(seen, r1=other))
    assert first.endswith(
        "rank 2 ← rank 0 (gpu-00, data.py:88 get) ← rank 1 (gpu-01) at 10.0.0.2:6000, no byte for 12 s ← "
        "pid 200 curl ← 10.9.9.9:443, no byte for 12 s"
    )


def test_ranks_that_wait_for_each_others_data_end_where_they_began() -> None:
    seen = read(
        scene([STUCK], [STUCK], [ALL], per_node=1), r0=awaits(socket(HERE, THERE)), r1=awaits(socket(THERE, HERE))
    )
    assert lines(seen)[0].endswith(
        "rank 0 (gpu-00, data.py:88 get) ← rank 1 (gpu-01) at 10.0.0.2:6000, no byte for 12 s ← "
        "rank 0 (gpu-00) at 10.0.0.1:5000, no byte for 12 s"
    )


def test_a_rank_that_waits_in_a_call_for_the_one_it_should_answer() -> None:
    seen = read(scene([STUCK], [recv(0)], per_node=1), r0=awaits(socket(HERE, THERE)))
    listens = reading(readings.process(thread("accept4", 3)), sockets=(socket("0.0.0.0:6000", ""),))
    seen = read(seen, r1=listens)
    assert " ← 10.0.0.2:6000, no byte" in lines(seen)[0], "whose address that is, nobody knows"
    sights = tuple(msgspec.structs.replace(one, address=f"10.0.0.{one.rank + 1}") for one in seen.ranks)
    seen = msgspec.structs.replace(seen, ranks=sights)
    assert lines(seen)[0].endswith(
        "rank 1 ← rank 0 (gpu-00, data.py:88 get) ← rank 1 (gpu-01) at 10.0.0.2:6000, no byte for 12 s ← rank 0"
    )


def test_of_an_address_of_the_job_at_least_the_host_is_named() -> None:
    seen = read(scene([STUCK], [ALL], per_node=1), r0=awaits(socket(HERE, THERE)))
    sights = tuple(msgspec.structs.replace(one, address=f"10.0.0.{one.rank + 1}") for one in seen.ranks)
    (line,) = lines(msgspec.structs.replace(seen, ranks=sights))
    assert line.endswith(" ← 10.0.0.2:6000 on gpu-01, no byte for 12 s")


def test_an_address_inside_each_machine_says_nothing_about_another() -> None:
    ours, theirs = socket("127.0.0.1:5000", "127.0.0.1:6000"), socket("127.0.0.1:6000", "127.0.0.1:5000")
    apart = read(scene([STUCK], [STUCK], [ALL], per_node=1), r0=awaits(ours), r1=awaits(theirs))
    assert lines(apart)[0].endswith(" ← 127.0.0.1:6000, no byte for 12 s")
    beside = read(scene([STUCK], [STUCK], [ALL]), r0=awaits(ours), r1=awaits(theirs))
    assert " ← rank 1 at 127.0.0.1:6000, no byte for 12 s ← rank 0 at " in lines(beside)[0]


# -- limits


def test_no_line_is_longer_than_people_read_and_the_end_of_it_stays() -> None:
    name = "a_program_with_a_name_that_goes_on_and_on_and_on_and_on.py"
    family = [
        readings.process(thread("wait4", pid + 1, tid=pid), pid=pid, children=(pid + 1,), command=name)
        for pid in range(100, 107)
    ]
    link = DescriptorReading(fd=3, target="socket:[7]", kind="socket")
    last = readings.process(thread("recvfrom", 3, tid=107), pid=107, command=name, descriptors=(link,))
    (line,) = lines(read(scene([STUCK], [ALL]), r0=reading(*family, last, sockets=(SERVICE,))))
    assert len(line) <= SENTENCE_CHARACTERS
    assert line.endswith("more ... ← 10.9.9.9:443, no byte for 12 s")


def test_four_thousand_ranks_are_one_line() -> None:
    seen = read(scene([STUCK], *[[ALL] for _ in range(4095)], per_node=8), r0=curl(SERVICE))
    (line,) = lines(seen)
    assert "ranks 1-4095 ← rank 0 (gpu-00, data.py:88 get) ← pid 200 curl" in line


def test_of_four_thousand_that_are_missing_all_are_told() -> None:
    found = chains(scene(*[[STUCK] for _ in range(4095)], [ALL], per_node=8))
    (chain,) = found.drawn
    assert chain.line.endswith(": rank 4095 ← ranks 0-63 (8 nodes, data.py:88 get)")
    assert found.lines[-1] == "4031 more ranks are waited for (64-4094)"
