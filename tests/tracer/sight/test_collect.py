"""Real processes are looked at: what they do, where, and without harm to any of them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from ranks_alone import PATIENCE_S, rank, until

from robust_run.tracer.files import ring, ring_format
from robust_run.tracer.sight import fault_signal, processes, spy
from robust_run.tracer.sight.collect import collect, dead_sights
from robust_run.tracer.sight.fault_signal import CHILD_AGE_S, FILE_BYTES
from robust_run.tracer.sight.spy import find_spy
from robust_run.tracer.sight.target_view import SightWorld
from robust_run.tracer.sight.targets import Target
from robust_run.tracer.stacks.activity import activity_of, is_kept_waiting
from robust_run.tracer.stacks.children import has_nothing_to_do, newest_stack
from robust_run.tracer.stacks.normal import main_stacks, place
from robust_run.tracer.types import ProcessSight, RankSight, ThreadStack

SLEEPS = """
import time
def get():
    print("ready", flush=True)
    time.sleep(600)
get()
"""
SPINS = """
def spin():
    print("ready", flush=True)
    x = 0
    while True:
        x += 1
spin()
"""
WRITES = """
import time
def save():
    print("ready", flush=True)
    with open(sys.argv[0] + ".out", "wb") as file:
        while True:
            file.seek(0)
            file.write(bytes(1 << 20))
            file.flush()
            time.sleep(0.02)
save()
"""
READS_A_FIFO = """
os.mkfifo(sys.argv[0] + ".fifo")
def read():
    print("ready", flush=True)
    open(sys.argv[0] + ".fifo").read()
read()
"""
FORKS = """
import time
def work():
    time.sleep(600)
if os.fork() == 0:
    work()
def main():
    print("ready", flush=True)
    time.sleep(600)
main()
"""
#: A child without handler (spawned), and one that has the handler but closed the file.
HARD_CHILDREN = """
import subprocess, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
if os.fork() == 0:
    os.close(answers.fileno())
    time.sleep(600)
if os.fork() == 0:
    os._exit(3)
print("ready", flush=True)
time.sleep(600)
"""
POOL = """
import multiprocessing, time
def spin(x):
    while True:
        x += 1
pool = multiprocessing.get_context("fork").Pool(2)
pool.apply_async(spin, (1,))
print("ready", flush=True)
while True:
    time.sleep(1)
"""

no_spy = SightWorld(spy=None, by_signal=True)
ANSWER_S = fault_signal.ANSWER_S


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is asked may take his time: on a busy machine a process is not always given a CPU within the usual limits."""
    for module, name in ((fault_signal, "ANSWER_S"), (fault_signal, "STILL_S"), (spy, "END_S")):
        monkeypatch.setattr(module, name, float(PATIENCE_S))


def seen(targets: Sequence[Target], world: SightWorld = no_spy, **options: int) -> tuple[RankSight, ...]:
    return asyncio.run(collect(targets, world=world, **options))


def look_at(target: Target, world: SightWorld = no_spy) -> RankSight:
    (sight,) = seen([target], world)
    return sight


def looked_at_until(
    target: Target, condition: Callable[[RankSight], bool], what: str, world: SightWorld = no_spy
) -> RankSight:
    """Look again and again: a machine that is busy may give a process no CPU at all during a look."""
    sights: list[RankSight] = []

    def is_so() -> bool:
        sights[:] = seen([target], world)
        return condition(sights[0])

    until(is_so, what)
    return sights[0]


def asleep(pid: int) -> None:
    until(lambda: processes.look(pid).state == "S", "a process to sleep")


def own(sight: RankSight) -> ProcessSight:
    return next(process for process in sight.processes if process.is_rank)


def places(sight: RankSight) -> list[str]:
    """Where the rank was in each sample, without the line: it may just be coming from the one before."""
    return [without_line(stack) for stack in main_stacks(sight)]


def without_line(stack: ThreadStack) -> str:
    file, _, rest = place(stack).partition(":")
    return f"{file} {rest.partition(' ')[2]}"


def old_enough(pid: int) -> None:
    until(lambda: processes.age_s(processes.look(pid)) > CHILD_AGE_S + 0.1, "a child to be past its exec")


