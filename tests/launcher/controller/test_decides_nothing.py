"""A controller that decides nothing: one that does not see its nodes, for the moment, and one that another follows, for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from robust_run.clock import SystemClock
from robust_run.launcher.controller.controller import Controller
from robust_run.launcher.core.state import CorePolicy, JobState
from robust_run.launcher.model.actions import Order
from robust_run.launcher.model.events import Event, StoreOpened
from robust_run.launcher.model.job import JobSpec, NodeInfo, OutputStreams
from robust_run.launcher.model.node_events import JobStarted, NodeEvicted, NodeJoined, NodeLost
from robust_run.launcher.records.incidents import IncidentBook
from robust_run.launcher.records.journal import Journal
from robust_run.launcher.records.journal_reading import read
from robust_run.launcher.records.run_directory import RunDirectory

POLICY = CorePolicy(
    fewest=2, most=2, max_restarts=3, progress_after_s=600.0, restart_grace_s=3.0, shutdown_timeout_s=30.0, many=True
)
SPEC = JobSpec(
    argv=("train",),
    script="train",
    is_python=False,
    nproc=1,
    run_id="run",
    rdzv_id="job",
    log_dir=None,
    streams=OutputStreams(redirects=(), tee=(), shown=()),
)
OPENED = StoreOpened(attempt=0, node="a", address="10.0.0.1", port=29500)


class Ground:
    """The real controller of a job of two nodes, which are about to start attempt 0."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "journal.jsonl")
        self.sent: list[tuple[str, Order]] = []
        self.journal = Journal(self.path, SystemClock(), self.fail)
        self.journal.open_with(SPEC, "host-a")
        self.controller = Controller(
            policy=POLICY,
            state=JobState(),
            journal=self.journal,
            book=IncidentBook(SystemClock(), RunDirectory(str(folder), str(folder)), lambda _: None, lambda *_: None),
            clock=SystemClock(),
            outbox=self,
            later=asyncio.get_running_loop().call_later,
            on_finish=lambda _: None,
        )
        self.controller.tell(JobStarted())
        for name in ("a", "b"):
            self.controller.tell(NodeJoined(node=NodeInfo(id=name, name=f"host-{name}", nproc=1)))
        self.sent.clear()

    def fail(self, path: str, error: OSError) -> None:
        raise error

    def send(self, node: str, order: Order) -> None:
        self.sent.append((node, order))

    def on_record(self) -> list[Event]:
        return [entry.event for entry in read(self.path)[1] if entry.event is not None]


def on_ground(tmp_path: Path, story: Callable[[Ground], None]) -> None:
    async def main() -> None:
        ground = Ground(tmp_path)
        try:
            story(ground)
        finally:
            ground.journal.close()

    asyncio.run(main())


def test_what_is_told_to_one_that_another_follows_is_not_put_on_record_and_leads_to_no_order(tmp_path: Path) -> None:
    def story(ground: Ground) -> None:
        before = ground.on_record()
        ground.controller.is_deposed = True
        ground.controller.tell(OPENED)
        ground.controller.tell(NodeEvicted(name="host-b", reason="ECC errors"))
        assert (ground.sent, ground.on_record()) == ([], before)
        assert ground.controller.state.attempt == 0
        assert not ground.controller.state.is_started

    on_ground(tmp_path, story)


def test_one_that_does_not_see_its_nodes_takes_in_later_what_was_told_in_the_order_it_was_told(tmp_path: Path) -> None:
    def story(ground: Ground) -> None:
        before = len(ground.on_record())
        ground.controller.waits = True
        ground.controller.tell(OPENED)
        ground.controller.tell(NodeLost(node="b", silent_s=3.5))
        assert (ground.sent, len(ground.on_record())) == ([], before)
        ground.controller.go_on()
        assert ground.on_record()[before:] == [OPENED, NodeLost(node="b", silent_s=3.5)]
        assert ground.sent

    on_ground(tmp_path, story)


def test_what_people_ask_of_it_is_done_at_once(tmp_path: Path) -> None:
    def story(ground: Ground) -> None:
        ground.controller.waits = True
        ground.controller.tell(NodeEvicted(name="host-b", reason="ECC errors"))
        assert "host-b" in ground.controller.state.evicted

    on_ground(tmp_path, story)


@pytest.mark.parametrize("is_deposed", [False, True])
def test_one_that_is_followed_meanwhile_never_decides_on_what_it_kept(tmp_path: Path, is_deposed: bool) -> None:
    def story(ground: Ground) -> None:
        before = len(ground.on_record())
        ground.controller.waits = True
        ground.controller.tell(OPENED)
        ground.controller.is_deposed = is_deposed
        ground.controller.go_on()
        assert len(ground.on_record()) == before + (not is_deposed)

    on_ground(tmp_path, story)
