"""What one job makes of the eviction list that it shares with others."""

from __future__ import annotations

from pathlib import Path

import pytest

from robust_run.clock import SystemClock
from robust_run.launcher.controller.eviction_list import EvictionList
from robust_run.launcher.core.state import Eviction, JobState
from robust_run.launcher.model.events import AttemptEnded, Event, Inquired
from robust_run.launcher.model.job import Progress
from robust_run.launcher.model.node_events import NodeEvicted, NodeReadmitted
from robust_run.launcher.records import evictions

ENDED = AttemptEnded(attempt=0, node="a", started_at_s=0.0, ranks=(), progress=Progress())


class Job:
    """A job whose core does nothing but remember evictions."""

    def __init__(self, path: Path) -> None:
        self.state = JobState()
        self.told: list[Event] = []
        self.said: list[str] = []
        self.list = EvictionList(str(path), SystemClock(), self.said.append)

    def tell(self, event: Event) -> None:
        self.told.append(event)
        if isinstance(event, NodeEvicted):
            self.state.evicted[event.name] = Eviction(reason=event.reason, by=event.by, at_unix_s=event.at_unix_s)
        elif isinstance(event, NodeReadmitted):
            del self.state.evicted[event.name]
        self.list.after(event, self.state)

    def begin(self) -> None:
        self.list.tell(self.state, self.tell)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "evicted.jsonl"


def test_what_the_list_says_is_told_and_not_written_again(path: Path) -> None:
    path.write_text("gpu-18 waits for a new cable\n")
    job = Job(path)
    job.begin()
    (told,) = job.told
    assert told == NodeEvicted(name="gpu-18", reason="waits for a new cable", by="the list", at_unix_s=0.0, listed=True)
    assert path.read_text() == "gpu-18 waits for a new cable\n"


def test_what_a_job_knows_already_is_not_told_again(path: Path) -> None:
    path.write_text("gpu-18\n")
    job = Job(path)
    job.state.evicted["gpu-18"] = Eviction(reason="", by="the list")
    job.begin()
    assert job.told == []


def test_a_job_adds_what_it_decides_and_takes_back(path: Path) -> None:
    job = Job(path)
    job.begin()
    job.tell(NodeEvicted(name="gpu-17", reason="Xid 79", by="ann", at_unix_s=5.0))
    assert evictions.load(str(path)) == {"gpu-17": Eviction(reason="Xid 79", by="ann", at_unix_s=5.0)}
    job.tell(NodeReadmitted(name="gpu-17", by="ann"))
    assert evictions.load(str(path)) == {}


def test_hosts_that_a_rule_took_out_are_added_once(path: Path) -> None:
    job = Job(path)
    job.state.evicted["gpu-17"] = Eviction(reason="fell off the bus", by=f"{evictions.BY_RULE}gpu_lost", at_unix_s=5.0)
    job.list.after(ENDED, job.state)
    job.list.after(ENDED, job.state)
    assert path.read_text().count("gpu-17") == 1


def test_a_list_that_cannot_be_written_is_said_and_the_eviction_holds(tmp_path: Path) -> None:
    job = Job(tmp_path / "no" / "such" / "folder")
    job.tell(NodeEvicted(name="gpu-17", reason="", by="ann", at_unix_s=5.0))
    assert "gpu-17" in job.state.evicted
    assert "holds for this job only" in job.said[0]


def test_without_a_list_nothing_is_told_or_written() -> None:
    job = Job(Path())
    job.list = EvictionList("", SystemClock(), job.said.append)
    job.begin()
    job.tell(NodeEvicted(name="gpu-17", reason="", by="ann", at_unix_s=5.0))
    assert (len(job.told), job.said) == (1, [])


def test_what_rules_do_where_an_attempt_is_concluded_after_a_post_mortem_is_kept_too(path: Path) -> None:
    job = Job(path)
    job.tell(ENDED)
    job.state.evicted["gpu-17"] = Eviction(reason="fell off the bus", by=f"{evictions.BY_RULE}gpu_lost", at_unix_s=5.0)
    assert not path.exists()
    job.tell(Inquired(attempt=0, reason="what they left behind does not say why they ended"))
    assert "gpu-17" in path.read_text()