def with_spy() -> SightWorld:
    program = find_spy()
    if program is None:
        pytest.skip("py-spy is not installed")
    return SightWorld(spy=program)


def test_a_sleeping_rank_is_idle_where_it_sleeps(tmp_path: Path):
    with rank(tmp_path, SLEEPS) as target:
        asleep(target.pid)
        sight = look_at(target)
    assert (sight.rank, sight.node, own(sight).state) == (0, "gpu-01", "S")
    assert places(sight) == ["rank_0.py get"] * 3
    assert activity_of(sight).kind == "idle"
    assert own(sight).cpu < 0.05


@pytest.mark.parametrize("flushed", [False, True], ids=["at rest", "flushed again and again"])
def test_looking_itself_counts_as_nothing(tmp_path: Path, flushed: bool):
    over = threading.Event()

    def flush() -> None:
        with (tmp_path / "steps-0.stacks").open("rb") as stacks:
            while not over.wait(0.005):
                os.fsync(stacks.fileno())

    with rank(tmp_path, SLEEPS) as target:
        asleep(target.pid)
        flushing = threading.Thread(target=flush if flushed else over.set)
        flushing.start()
        (sight,) = seen([target], samples=12, gap_s=0.02)
        over.set()
        flushing.join()
        grown = os.path.getsize(f"{target.steps_file}.stacks")
    assert grown > 0
    assert own(sight).io_bytes < grown


def test_a_busy_loop_is_seen_by_its_cpu(tmp_path: Path):
    with rank(tmp_path, SPINS) as target:
        sight = looked_at_until(target, lambda sight: own(sight).cpu > 0.05, "it to be given a CPU")
    assert activity_of(sight).kind == "spinning"


def test_a_rank_that_gets_no_cpu_is_not_taken_for_one_that_sleeps(tmp_path: Path):
    """Others have its CPU: it is runnable all the time, and uses next to nothing."""
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this kernel does not count how long threads wait for a CPU")
    cpu = min(os.sched_getaffinity(0))
    spins = [sys.executable, "-c", f"import os; os.sched_setaffinity(0, {{{cpu}}}); exec('while True: pass')"]
    others = [subprocess.Popen(spins) for _ in range(2)]
    try:
        with rank(tmp_path, SPINS) as target:
            os.sched_setaffinity(target.pid, {cpu})
            os.setpriority(os.PRIO_PROCESS, target.pid, 19)
            sight = looked_at_until(
                target, lambda one: own(one).cpu < 0.5 and is_kept_waiting(own(one)), "a rank without a CPU"
            )
            told = activity_of(sight)
            os.kill(target.pid, signal.SIGKILL)
    finally:
        for other in others:
            other.kill()
            other.wait(60)
    assert told.kind != "idle"


def test_a_stopped_rank_is_seen_with_the_signal_that_stopped_it(tmp_path: Path):
    with rank(tmp_path, SLEEPS) as target:
        os.kill(target.pid, signal.SIGSTOP)
        until(lambda: processes.look(target.pid).state == "T", "its stop")
        sight = seen([target], with_spy())[0]
    assert (own(sight).state, own(sight).stopped_by) == ("T", signal.SIGSTOP), "also when py-spy has looked at it"


def test_a_rank_that_is_stopped_and_continued_in_turns_is_not_stopped_for_good(tmp_path: Path):
    over = threading.Event()

    def in_turns(pid: int) -> None:
        """As cpulimit does it."""
        while not over.wait(0.02):
            os.kill(pid, signal.SIGCONT)
            over.wait(0.01)
            os.kill(pid, signal.SIGSTOP)

    with rank(tmp_path, SPINS) as target:
        limiter = threading.Thread(target=in_turns, args=(target.pid,))
        limiter.start()
        try:
            looked_at_until(
                target, lambda sight: (own(sight).state, own(sight).stopped_by) == ("T", 0), "a stop, but not for good"
            )
        finally:
            over.set()
            limiter.join()


def test_writing_is_seen_by_its_bytes(tmp_path: Path):
    with rank(tmp_path, WRITES) as target:
        sight = looked_at_until(target, lambda sight: own(sight).io_bytes > 1 << 19, "it to write")
    assert activity_of(sight).kind == "working"


