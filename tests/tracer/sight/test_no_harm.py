"""To look at a process does nothing to it: faulthandler crashes a process that computes in Python, a signal ends some waits.

Each program here died, or went on too early, when it was asked for its stacks by signal whatever it did.
"""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from pathlib import Path

import pytest
from ranks_alone import rank, until

from robust_run.tracer.files import ring
from robust_run.tracer.sight import processes
from robust_run.tracer.sight.collect import collect
from robust_run.tracer.sight.fault_signal import USUAL
from robust_run.tracer.sight.rest import at_rest
from robust_run.tracer.sight.spy import find_spy
from robust_run.tracer.sight.target_view import SightWorld
from robust_run.tracer.sight.targets import Target
from robust_run.tracer.types import RankSight

NO_SPY = SightWorld(spy=None, by_signal=True)
LOOKS = 40 if os.environ.get("TEST_EXAMPLES") == "all" else 12
"""Of those there were at most 40 until one of the programs died; at three samples each. A third of them by default."""
COMPUTES = """
import threading
def deep(left):
    if left:
        deep(left - 1)
def work():
    while True:
        deep(30)
        list(number for number in range(20))
for _ in range(%d):
    threading.Thread(target=work, daemon=True).start()
print("ready", flush=True)
while True:
    %s
"""
PAUSES = """
import signal
signal.signal(signal.SIGALRM, lambda *_: None)
signal.alarm(600)
print("ready", flush=True)
signal.pause()
print("went on", flush=True)
os._exit(3)
"""
SLEEPS = """
import time
def get():
    print("ready", flush=True)
    time.sleep(600)
get()
"""


def looked_at(target: Target, world: SightWorld, **options: float) -> RankSight:
    (sight,) = asyncio.run(collect([target], world=world, **options))  # type: ignore[arg-type]
    return sight


def samples(sight: RankSight) -> int:
    return sum(len(process.stacks) for process in sight.processes if process.is_rank)


@pytest.mark.parametrize(("threads", "main"), [(0, "work()"), (3, "work()"), (2, "threading.Event().wait(600)")])
@pytest.mark.parametrize("with_spy", [False, True], ids=["nobody may look", "py-spy"])
def test_a_program_that_computes_survives_every_look(tmp_path: Path, threads: int, main: str, with_spy: bool):
    world = SightWorld(spy=find_spy() if with_spy else None, by_signal=True)
    with rank(tmp_path, COMPUTES % (threads, main)) as target:
        for number in range(LOOKS):
            looked_at(target, world, gap_s=0.001)
            look = processes.look(target.pid)
            assert look is not None, f"gone after {number + 1} looks"
            assert not look.is_gone, f"dead after {number + 1} looks"


@pytest.mark.parametrize("with_spy", [False, True], ids=["nobody may look", "py-spy"])
def test_a_wait_that_any_signal_ends_goes_on(tmp_path: Path, with_spy: bool):
    world = SightWorld(spy=find_spy() if with_spy else None, by_signal=True)
    with rank(tmp_path, PAUSES) as target:
        until(lambda: at_rest(target.pid) is not None, "it to pause")
        sight = looked_at(target, world)
        assert signal.SIGALRM in processes.caught(target.pid), "it is still there"
        assert processes.look(target.pid).state == "S"
    if not with_spy:
        assert samples(sight) == 0


def test_what_does_not_move_is_where_it_was_and_is_read_once(tmp_path: Path):
    program = find_spy()
    if program is None:
        pytest.skip("py-spy is not installed")
    counting = tmp_path / "py-spy"
    counting.write_text(f'#!/bin/sh\necho asked >> {tmp_path}/asked\nexec {program} "$@"\n')
    counting.chmod(counting.stat().st_mode | stat.S_IXUSR)
    with rank(tmp_path, SLEEPS) as target:
        until(lambda: at_rest(target.pid) is not None, "it to sleep")
        sight = looked_at(target, SightWorld(spy=str(counting)))
        if not samples(sight):
            pytest.skip("py-spy may not trace here")
    assert samples(sight) == 3
    assert (tmp_path / "asked").read_text().count("asked") == 1


def test_it_is_asked_by_signal_only_where_nobody_may_look_and_it_rests(tmp_path: Path):
    with rank(tmp_path, SLEEPS) as target:
        until(lambda: at_rest(target.pid) is not None, "it to sleep")
        found = samples(looked_at(target, NO_SPY))
        written = os.path.getsize(f"{target.steps_file}.stacks")
        assert found == 3
        if find_spy() is not None and samples(looked_at(target, SightWorld(spy=find_spy()))):
            assert os.path.getsize(f"{target.steps_file}.stacks") == written, "py-spy goes first"


def test_signals_that_a_program_may_wait_for_are_none_of_the_usual():
    waited_for = {signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGHUP, signal.SIGIO}
    assert not waited_for & USUAL
    assert ring.stacks_signal() not in USUAL


# --- at_rest, from a written /proc ---


def thread(folder: Path, number: int, state: str, counts: str | None) -> None:
    (folder / str(number)).mkdir(parents=True)
    (folder / str(number) / "stat").write_text(f"{number} (a ) b) {state} 1 1 1")
    if counts is not None:
        (folder / str(number) / "schedstat").write_text(counts)


@pytest.mark.parametrize(
    ("state", "counts"),
    [("R", "5 6 7"), ("D", "5 6 7"), ("T", "5 6 7"), ("S", None), ("S", ""), ("S", "5 6"), ("S", "x y z")],
)
def test_one_thread_of_which_we_do_not_know_is_no_rest(tmp_path: Path, state: str, counts: str | None):
    thread(tmp_path / "7" / "task", 7, "S", "1 2 3\n")
    assert at_rest(7, str(tmp_path)) == {(7, 1, 3)}
    thread(tmp_path / "7" / "task", 8, state, counts)
    assert at_rest(7, str(tmp_path)) is None


def test_nobody_is_no_rest(tmp_path: Path):
    assert at_rest(7, str(tmp_path)) is None
    (tmp_path / "7" / "task").mkdir(parents=True)
    assert at_rest(7, str(tmp_path)) is None


def test_more_threads_than_are_looked_at_are_no_rest(tmp_path: Path):
    for number in range(1, 258):
        thread(tmp_path / "1" / "task", number, "S", "1 2 3")
    assert at_rest(1, str(tmp_path)) is None
