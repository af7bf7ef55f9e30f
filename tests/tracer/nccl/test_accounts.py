"""What the plugin adds up, and what a rank did between two readings of that."""

from __future__ import annotations

import time

import pytest
from tracer.nccl.playing import Rank, StartRank
from tracer.nccl.test_plugin import ALL_GATHER, MAKE_COMM, OP, RECV, SEND, proxy_op, step_up_to, steps

from robust_run.tracer.nccl.accounts import Accounts, FlowAccount, work_between
from robust_run.tracer.nccl.types import Communicator
from robust_run.tracer.plugin import reader

#: Longer than any tick of a kernel.
TICK_S = 0.03


def accounts(rank: Rank, now_s: float | None = None) -> Accounts:
    found = reader.accounts(rank.path, time.monotonic() if now_s is None else now_s)
    assert found is not None
    return found


WHERE = {
    "its GPU has not filled it": (True, [SEND["gpu_wait"]], 0),
    "the receiver has posted nothing": (True, [SEND["gpu_wait"], SEND["peer_wait"]], 1),
    "it is under way": (True, list(SEND.values()), 2),
    "it has not come": (False, [RECV["recv_wait"]], 0),
    "it is not flushed": (False, [RECV["recv_wait"], RECV["flush_wait"]], 1),
    "its GPU does not consume it": (False, list(RECV.values()), 2),
}


@pytest.mark.parametrize("where", WHERE)
def test_time_is_added_up_where_a_step_spends_it(start_rank: StartRank, where: str) -> None:
    sends, states, rung = WHERE[where]
    rank = start_rank(6)
    rank.play(MAKE_COMM, ALL_GATHER, proxy_op(sends=sends), step_up_to(0, states))
    time.sleep(TICK_S)
    rank.play(steps(1, 2, sends=sends))  # an event: until here it has been added up
    (account,) = accounts(rank).flows.values()
    assert [spent_s > 0 for spent_s in account.spent_s] == [place == rung for place in range(3)]
    assert (account.working_s > 0) == (rung == 2)
    later = account.until(account.weighed_s + 100.0)  # and what waits goes on waiting
    assert later.spent_s[rung] == pytest.approx(account.spent_s[rung] + 100.0)
    assert later.working_s == pytest.approx(account.working_s + (100.0 if rung == 2 else 0.0))


def test_nothing_is_added_up_while_nothing_is_in_flight(start_rank: StartRank) -> None:
    rank = start_rank(6)
    rank.play(MAKE_COMM, ALL_GATHER, proxy_op(), steps(0, 8), f"stop {OP}")
    before = accounts(rank)
    time.sleep(TICK_S)
    rank.play(proxy_op(), steps(0, 8), f"stop {OP}")
    now = accounts(rank)
    work = work_between(before, now, rank=5, node="a")
    assert work is not None
    (flow,) = work.flows
    assert flow.steps == 8
    assert flow.first_s + flow.second_s + flow.third_s < TICK_S * 8
    assert work.comms[0].ops == 1


def test_a_proxy_thread_that_does_not_run_has_work_and_does_none(start_rank: StartRank) -> None:
    rank = start_rank(6)
    rank.play(MAKE_COMM, ALL_GATHER, proxy_op())
    time.sleep(0.2)  # the driver, which is the proxy thread here, waits for its next command
    rank.play(f"stop {OP}")
    found = accounts(rank)
    assert found.busy_s >= 0.2
    assert 0 < found.ran_s < found.busy_s / 2


# ---- between two readings
COMM = Communicator(serial=1, hash=77, name="dp", rank=0, ranks=2, nodes=2, opened_s=0.0, closed_s=None)


def reading(at_s: float, pid: int = 9, comm: Communicator = COMM, **flows: FlowAccount) -> Accounts:
    places = {(1, int(name[1:]), 1, "send"): account for name, account in flows.items()}
    return Accounts(at_s, pid, at_s / 2, at_s / 4, (comm,), places)  # type: ignore[arg-type]


def flow(done: int, third_s: float, at_s: float, gap: int = 0, closed: int = 1) -> FlowAccount:
    return FlowAccount(0, done, done * 10, closed, (0.0, 0.0, third_s), third_s, at_s, (0, 0, gap))


def test_channels_are_one_flow_and_both_readings_count_until_they_were_taken() -> None:
    before = reading(10.0, c0=flow(5, 1.0, 9.0, gap=2))  # 2 more step-seconds, that the plugin has not added up yet
    now = reading(20.0, c0=flow(8, 6.0, 20.0, closed=3), c1=flow(4, 2.0, 20.0, closed=2))
    work = work_between(before, now, rank=3, node="n")
    assert work is not None
    (found,) = work.flows
    assert (found.steps, found.bytes, found.channels, found.third_s, found.working_s) == (7, 70, 2, 5.0, 6.0)
    assert (work.length_s, work.proxy_busy_s, work.proxy_ran_s, work.comms[0].ops) == (10.0, 5.0, 2.5, 2)


def test_readings_of_two_processes_and_of_closed_communicators_say_nothing() -> None:
    before, now = reading(10.0, c0=flow(5, 1.0, 10.0)), reading(20.0, c0=flow(8, 1.0, 20.0))
    assert work_between(before, now._replace(pid=10), rank=3, node="n") is None
    assert work_between(now, now, rank=3, node="n") is None
    closed = reading(20.0, comm=_closed(), c0=flow(8, 1, 20))
    assert work_between(before, closed, rank=3, node="n") is None


def _closed() -> Communicator:
    return Communicator(serial=1, hash=77, name="dp", rank=0, ranks=2, nodes=2, opened_s=0.0, closed_s=15.0)


def test_nonsense_in_a_file_gives_numbers_that_fit_a_message() -> None:
    before = reading(10.0, c0=flow(5, 9e30, 10.0))
    now = reading(20.0, c0=flow(8, 1.0, 20.0))._replace(busy_s=-1e30)
    work = work_between(before, now, rank=3, node="n")
    assert work is not None
    assert (work.flows[0].third_s, work.proxy_busy_s) == (0.0, 0.0)
