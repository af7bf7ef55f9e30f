"""What a node does about a time limit, with clock, loop and Slurm in the test's hands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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
        self.watch = SlurmWatch(agent, node, link, loop)

    def _later(self, _delay_s: float, _call: Callable[..., None], *_: object) -> Any:
        return SimpleNamespace(cancel=lambda: None)

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
