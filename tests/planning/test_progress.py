"""How far a plan is, is told: in place on a terminal, else seldom enough to be read later."""

from __future__ import annotations

import io

from click.testing import CliRunner

from robust_run.errors import UserError
from robust_run.planning.command import plan as plan_command
from robust_run.planning.many import run_all
from robust_run.planning.mix import DEFAULT
from robust_run.planning.progress import LINE_S, Progress
from robust_run.planning.words import Plan
from robust_run.planning.worker import Task, answer


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_it_is_told_in_place() -> None:
    stream = Terminal()
    progress = Progress(stream, lambda: 0.0)
    progress.says(0.5, 2)
    progress.says(2, 2)
    assert stream.getvalue() == "\r0 of 2 simulated (25 %)\r2 of 2 simulated (100 %)\n"


def test_elsewhere_it_is_a_line_now_and_then() -> None:
    stream, now_s = io.StringIO(), [0.0]
    progress = Progress(stream, lambda: now_s[0])
    for second in range(int(2 * LINE_S) + 2):
        now_s[0] = float(second)
        progress.says(second / 100, 1)
    assert stream.getvalue() == "robust: 0 of 1 simulated (30 %)\nrobust: 0 of 1 simulated (60 %)\n"


def test_a_seed_that_takes_long_is_told_of_in_parts() -> None:
    said: list[float] = []
    plan = Plan(nodes=8, days=30.0, mix=DEFAULT)
    run_all([Task(plan, 0)], 1, said.append)
    assert said[-1] == 1
    assert said == sorted(said)
    assert 0.0 <= said[0] < 1.0


def test_what_a_worker_says_is_a_share_or_the_result() -> None:
    assert answer(b"0.2500\n") == 0.25


def test_more_standbys_than_nodes_are_refused() -> None:
    done = CliRunner().invoke(plan_command, ["--nodes", "100", "--standby", "101", "--no-advice"])
    assert isinstance(done.exception, UserError)
    assert "--standby '101': write a number up to 100 for 100 nodes" in str(done.exception)
