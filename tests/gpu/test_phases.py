"""What steps consist of, by the events of a real GPU: the slow rank's own time is long, its peer's is not; nothing else changes.

Best effort where two ranks are needed: see `test_nccl`.
"""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from gpu import machine
from gpu.ground import Ranks, TooLongError
from worker_side import load_worker_side

from robust_run.tracer.files import phases
from robust_run.tracer.pace.judge import judge_round
from robust_run.tracer.pace.measure import timed_pace_of

REASON = machine.why_not()
if REASON:
    pytest.skip(REASON, allow_module_level=True)
torch = pytest.importorskip("torch")

pytestmark = pytest.mark.timeout(600)


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def test_the_slow_rank_of_two_is_told_from_the_one_that_waits_for_it(tmp_path: Path) -> None:
    with Ranks(tmp_path, "nccl", fault=("slow", "1", "5"), armed=True) as ranks:
        try:
            ranks.until_steps(40)
        except TooLongError as error:
            pytest.skip(f"two ranks of NCCL do not train on one GPU here: {error}")
        timed = [[one for one in ranks.phases(rank) if one.step > 6] for rank in range(2)]
    waiting, slow = timed
    print(
        [median([one.own_ms for one in rank]) for rank in timed],
        [median([one.waiting_ms for one in rank]) for rank in timed],
    )
    assert median([one.forward_ms for one in slow]) >= 290.0
    assert median([one.own_ms for one in waiting]) < 150.0
    assert median([one.waiting_ms for one in waiting]) > 150.0
    paces = [
        pace for rank in range(2) if (pace := timed_pace_of(timed[rank], rank=rank, node=f"n{rank}", round_s=60.0))
    ]
    hosts = [ranks_of_host(pace.rank) for pace in paces]
    result = judge_round(hosts, [], [], began_s=0.0, ended_s=60.0, timed=paces)
    assert result.timed and [one.rank for one in result.suspects] == [1]


def ranks_of_host(rank: int):  # calls return at once: the host sees one and the same time on all ranks
    from robust_run.tracer.pace.types import RankPace

    return RankPace(rank, f"n{rank}", 7, (330.0,) * 30, (330.0,) * 30)


def test_weights_are_the_same_bit_for_bit(tmp_path: Path) -> None:
    digests = set()
    for armed in (False, True):
        with Ranks(tmp_path / str(armed), "nccl", count=1, steps=20, armed=armed) as ranks:
            digests |= set(ranks.until_done())
            assert not armed or len(ranks.phases(0)) >= 15
    assert len(digests) == 1 and "" not in digests


def test_steps_are_timed_around_a_captured_graph_and_what_that_costs_is_said(tmp_path: Path) -> None:
    path = str(tmp_path / "steps.phases")
    phases.create(path)
    x = torch.randn(256, 256, device="cuda", requires_grad=True)
    library = SimpleNamespace(ProcessGroup=type("G", (), {}), Work=type("W", (), {"wait": lambda _: True}))
    hooks = SimpleNamespace(library=library, replace=lambda _: None, timed=[], reduced=[])
    worker = load_worker_side()
    end_step = worker.load("phases").begin(path, hooks, torch)
    backward = worker.load("backward").Passes(hooks, lambda: False).backward(torch.autograd.backward)
    timer = end_step.__self__
    end_step()
    for step in range(2, 60):
        if step == 20:
            graph = torch.cuda.CUDAGraph()
            side = torch.cuda.Stream()
            with torch.cuda.graph(graph, stream=side):
                y = x.detach() * 2
            del y
        torch.cuda._sleep(2_000_000)
        began_ns = time.perf_counter_ns()
        backward((x @ x).sum())
        end_step()
        if step == 59:
            print(f"the end of a step took {(time.perf_counter_ns() - began_ns) / 1e3:.0f} us with its backward pass")
    torch.cuda.synchronize()
    for _ in range(40):
        end_step()
    found = [one for one in phases.read(path) if one.step < 60]
    print(
        f"a mark takes {timer.mark_ns / 1e3:.1f} us; {timer.made} events were made; one in {timer.stride} steps was timed"
    )
    assert len(found) >= 30 and not worker.said
    assert all(one.forward_ms > 0.2 and one.backward_ms > 0.0 for one in found[5:])
