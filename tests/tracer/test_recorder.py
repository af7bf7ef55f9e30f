"""What a worker's ring says about its calls: of a torch made of a few lines, and of the real one."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_groups import Backend, FakeTorch, Tensor

from robust_run.tracer.files import phases, ring, steps
from robust_run.tracer.files.arming import arm_environment
from robust_run.tracer.files.ring_format import (
    DOUBTS,
    FOREIGN,
    FORKED,
    LIMITED,
    REBORN,
    SERVING,
    SURVIVED,
    TABLE_BYTES,
    TABLE_BYTES_CELL,
)
from robust_run.tracer.native.build import Recorder
from robust_run.tracer.types import Op


@pytest.fixture(params=["in Python", "in C"])
def torch(request: pytest.FixtureRequest, tmp_path: Path) -> FakeTorch:
    native = request.getfixturevalue("recorder_in_c") if request.param == "in C" else ""
    return FakeTorch(tmp_path / "steps.ring", native)


def said(op: Op) -> tuple[str, int, str, int, str, int]:
    return op.op, op.seq, op.state, op.numel, op.dtype, op.peer


def test_a_call_is_issued_until_it_has_been_waited_for(torch: FakeTorch) -> None:
    work = torch.group.allreduce([Tensor(5)])
    assert [said(op) for op in torch.ops] == [("all_reduce", 1, "issued", 5, "float32", -1)]
    assert work.wait() is True
    (op,) = torch.ops
    assert op.state == "done"
    assert op.waiting_at_s is not None
    assert op.done_at_s is not None
    assert op.at_s <= op.waiting_at_s <= op.done_at_s
    assert "test_recorder.py" in op.site


def test_the_header_shows_a_wait_while_it_goes_on(torch: FakeTorch) -> None:
    seen = []
    torch.group.allreduce([Tensor(1)])
    work = torch.group.allreduce([Tensor(2)])
    work.action = lambda: seen.append((torch.header, torch.ops[-1].state))
    before = torch.header
    work.wait()
    header, state = seen[0]
    assert (header.waiting_index, state) == (1, "waiting")
    assert header.waiting_since_s is not None
    assert header.events > before.events
    assert torch.header.waiting_since_s is None
    assert torch.header.blocked_s > before.blocked_s


def test_a_call_that_does_not_return_counts_as_a_wait(torch: FakeTorch) -> None:
    seen = []
    torch.ProcessGroup.action = staticmethod(lambda: seen.append(torch.header))
    torch.group.allreduce([Tensor(1)])
    assert (seen[0].waiting_index, seen[0].waiting_since_s is not None) == (0, True)
    assert torch.header.waiting_since_s is None


def test_roots_and_peers_are_global_ranks_and_peers_have_their_own_numbers(torch: FakeTorch) -> None:
    group, options, tensor = torch.group, SimpleNamespace(rootRank=1), Tensor(4, "torch.int64")
    group.broadcast([tensor], options)
    group.scatter([tensor], [], options)
    group.gather([], [tensor], 0)
    group.send([tensor], 1, 0)
    group.recv([tensor], 1, 0)
    group.send([tensor], 1, 0)
    group.alltoall_base(tensor, tensor, [], [], None)
    group.alltoall_base(tensor, tensor, [1, 3], [2, 2], None)
    assert [said(op) for op in torch.ops] == [
        ("broadcast", 1, "issued", 4, "int64", 7),
        ("scatter", 2, "issued", 4, "int64", 7),
        ("gather", 3, "issued", 4, "int64", 3),
        ("send", 1, "issued", 4, "int64", 7),
        ("recv", 1, "issued", 4, "int64", 7),
        ("send", 2, "issued", 4, "int64", 7),
        ("all_to_all", 4, "issued", 4, "int64", -1),
        ("all_to_all", 5, "issued", -1, "int64", -1),
    ]
    assert torch.trace.groups[0].ranks == (3, 7)


def test_what_the_program_raises_passes_and_the_call_has_failed(torch: FakeTorch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    work = torch.group.allreduce([Tensor(1)])
    work.action = interrupt
    with pytest.raises(KeyboardInterrupt):
        work.wait()
    torch.ProcessGroup.action = staticmethod(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        torch.group.allreduce([Tensor(1)])
    assert [op.state for op in torch.ops] == ["failed", "failed"]
    assert torch.header.waiting_since_s is None


def test_arguments_that_make_no_sense_are_torchs_to_refuse(torch: FakeTorch) -> None:
    torch.group.allreduce("not tensors")
    torch.group.send()
    assert [(op.op, op.numel) for op in torch.ops] == [("all_reduce", -1), ("send", -1)]


def test_an_error_of_ours_ends_the_recording_and_nothing_else(torch: FakeTorch) -> None:
    work = torch.group.allreduce([Tensor(1)])
    torch.hooks.known[id(torch.group)] = None, None
    assert torch.group.allreduce([Tensor(1)]).wait() is True
    assert work.wait() is True
    assert torch.distributed.init_process_group() == "made"
    assert [type(error) for error in torch.errors] == [AttributeError]
    assert torch.header.given_up
    assert torch.header.ops == 1


def test_the_oldest_of_several_waits_is_shown(torch: FakeTorch) -> None:
    first, second = threading.Event(), threading.Event()

    def wait_on(event: threading.Event) -> threading.Thread:
        work = torch.group.allreduce([Tensor(1)])
        entered = threading.Event()
        work.action = lambda: (entered.set(), event.wait(30))
        thread = threading.Thread(target=work.wait)
        thread.start()
        assert entered.wait(30)
        return thread

    older, newer = wait_on(first), wait_on(second)
    assert torch.header.waiting_index == 0
    torch.group.allreduce([Tensor(1)]).wait()
    assert torch.header.waiting_index == 0
    first.set()
    older.join(30)
    assert torch.header.waiting_index == 1
    second.set()
    newer.join(30)
    assert torch.header.waiting_since_s is None
    assert [op.state for op in torch.ops] == ["done"] * 3


def test_waits_of_other_threads_do_not_count_as_blocked(torch: FakeTorch) -> None:
    work = torch.group.allreduce([Tensor(1)])
    work.action = lambda: time.sleep(0.001)
    thread = threading.Thread(target=work.wait)
    thread.start()
    thread.join(30)
    assert torch.header.blocked_s == 0


def test_many_threads_leave_a_clean_header(torch: FakeTorch) -> None:
    def talk() -> None:
        for _ in range(300):
            torch.group.allreduce([Tensor(1)]).wait()

    threads = [threading.Thread(target=talk) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert torch.header.waiting_since_s is None
    assert {op.state for op in torch.ops} == {"done"}
    assert sorted(op.seq for op in torch.ops) == list(range(1, 1201))


def test_coalesced_calls_are_done_with_the_work_that_ends_them(torch: FakeTorch) -> None:
    torch.group._start_coalescing("cpu")
    for _ in range(2):
        torch.group.allreduce([Tensor(1)])
    work = torch.group._end_coalescing("cpu")
    assert [op.state for op in torch.ops] == ["issued", "issued"]
    work.wait()
    assert [op.state for op in torch.ops] == ["done", "done"]


def test_a_work_that_is_polled_is_done_when_it_says_so(torch: FakeTorch) -> None:
    assert torch.group.allreduce([Tensor(1)]).is_completed()
    assert torch.ops[0].state == "done"


def test_works_that_nobody_waits_for_are_forgotten(torch: FakeTorch) -> None:
    works = [torch.group.allreduce([Tensor(1)]) for _ in range(10_000)]
    works[-1].wait()
    works[0].wait()
    assert [op.state for op in torch.ops].count("done") == 1


def test_calls_that_an_exception_left_coalesced_are_not_gathered_for_ever(torch: FakeTorch) -> None:
    torch.group._start_coalescing("cpu")
    for _ in range(5000):
        torch.group.allreduce([Tensor(1)]).wait()
    assert not torch.hooks.gathered


def test_of_a_group_that_is_gone_its_ranks_are_let_go(torch: FakeTorch) -> None:
    """There may be 10,000, and a group for each evaluation."""
    entry = torch.hooks.group_of(torch.group)
    assert entry.ranks
    torch.hooks.lives.gone(id(torch.group))
    assert not entry.ranks
    assert torch.hooks.group_of(torch.group) is entry, "of the same name it is the same"
    assert entry.ranks


def test_making_and_ending_groups_is_recorded_where_all_ranks_must_do_it(torch: FakeTorch) -> None:
    distributed = torch.distributed
    assert distributed.init_process_group() == "made"
    distributed.new_group([0, 1])
    distributed.new_group([0, 1], use_local_synchronization=True)
    distributed.destroy_process_group(object())
    distributed.destroy_process_group()
    assert [(op.group, op.op, op.seq, op.state) for op in torch.ops] == [
        ("(world)", "init_process_group", 1, "done"),
        ("(world)", "new_group", 2, "done"),
        ("(world)", "destroy_process_group", 3, "done"),
    ]
    assert torch.served == [None]
    assert torch.inits == 1


def test_nothing_speaks_against_a_program_as_most_are(torch: FakeTorch) -> None:
    torch.distributed.init_process_group()
    torch.group.allreduce([Tensor(1)]).wait()
    torch.distributed.destroy_process_group()
    assert torch.trace.doubts == ()


def test_a_group_that_is_made_is_listed_before_it_is_used(torch: FakeTorch) -> None:
    torch.distributed.init_process_group()
    assert [group.ranks for group in torch.trace.groups if group.name == "7"] == [(3, 7)]


def test_who_has_another_number_in_torch_is_in_doubt(torch: FakeTorch) -> None:
    torch.group.number = 1  # the launcher's rank 3 is rank 7 in torch
    torch.distributed.init_process_group()
    assert torch.trace.doubts == (DOUBTS[FOREIGN],)


def test_who_gives_a_call_less_time_than_its_group_has_is_in_doubt(torch: FakeTorch) -> None:
    torch.group.monitored_barrier(timedelta(hours=2))
    assert torch.trace.doubts == ()
    torch.group.monitored_barrier(timedelta(seconds=15))
    assert torch.trace.doubts == (DOUBTS[LIMITED],)


def test_who_gives_a_wait_a_time_limit_is_in_doubt(torch: FakeTorch) -> None:
    torch.group.allreduce([Tensor(1)]).wait(timedelta(seconds=15))
    assert torch.trace.doubts == (DOUBTS[LIMITED],)


def test_who_goes_on_after_a_call_that_failed_is_in_doubt(torch: FakeTorch) -> None:
    def fail() -> None:
        raise RuntimeError("timed out")

    torch.Work.action = staticmethod(fail)
    with pytest.raises(RuntimeError, match="timed out"):
        torch.group.allreduce([Tensor(1)]).wait()
    assert torch.trace.doubts == (DOUBTS[SURVIVED],)
    reader = ring.RingReader(torch.path)
    assert reader.header() is not None
    assert [reader.has_failed(index) for index in (0, 1, 4096)] == [True, False, False]


def test_who_makes_the_world_anew_is_in_doubt(torch: FakeTorch) -> None:
    torch.distributed.init_process_group()
    torch.distributed.destroy_process_group()
    torch.distributed.init_process_group()
    assert torch.trace.doubts == (DOUBTS[REBORN],)


def limit_s(torch: FakeTorch) -> float:
    (limit,) = [group.limit_s for group in torch.trace.groups if group.name == "7"]
    return limit


def test_how_long_torch_lets_the_calls_of_a_group_take_is_written_down(torch: FakeTorch) -> None:
    torch.group.allreduce([Tensor(1)])
    assert limit_s(torch) == 600.0
    torch.distributed._set_pg_timeout(timedelta(seconds=100), group=torch.group)
    assert limit_s(torch) == 100.0
    torch.group.set_timeout(timedelta(minutes=3))
    assert limit_s(torch) == 180.0


def test_so_is_how_long_ranks_may_take_to_come_where_groups_are_made_if_that_is_longer_than_torchs_own(
    torch: FakeTorch,
) -> None:
    def world_limit_s() -> float:
        return next(group.limit_s for group in torch.trace.groups if group.name == "(world)")

    torch.distributed.init_process_group("gloo", timeout=timedelta(minutes=1))
    assert world_limit_s() == 0.0
    torch.distributed.init_process_group("gloo", None, timedelta(hours=2))
    assert world_limit_s() == 7200.0
    torch.distributed.new_group([0, 1], timedelta(hours=1))
    assert world_limit_s() == 7200.0
    torch.distributed.new_group([0, 1], timeout=timedelta(hours=3))
    assert world_limit_s() == 10800.0


def test_of_several_backends_the_longest_limit_counts_and_one_that_is_unknown_makes_it_unknown(
    torch: FakeTorch,
) -> None:
    torch.group.backends["cuda"] = SimpleNamespace(wrapped_pg=Backend(900.0))
    torch.group.allreduce([Tensor(1)])
    assert limit_s(torch) == 900.0
    other = type(torch.group)()
    other.group_name = "8"
    other.backends["cuda"] = SimpleNamespace()  # somebody else's
    torch.distributed._world.pg_group_ranks[other] = {3: 0}
    other.allreduce([Tensor(1)])
    assert [group.limit_s for group in torch.trace.groups if group.name == "8"] == [0.0]
    assert not torch.errors


def test_a_group_that_tells_nothing_of_its_backends_has_no_known_limit(torch: FakeTorch) -> None:
    torch.group.backends = {"cpu": None}
    torch.group.allreduce([Tensor(1)])
    assert limit_s(torch) == 0.0


def test_time_that_is_added_for_the_next_calls_counts(torch: FakeTorch) -> None:
    torch.group.allreduce([Tensor(1)])
    torch.distributed._add_ephemeral_timeout_for_all_pgs(timedelta(seconds=60))
    assert limit_s(torch) == 660.0


def test_a_barrier_with_more_time_than_its_group_has_that_time(torch: FakeTorch) -> None:
    torch.group.monitored_barrier(timedelta(seconds=5))
    assert limit_s(torch) == 600.0, "one with less changes nothing"
    torch.group.monitored_barrier(timedelta(hours=2), wait_all_ranks=True)
    assert limit_s(torch) == 7200.0
    torch.group.barrier(opts=SimpleNamespace(timeout=timedelta(hours=3)))
    assert limit_s(torch) == 10800.0
    torch.group.barrier(opts=SimpleNamespace(timeout=timedelta(days=-1)))
    torch.group.barrier()
    assert limit_s(torch) == 10800.0, "that is what torch takes for none"


def test_a_short_barrier_is_no_limit_of_a_group_whose_own_is_not_known(torch: FakeTorch) -> None:
    torch.group.backends = {"cpu": None}
    torch.group.monitored_barrier(timedelta(seconds=60))
    assert limit_s(torch) == 0.0
    torch.group.monitored_barrier(timedelta(hours=1))
    assert limit_s(torch) == 3600.0


def limits_while_in(torch: FakeTorch, *seconds: float) -> list[float]:
    """The limits of group 7 as they are within barriers that have so many seconds."""
    seen: list[float] = []
    torch.inside_barrier.append(lambda: seen.append(limit_s(torch)))
    for each in seconds:
        torch.group.monitored_barrier(timedelta(seconds=each))
    torch.inside_barrier.clear()
    return seen


def test_a_barrier_with_a_short_limit_has_that_while_it_lasts(torch: FakeTorch) -> None:
    assert limits_while_in(torch, 30, 20, 900, 299) == [30.0, 20.0, 900.0, 299.0]
    assert limit_s(torch) == 900.0, "and its group what it had"


def test_a_limit_of_a_barrier_that_is_not_short_is_not_that_of_its_group_since_it_may_be_caught(
    torch: FakeTorch,
) -> None:
    assert limits_while_in(torch, 300, 599) == [600.0, 600.0]


def test_a_barrier_whose_limit_is_over_leaves_its_group_as_it_was(torch: FakeTorch) -> None:
    def fail() -> None:
        raise RuntimeError("Rank 1 failed to pass monitoredBarrier in 30000 ms")

    torch.inside_barrier.append(fail)
    with pytest.raises(RuntimeError, match="failed to pass"):
        torch.group.monitored_barrier(timedelta(seconds=30))
    assert limit_s(torch) == 600.0
    assert [(op.op, op.state) for op in torch.trace.ops] == [("monitored_barrier", "failed")]


def test_a_barrier_in_each_step_does_not_fill_the_table(torch: FakeTorch) -> None:
    assert limits_while_in(torch, 30) == [30.0]
    used = torch.ring.cells[TABLE_BYTES_CELL]
    assert limits_while_in(torch, *range(10, 40)) == [float(each) for each in range(10, 40)]
    assert torch.ring.cells[TABLE_BYTES_CELL] == used


def test_a_limit_that_cannot_be_noted_ends_no_barrier(torch: FakeTorch) -> None:
    torch.group.allreduce([Tensor(1)])
    torch.ring.cells[TABLE_BYTES_CELL], torch.ring.table.is_full = TABLE_BYTES, True
    assert limits_while_in(torch, 30) == [600.0]
    assert not torch.errors


def test_no_limit_is_too_long_to_be_written(torch: FakeTorch) -> None:
    torch.group.set_timeout(timedelta(days=10**6))
    torch.group.allreduce([Tensor(1)])
    torch.distributed._add_ephemeral_timeout_for_all_pgs(timedelta(days=10**6))
    assert limit_s(torch) > 86400 * 100


def test_a_forked_child_writes_nothing(torch: FakeTorch) -> None:
    torch.group.allreduce([Tensor(1)])
    pid = os.fork()
    if pid == 0:
        torch.group.allreduce([Tensor(1)])
        torch.ring.mark_step()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert (torch.header.ops, torch.header.steps) == (1, 0)
    assert torch.trace.doubts == (DOUBTS[FORKED],), "it communicates: its parent's calls are not all of the rank's"


def test_a_forked_child_that_does_not_communicate_is_no_doubt(torch: FakeTorch) -> None:
    torch.group.allreduce([Tensor(1)])
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert torch.trace.doubts == ()


@pytest.mark.parametrize("is_there", [False, True])
def test_who_makes_calls_that_others_ask_for_by_rpc_is_in_doubt(torch: FakeTorch, is_there: bool) -> None:
    agents = []
    api = SimpleNamespace(_init_rpc_states=agents.append, _is_current_rpc_agent_set=lambda: is_there)
    torch.group.allreduce([Tensor(1)])
    torch.worker.load("lifecycle").watch_rpc(torch.ring, api)
    assert torch.trace.doubts == ((DOUBTS[SERVING],) if is_there else ())
    api._init_rpc_states("agent")
    assert (agents, torch.trace.doubts) == (["agent"], (DOUBTS[SERVING],))


def test_who_records_no_more_is_in_doubt(torch: FakeTorch) -> None:
    torch.group.allreduce([Tensor(1)])
    torch.ring.stop(RuntimeError("a call that it does not understand"))
    assert len(torch.errors) == 1
    torch.errors.clear()
    assert torch.trace.doubts == ("records no more",)


def test_a_ring_of_a_living_process_is_left_alone_and_one_of_a_dead_is_taken(torch: FakeTorch) -> None:
    torch.ring.cells[2] = os.getppid()
    torch.group.allreduce([Tensor(1)])
    assert torch.header.ops == 0
    torch.ring.stopped = False
    torch.ring.cells[2] = 2**22 + 5  # beyond what the kernel gives
    torch.group.allreduce([Tensor(1)])
    assert (torch.header.ops, torch.header.pid) == (1, os.getpid())


# The real torch ------------------------------------------------------------------------------------------------------------

ALL_CALLS = """
import faulthandler, os, socket, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=os.environ["MEETING"], rank=rank, world_size=2)
x, halves, twice = torch.ones(10), [torch.ones(10), torch.ones(10)], torch.ones(20)
dist.all_reduce(x)
pair = dist.new_group([0, 1], group_desc="pair")
dist.broadcast(x, 1, group=pair)
dist.all_gather(halves, x)
dist.scatter(x, halves if rank == 0 else None, src=0)
dist.gather(x, halves if rank == 1 else None, dst=1)
dist.reduce(x, 1)
dist.reduce_scatter(x, halves)
dist.all_to_all_single(torch.ones(10), x)
dist.barrier()
dist.monitored_barrier()
dist.send(x, 1) if rank == 0 else dist.recv(x)
dist.all_reduce(x, async_op=True).wait()
model = DistributedDataParallel(torch.nn.Linear(10, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    with model.no_sync():
        model(torch.ones(2, 10)).sum().backward()
    model(torch.ones(2, 10)).sum().backward()
    optimizer.step()
compiled = torch.compile(model, backend="eager")
compiled(torch.ones(2, 10)).sum().backward()
torch.compile(torch.nn.Linear(10, 1), backend="eager", fullgraph=True)(x).sum().backward()
optimizer.step()
pid = os.fork()
if pid == 0:
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
dist.barrier()
os.kill(os.getpid(), int(sys.argv[1]))
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[2] + str(rank) + ".sock")
    connection.sendall(b"POST /handler/fr_trace_json HTTP/1.0\\r\\nContent-Length: 0\\r\\n\\r\\n")
    assert connection.recv(12).endswith(b"200")
dist.destroy_process_group()
recorded = getattr(dist.ProcessGroup.allreduce, "__wrapped__", None)  # below what times phases
print(f"end of {rank}: {type(recorded).__name__}")
"""


def run_pair(folder: Path, program: str, *, in_c: str = "", timeout_s: float = 150) -> list[tuple[int, str, str]]:
    """Run two armed ranks, rank 1 with the recorder `in_c` where there is one; return exit code, stdout and stderr of each."""
    (folder / "program.py").write_text(program)
    processes = []
    for rank in range(2):
        steps_file = str(folder / f"steps{rank}")
        steps.create(steps_file)
        ring.create(f"{steps_file}.ring", rank, 2)
        phases.create(f"{steps_file}.phases")
        Path(f"{steps_file}.stacks").touch()
        env = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH") if name in os.environ}
        # Ranks meet in a file: a port that is free now may be another's when torch has been imported.
        env |= {"RANK": str(rank), "MEETING": f"file://{folder}/meeting", "ROBUST_TRACE_PHASES": "host"}
        env |= {"PYTHONWARNINGS": "ignore", **arm_environment(env, steps_file)}
        env |= {"XDG_CACHE_HOME": str(Path(in_c).parents[1])} if in_c and rank else {"ROBUST_TRACE_NATIVE": "0"}
        argv = [sys.executable, "program.py", str(ring.stacks_signal()), str(folder / "steps")]
        processes.append(
            subprocess.Popen(argv, env=env, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    try:
        outputs = [process.communicate(timeout=timeout_s) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, *output) for process, output in zip(processes, outputs, strict=True)]


def test_all_calls_of_a_real_job_are_recorded_alike_by_both_recorders(tmp_path: Path, built_in_c: Recorder) -> None:
    ends = run_pair(tmp_path, ALL_CALLS, in_c=built_in_c.path)
    second = "method" if built_in_c.path else "function"
    assert [end[:2] for end in ends] == [(0, "end of 0: function\n"), (0, f"end of 1: {second}\n")], ends
    # What torch.compile says of DistributedDataParallel it says unarmed too.
    assert [line for end in ends for line in end[2].splitlines() if "Profiler record function" not in line] == []
    traces = [ring.read(str(tmp_path / f"steps{rank}.ring")) for rank in range(2)]
    assert traces[0] is not None
    assert traces[1] is not None
    both = [[said(op) for op in trace.ops if op.op not in ("send", "recv_any")] for trace in traces if trace]
    assert both[0] == both[1]
    assert {op[2] for op in both[0]} == {"done"}
    names = [op.op for op in traces[0].ops]
    assert names[:14] == [
        "init_process_group", "all_reduce", "new_group", "broadcast", "all_gather", "scatter", "gather", "reduce",
        "reduce_scatter", "all_to_all", "barrier", "monitored_barrier", "send", "all_reduce",
    ]  # fmt: skip
    assert names.count("ddp_backward") == 3
    limits_s = {group.name: group.limit_s for group in traces[0].groups if group.name != "(world)"}
    assert set(limits_s.values()) == {1800.0}, "torch's own for gloo"
    assert names[-1] == "destroy_process_group"
    assert [(group.desc, group.ranks) for group in traces[0].groups if group.desc == "pair"] == [("pair", (0, 1))]
    assert (traces[0].steps, len(traces[0].marks)) == (3, 3)
    timed = [phases.read(str(tmp_path / f"steps{rank}.phases")) for rank in range(2)]
    assert [[one.step for one in rank] for rank in timed] == [[2, 3], [2, 3]]
    lengths_s = [after.at_s - before.at_s for before, after in itertools.pairwise(traces[0].marks)]
    # The recorder and the marks look at their clocks one after the other, and a busy machine has turns of others between.
    assert [one.step_ms / 1e3 for one in timed[0]] == pytest.approx(lengths_s, rel=0.5, abs=0.5)
    assert all(
        one.forward_ms > 0 and one.backward_ms > 0 and one.backward_waiting_ms > 0 for rank in timed for one in rank
    )
    assert all("program.py" in op.site for op in traces[0].ops)
    assert 'program.py", line' in (tmp_path / "steps0.stacks").read_text()


STUCK = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo", init_method=os.environ["MEETING"], rank=int(os.environ["RANK"]), world_size=2)
dist.all_reduce(torch.ones(1))
if os.environ["RANK"] == "1":
    dist.all_reduce(torch.ones(1))
else:
    from robust_run.tracer.files import ring
    reader = ring.RingReader("steps1.ring")
    until = time.monotonic() + 60
    op = None
    while time.monotonic() < until and (op is None or (op.seq, op.state) != (2, "waiting")):
        time.sleep(0.01)
        op = reader.trace(1).ops[-1]
    header = reader.header()
    print(op.op, op.seq, op.state, header.waiting_index, flush=True)
    os.kill(header.pid, 9)
    os._exit(0)
"""


def test_a_rank_that_waits_says_so_and_its_ring_outlives_it(tmp_path: Path, built_in_c: Recorder) -> None:
    program = f"import sys; sys.path.append({str(Path(ring.__file__).parents[2])!r})\n{STUCK}"
    ends = run_pair(tmp_path, program, in_c=built_in_c.path)
    assert [end[0] for end in ends] == [0, -9]
    assert ends[0][1] == "all_reduce 2 waiting 2\n"
    trace = ring.read(str(tmp_path / "steps1.ring"))
    assert trace is not None
    assert (trace.ops[-1].op, trace.ops[-1].state) == ("all_reduce", "waiting")


FUNCTIONAL = """
import os, sys, torch, torch.distributed as dist
import torch.distributed._functional_collectives as functional
dist.init_process_group("gloo", init_method=os.environ["MEETING"], rank=int(os.environ["RANK"]), world_size=2)
def total(x):
    return functional.all_reduce(x, "sum", dist.group.WORLD) + 1
assert total(torch.ones(2)).tolist() == [3.0, 3.0]
assert torch.compile(total, backend="eager", fullgraph=True)(torch.ones(2)).tolist() == [3.0, 3.0]
if os.environ["RANK"] == "0":
    from robust_run.tracer.files import ring
    import time
    until = time.monotonic() + 60
    reader = ring.RingReader("steps1.ring")
    while time.monotonic() < until and not (header := reader.header()).waiting_since_s:
        time.sleep(0.01)
    print(header.waiting_index, flush=True)
    total(torch.ones(2))
else:
    total(torch.ones(2)).tolist()
dist.destroy_process_group()
"""


def test_waits_of_functional_collectives_are_seen_and_they_still_compile(tmp_path: Path, built_in_c: Recorder) -> None:
    program = f"import sys; sys.path.append({str(Path(ring.__file__).parents[2])!r})\n{FUNCTIONAL}"
    ends = run_pair(tmp_path, program, in_c=built_in_c.path)
    assert [end[0] for end in ends] == [0, 0], ends
    assert ends[0][1] == "None\n"