def test_a_rank_that_waits_for_a_fifo_is_idle(tmp_path: Path):
    with rank(tmp_path, READS_A_FIFO) as target:
        asleep(target.pid)
        sight = look_at(target)
    told = activity_of(sight)
    assert (told.kind, told.reason.split(":")[0]) == ("idle", "asleep in rank_0.py")


def test_the_rank_is_the_process_that_records_not_a_wrapper_around_it(tmp_path: Path):
    with rank(tmp_path, FORKS) as target:
        (child,) = processes.children(target.pid)
        ring.create(f"{target.steps_file}.ring", rank=0, world_size=4)
        with open(f"{target.steps_file}.ring", "r+b") as file:
            file.seek(ring_format.PID_CELL * 8)
            file.write(child.to_bytes(8, sys.byteorder))
        old_enough(child)
        asleep(child)
        sight = look_at(target)
    assert own(sight).pid == child
    assert places(sight) == ["rank_0.py work"] * 3
    assert sight.trace.pid == child


def test_several_ranks_are_looked_at_at_once_and_in_order(tmp_path: Path):
    with rank(tmp_path, SLEEPS, number=3) as one, rank(tmp_path, SPINS, number=1) as other:
        sights = seen([one, other], with_spy())
    assert [sight.rank for sight in sights] == [3, 1]
    assert [len(main_stacks(sight)) for sight in sights] == [3, 3]


def test_a_forked_child_answers_for_itself(tmp_path: Path):
    with rank(tmp_path, FORKS) as target:
        (child,) = processes.children(target.pid)
        old_enough(child)
        asleep(child)
        sight = look_at(target)
    found = {process.is_rank: process for process in sight.processes}
    assert place(main_stacks(sight)[0]).endswith("main")
    assert [without_line(sample[-1]) for sample in found[False].stacks] == ["rank_0.py work"] * 3


def states(pids: Sequence[int]) -> list[str]:
    return sorted(processes.look(pid).state for pid in pids)


def test_a_process_that_does_not_expect_the_signal_never_gets_it(tmp_path: Path):
    with rank(tmp_path, HARD_CHILDREN) as target:
        children = processes.children(target.pid)
        for child in children:
            old_enough(child)
        until(lambda: states(children) == ["S", "S", "Z"], "the children to come to rest")
        sight = look_at(target)
        still = {pid: processes.look(pid).state for pid in children}
        assert states(children) == ["S", "S", "Z"]
    assert [bool(process.stacks) for process in sight.processes if not process.is_rank] == [False] * 3
    (gone,) = [pid for pid, state in still.items() if state == "Z"]
    (lost,) = sight.lost_children
    assert lost.startswith(f"a child (pid {gone}, ")
    assert lost.endswith(") ended and was not collected")


def test_a_young_child_is_not_asked_because_it_may_be_about_to_exec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fault_signal, "CHILD_AGE_S", float("inf"))  # however slow this machine is
    with rank(tmp_path, FORKS) as target:
        (sight,) = seen([target], samples=1)
    assert [process.stacks for process in sight.processes if not process.is_rank] == [()]


def test_a_rank_that_is_not_armed_survives_and_is_seen_without_stacks(tmp_path: Path):
    with rank(tmp_path, SLEEPS, armed=False) as target:
        asleep(target.pid)
        sight = look_at(target)
        assert processes.look(target.pid).state == "S"
    assert own(sight).stacks == ()
    assert activity_of(sight).kind == "idle"


def test_a_stopped_rank_is_seen_through_py_spy(tmp_path: Path):
    world = with_spy()
    with rank(tmp_path, SLEEPS) as target:
        os.kill(target.pid, signal.SIGSTOP)
        until(lambda: processes.look(target.pid).state == "T", "its stop")
        sight = look_at(target, world)
        without = look_at(target)
    assert own(sight).state == "T"
    assert own(without).stacks == ()
    if not own(sight).stacks:
        pytest.skip("py-spy may not trace here")
    assert places(sight)[-1] == "rank_0.py get"


