"""A controller that does not answer is ended by its own node, but for one that still reads what its job has been through."""

from __future__ import annotations

from pathlib import Path

import pytest

from robust_run.launcher.controller.config import ControllerConfig
from robust_run.launcher.model.job import JobSpec, OutputStreams
from robust_run.launcher.start.many.controller_supervisor import READS_BYTES_PER_S, YOUNG_S, ControllerSupervisor

SPEC = JobSpec(
    argv=("true",),
    script="train.py",
    is_python=True,
    nproc=1,
    run_id="r",
    rdzv_id="r",
    log_dir=None,
    streams=OutputStreams(redirects=(), tee=(), shown=()),
)


class PlayedProcess:
    """A controller that says nothing."""

    pid, exit_code = 1, None

    def __init__(self) -> None:
        self.signals: list[int] = []

    def signal(self, number: int, _now_s: float) -> None:
        self.signals.append(number)


class Clock:
    """As much of an event loop as is asked."""

    now_s = 0.0

    def time(self) -> float:
        return self.now_s


@pytest.mark.parametrize(("journal_bytes", "patience_s"), [(0, YOUNG_S), (20 * READS_BYTES_PER_S, YOUNG_S + 20.0)])
def test_one_that_has_a_long_journal_to_read_is_given_the_time(
    tmp_path: Path, journal_bytes: int, patience_s: float
) -> None:
    with (tmp_path / "journal.jsonl").open("wb") as file:
        file.truncate(journal_bytes)
    supervisor = ControllerSupervisor((), {}, lambda _: None)
    process, clock = PlayedProcess(), Clock()
    supervisor._worker, supervisor._loop = process, clock  # type: ignore[assignment]
    supervisor._config = ControllerConfig(
        spec=SPEC,
        token="",
        run_path=str(tmp_path),
        run_memory="",
        listener=-1,
        address="h:1",
        host_agent="",
        host="h",
        guard=1,
        resume=True,
        campaigns=False,
        temporary=False,
    )
    clock.now_s = patience_s - 0.1
    supervisor.end_stuck(patience_s - 0.1, 2.0)
    assert not process.signals
    clock.now_s = patience_s
    supervisor.end_stuck(1.9, 2.0)
    assert not process.signals, "it answers"
    supervisor.end_stuck(2.0, 2.0)
    assert process.signals == [9]
