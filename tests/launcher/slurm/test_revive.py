"""When another agent is started in the place of one that died, with loop, Slurm and journal in the test's hands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from robust_run.launcher.model.events import Event, NodeJoined, NodeLost, NodeReturned
from robust_run.launcher.model.job import NodeInfo, SlurmUse
from robust_run.launcher.records.journal import JournalEntry
from robust_run.slurm.revive import LOOK_S, PATIENCE_S, Reviver

JOINED = NodeJoined(node=NodeInfo(id="a", name="rr2", nproc=1))
LOST = NodeLost(node="a", silent_s=3.6)


class Site:
    """A node that leads, and what its reviver does."""

    def __init__(self, folder: Path) -> None:
        self.journal = folder / "journal.jsonl"
        self.journal.touch()
        self.asked: list[str] = []
        self.now_s = 100.0
        self._look: Callable[[], None] = lambda: None
        run = SimpleNamespace(journal=str(self.journal), path=str(folder))
        use = SlurmUse(job="41", step="0", node_id=0, node_name="rr1")
        node: Any = SimpleNamespace(spec=SimpleNamespace(slurm=use), run_directory=run)
        aside: Any = SimpleNamespace(env={}, ask=lambda words, _then: self.asked.append(words[-1]))
        loop: Any = SimpleNamespace(time=lambda: self.now_s, call_later=self._later)
        self.reviver = Reviver(aside, node, SimpleNamespace(is_led_from_here=True), loop)  # type: ignore[arg-type]

    def _later(self, _delay_s: float, call: Callable[[], None]) -> None:
        self._look = call

    def happens(self, *events: Event) -> None:
        with self.journal.open("ab") as file:
            file.writelines(
                msgspec.json.encode(JournalEntry(at=0.0, mono=0.0, event=event)) + b"\n" for event in events
            )

    def look(self, after_s: float = LOOK_S) -> None:
        self.now_s += after_s
        self._look()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_an_agent_that_died_is_seen_to_at_once_and_once(site: Site) -> None:
    site.happens(JOINED, LOST)
    site.look()
    assert site.asked == ["rr2"]
    site.happens(LOST)
    site.look()
    assert site.asked == ["rr2"]


def test_agents_of_a_job_that_stood_still_get_time_to_be_heard_again(site: Site) -> None:
    site.look()
    site.happens(JOINED, LOST)
    site.look(after_s=3600.0)
    assert site.asked == []
    site.happens(NodeReturned(node="a"))
    for _ in range(int(PATIENCE_S / LOOK_S) + 1):
        site.look()
    assert site.asked == []
    site.happens(LOST)
    site.look()
    assert site.asked == ["rr2"]


def test_an_agent_is_replaced_once_though_another_node_leads_by_now(tmp_path: Path) -> None:
    assert [Site(tmp_path).reviver._is_first("a") for _ in range(2)] == [True, False]