def test_a_rank_that_is_not_armed_is_seen_through_py_spy(tmp_path: Path):
    world = with_spy()
    with rank(tmp_path, SLEEPS, armed=False) as target:
        (sight,) = asyncio.run(collect([target], samples=1, world=world))
    if not own(sight).stacks:
        pytest.skip("py-spy may not trace here")
    assert places(sight) == ["rank_0.py get"]


def test_a_rank_that_blocks_the_signal_costs_little_and_gives_no_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fault_signal, "ANSWER_S", ANSWER_S)
    blocks = f"import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [{ring.stacks_signal()}])\n" + SLEEPS
    with rank(tmp_path, blocks) as target:
        asleep(target.pid)
        sight = look_at(target)
        assert processes.look(target.pid).state == "S"
    assert own(sight).stacks == ()


def test_a_file_that_has_grown_long_is_emptied(tmp_path: Path):
    with rank(tmp_path, SLEEPS) as target:
        with open(f"{target.steps_file}.stacks", "ab") as file:
            file.truncate(FILE_BYTES)
        sight = look_at(target)
        assert os.path.getsize(f"{target.steps_file}.stacks") < FILE_BYTES // 2
    assert {*places(sight)} == {"rank_0.py get"}  # a busy machine may leave it time for two of three


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path), lambda path: None])
def test_anything_else_in_the_place_of_the_file_gives_no_stack(tmp_path: Path, make):
    with rank(tmp_path, SLEEPS) as target:
        os.unlink(f"{target.steps_file}.stacks")
        make(f"{target.steps_file}.stacks")
        asleep(target.pid)
        sight = look_at(target)
        assert processes.look(target.pid).state == "S"
    assert own(sight).stacks == ()


def test_a_rank_that_has_ended_has_no_processes():
    child = subprocess.Popen(["true"])
    child.wait(60)
    sight = look_at(Target(rank=0, node="n", pid=child.pid, steps_file="/nowhere/steps"))
    assert sight.processes == ()


def test_the_pid_of_an_ended_rank_is_not_looked_at():
    ended = Target(rank=2, node="n", pid=os.getpid(), exit_code=1, ended_at_s=5.0)
    sight = look_at(ended)
    assert (sight.exit_code, sight.ended_at_s, sight.processes) == (1, 5.0, ())


def test_two_looks_at_a_time_do_not_mix_up_their_answers(tmp_path: Path):
    async def both(target: Target) -> list[tuple[RankSight, ...]]:
        return await asyncio.gather(*(collect([target], gap_s=0.01, world=no_spy) for _ in range(4)))

    with rank(tmp_path, SLEEPS) as target:
        looks = asyncio.run(both(target))
    # To answer one look is no rest for another, which then goes without.
    found = [place for (sight,) in looks for place in places(sight)]
    assert found == ["rank_0.py get"] * len(found)
    assert found


def test_a_pool_worker_that_spins_is_told_from_one_that_waits(tmp_path: Path):
    world = with_spy()
    with rank(tmp_path, POOL) as target:
        spins = lambda sight: activity_of(sight).kind == "spinning"  # noqa: E731
        sight = looked_at_until(target, spins, "the worker to spin", world)
    told = activity_of(sight)
    assert told.reason.startswith("its Pool worker ")
    assert " of a core in rank_0.py:" in told.reason
    waits = [has_nothing_to_do(newest_stack(one)) for one in sight.processes if not one.is_rank]
    assert sorted(waits) == [False, True]


def test_of_an_attempt_that_has_ended_the_rings_are_left(tmp_path: Path):
    steps_file = str(tmp_path / "steps")
    ring.create(f"{steps_file}.ring", rank=1, world_size=4)
    traced = Target(rank=1, node="n", pid=1, steps_file=steps_file, exit_code=1, alive=False)
    assert dead_sights([traced])[0].trace is None, "nobody has recorded anything"
    with open(f"{steps_file}.ring", "r+b") as file:
        file.seek(ring_format.PID_CELL * 8)
        file.write((1).to_bytes(8, sys.byteorder))
    untraced = Target(rank=2, node="n", pid=1, steps_file=str(tmp_path / "none"), alive=False)
    first, second = dead_sights([traced, untraced])
    assert first.trace is not None
    assert (first.trace.rank, first.trace.world_size, first.exit_code) == (1, 4, 1)
    assert second.trace is None
