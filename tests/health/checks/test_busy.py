"""`robust check` says beforehand that a node has other work, and looks at how much there was while it measured."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from robust_run.health.checks.busy import busy_words, is_disturbed, is_starved
from robust_run.health.checks.types import Result
from robust_run.health.diagnostics.others import OthersWork, beside_all_below, beside_this_process, used_below_s


@pytest.mark.parametrize(("load", "cpus"), [(0.0, 2), (1.0, 2), (0.9, 1), (10.0, 64), (16.0, 64)])
def test_a_node_that_rests_is_measured_without_a_word(load: float, cpus: int) -> None:
    """Its own daemons, and what ended half a minute ago, are no work."""
    assert busy_words(load, cpus) == ""


@pytest.mark.parametrize(("load", "cpus"), [(1.5, 2), (30.0, 2), (17.0, 64)])
def test_a_node_that_works_is_named_busy_with_its_load(load: float, cpus: int) -> None:
    words = busy_words(load, cpus)
    assert f"busy: a load of {load:.1f} in the last minute, {cpus} CPUs" in words


# --- while it measures ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("check", "device", "cpus", "others", "disturbed"),
    [
        ("compute", "cpu", 2, 0.5, True),
        ("memory", "", 2, 1.7, True),
        ("neighbours", "cpu", 128, 2.6, True),
        ("compute", "cpu", 2, 0.4, False),  # its own daemons
        ("compute", "cpu", 128, 2.4, False),  # agents of a monitored node
        ("compute", "cuda:0", 2, 1.7, False),  # does not need CPUs
        ("disk", "cpu", 2, 1.7, False),  # the kernel writes for us, too
        ("compute", "cpu", 0, 0.0, False),  # a node of an older version does not tell
    ],
)
def test_what_makes_a_check_slow_without_a_fault(
    result: Callable[..., Result], check: str, device: str, cpus: int, others: float, disturbed: bool
) -> None:
    of_all = result(check, "a", device=device, cpus=cpus, others_cpus=others)
    assert is_disturbed(of_all, "x_per_s") == disturbed
    meanwhile = result(check, "a", device=device, cpus=cpus, others_by_figure={"x_per_s": others})
    assert is_disturbed(meanwhile, "x_per_s") == disturbed and not is_disturbed(meanwhile, "y_per_s")


def test_what_others_did_while_a_figure_was_measured_counts_not_what_they_did_before(
    result: Callable[..., Result],
) -> None:
    """A burst is a small part of a program that imports torch for seconds, and all of a figure's time; or the other way round."""
    short = result(
        "compute", "a", cpus=2, others_cpus=0.16, others_by_figure={"flop_per_s": 0.0, "memory_bytes_per_s": 1.3}
    )
    assert is_disturbed(short, "memory_bytes_per_s") and not is_disturbed(short, "flop_per_s")
    early = result("compute", "a", cpus=2, others_cpus=1.3, others_by_figure={"flop_per_s": 0.0})
    assert not is_disturbed(early, "flop_per_s")


@pytest.mark.parametrize(
    ("cpus", "others", "starved"), [(2, 1.0, True), (2, 0.9, False), (128, 20.0, False), (0, 0, False)]
)
def test_what_makes_a_check_reach_its_limit_without_a_fault(
    result: Callable[..., Result], cpus: int, others: float, starved: bool
) -> None:
    assert is_starved(result("compute", "a", device="cuda:0", cpus=cpus, others_cpus=others)) == starved


BURN = "import time; until = time.process_time() + {}\nwhile time.process_time() < until: pass"


class Machine:
    """A /proc and a clock whose values are set by hand. Process 10 is the root, 11 is below it; a tick is 10 ms."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.now_s = folder, 100.0
        self.cpu = sorted(os.sched_getaffinity(0))[0]

    def shows(self, user: int, steal: int = 0, interrupts: int = 0, own: int = 0, dead: int = 0) -> None:
        """Set the ticks of our first CPU, and those of our processes."""
        columns = f"{user} 0 0 500 0 {interrupts} {interrupts} {steal} 0 0"
        (self.proc / "stat").write_text(
            f"cpu  9 9 9 9 9 9 9 9 9 9\ncpu{self.cpu} {columns}\ncpu9999 {columns}\nintr 1\n"
        )
        for pid, parent, used, reaped in ((10, 1, 0, dead), (11, 10, own, 0), (12, 1, 7777, 0)):
            (self.proc / str(pid)).mkdir(exist_ok=True)
            (self.proc / str(pid) / "stat").write_text(
                f"{pid} (a) b) S {parent} 1 1 0 -1 0 0 0 0 0 {used} 0 {reaped} 0 20 0 1 0 5 0\n"
            )


@pytest.mark.parametrize(
    ("after", "cpus"),
    [
        ({"user": 1150}, 0.75),
        ({"user": 1000, "steal": 100}, 0.5),
        ({"user": 1150, "own": 150}, 0.0),
        ({"user": 1150, "dead": 100}, 0.25),
        ({"user": 1000, "interrupts": 190}, 0.0),
    ],
)
def test_work_of_the_programs_and_interrupts_are_not_others(tmp_path: Path, after: dict[str, int], cpus: float) -> None:
    machine = Machine(tmp_path)
    machine.shows(1000)
    proc = str(machine.proc)
    others = OthersWork(lambda: used_below_s(10, proc), [machine.cpu], proc, lambda: machine.now_s)
    machine.now_s += 2.0
    machine.shows(**after)
    assert others.mean_cpus() == pytest.approx(cpus)


def test_what_lasts_a_few_ticks_is_not_told(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.shows(1000)
    others = OthersWork(lambda: 0.0, [machine.cpu], str(machine.proc), lambda: machine.now_s)
    machine.now_s += 0.05
    assert others.mean_cpus() is None


@pytest.mark.parametrize("text", [None, "", "cpu0\n", "cpu0 a b c d e f g h\n"])
def test_a_kernel_that_does_not_tell_accuses_and_excuses_nobody(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "stat").write_text(text.replace("cpu0", f"cpu{sorted(os.sched_getaffinity(0))[0]}"))
    assert OthersWork(time.process_time, os.sched_getaffinity(0), str(tmp_path)).mean_cpus() is None


def test_a_process_beside_us_is_seen_and_a_child_of_ours_is_not() -> None:
    """Whatever other tests do meanwhile: what our child used is taken away."""
    beside, ours = beside_this_process(os.sched_getaffinity(0)), beside_all_below(os.getpid())
    began_s = time.monotonic()
    subprocess.run([sys.executable, "-c", BURN.format(0.5)], check=True)
    passed_s = time.monotonic() - began_s
    assert ((beside.mean_cpus() or 0.0) - (ours.mean_cpus() or 0.0)) * passed_s >= 0.3
