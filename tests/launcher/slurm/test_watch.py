"""What a node does about a time limit, with clock, loop and Slurm in the test's hands."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from robust_run.launcher.model.events import LimitNear
from robust_run.launcher.model.job_parts import SlurmUse
from robust_run.slurm.rules.types import SlurmJobFacts
from robust_run.slurm.scontrol import Answer
from robust_run.slurm.watch import EARLY_S, SlurmWatch


class Site:
    """A node that leads, what its watch reports, and what it plans."""

    def __init__(self, folder: Path, requeue: str = "auto") -> None:
        self.now_s = 100.0
        self.reported: list[LimitNear] = []
        use = SlurmUse(job="41_2", step="0", node_id=0, node_name="rr1", requeue=requeue)
        spec = SimpleNamespace(slurm=use, many=None, shutdown_timeout_s=20.0)
        node: Any = SimpleNamespace(
            spec=spec, spare=list, say=lambda _: None, run_directory=SimpleNamespace(path=str(folder))
        )
        agent: Any = SimpleNamespace(pass_on=lambda _: ([], []))
        loop: Any = SimpleNamespace(time=lambda: self.now_s, call_later=self._later)
        link: Any = SimpleNamespace(is_led_from_here=True, report=self.reported.append)
        self.planned = 0
        """Timers that were set since the watch was made."""
        self.watch = SlurmWatch(agent, node, link, loop)
        self.planned = 0

    def _later(self, _delay_s: float, _call: Callable[..., None], *_: object) -> Any:
        self.planned += 1
        return SimpleNamespace(cancel=lambda: None)

    def slurm_is_silent(self, left_s: float) -> None:
        """Nobody answers `left_s` before the limit, as this clock has it."""
        self.watch._use = msgspec.structs.replace(self.watch._use, end_unix_s=time.time() + left_s)
        self.watch._near(None, Answer(ok=False, text="Expired credential"))

    def limit_is_near(self, after_s: float) -> None:
        self.now_s += after_s
        facts = SlurmJobFacts(state="RUNNING", end_unix_s=1.0, is_batch=True)
        self.watch._near(facts, Answer(ok=True, text=""))


@pytest.mark.parametrize(
    ("requeue", "after_s", "reported"),
    [
        ("auto", 600.0, [LimitNear()]),
        ("never", 600.0, []),
        ("auto", EARLY_S / 2, []),  # it was near from the start: what always fails would be requeued for ever
    ],
)
def test_the_controller_hears_that_an_attempt_is_the_last_one(
    tmp_path: Path, requeue: str, after_s: float, reported: list[LimitNear]
) -> None:
    site = Site(tmp_path, requeue)
    site.limit_is_near(after_s)
    assert site.reported == reported
    assert (tmp_path / "warning-0-0.json").exists()


def test_while_slurm_does_not_answer_the_leader_asks_again_whether_the_job_is_requeued(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.slurm_is_silent(50.0)
    assert (tmp_path / "warning-0-0.json").exists()
    assert site.planned == 1


def test_a_warning_by_a_clock_that_was_wrong_is_taken_back_when_slurm_answers(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.slurm_is_silent(-1.0)
    far = SlurmJobFacts(state="RUNNING", end_unix_s=time.time() + 7200.0, is_batch=True)
    site.watch._near(far, Answer(ok=True, text=""))
    assert site.reported == [LimitNear(near=False)]
    assert not (tmp_path / "warning-0-0.json").exists()
    assert site.planned == 2, "the warning before the limit is still to come"
