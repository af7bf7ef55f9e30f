"""When another agent is started in the place of one that died, with loop, Slurm and journal in the test's hands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from robust_run.launcher.model.actions import Action, Finish, HostEvicted
from robust_run.launcher.model.events import Event
from robust_run.launcher.model.job import NodeInfo
from robust_run.launcher.model.job_parts import SlurmUse
from robust_run.launcher.model.node_events import NodeEvicted, NodeJoined, NodeLost, NodeReadmitted, NodeReturned
from robust_run.launcher.records.journal import JournalEntry
from robust_run.slurm.revive import LOOK_S, PATIENCE_S, Reviver
from robust_run.slurm.scontrol import Answer

JOINED = NodeJoined(node=NodeInfo(id="a", name="rr2", nproc=1))
LOST = NodeLost(node="a", silent_s=3.6)


class Site:
    """A node that leads, and what its reviver does."""

    def __init__(self, folder: Path, term: int = 1) -> None:
        self.journal = folder / "journal.jsonl"
        self.journal.touch()
        self.asked: list[str] = []
        self.now_s = 100.0
        self._look: Callable[[], None] = lambda: None
        run = SimpleNamespace(journal=str(self.journal), path=str(folder))
        use = SlurmUse(job="41", step="0", node_id=0, node_name="rr1")
        self.said: list[str] = []
        self.may_drain = True
        node: Any = SimpleNamespace(spec=SimpleNamespace(slurm=use), run_directory=run, say=self.said.append)
        aside: Any = SimpleNamespace(env={}, ask=self._ask)
        loop: Any = SimpleNamespace(time=lambda: self.now_s, call_later=self._later)
        self.reviver = Reviver(aside, node, SimpleNamespace(is_led_from_here=True, term=term), loop)  # type: ignore[arg-type]

    def _ask(self, words: tuple[str, ...], then: Callable[[Answer], None]) -> None:
        if words[0] == "update":
            self.asked.append(words[1])
            then(Answer(ok=self.may_drain, text="" if self.may_drain else "Invalid user id"))
        else:
            self.asked.append(words[-1])

    def _later(self, _delay_s: float, call: Callable[[], None]) -> None:
        self._look = call

    def happens(self, *events: Event, action: Action | None = None, term: int = 1) -> None:
        lines = [JournalEntry(at=0.0, mono=0.0, term=term, event=event) for event in events]
        lines += [JournalEntry(at=0.0, mono=0.0, term=term, action=action)] if action is not None else []
        with self.journal.open("ab") as file:
            file.writelines(msgspec.json.encode(line) + b"\n" for line in lines)

    def look(self, after_s: float = LOOK_S) -> None:
        self.now_s += after_s
        self._look()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_who_goes_when_the_job_is_over_is_not_replaced(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.happens(JOINED)
    site.look()
    site.happens(action=Finish(exit_code=1, outcome="failed", reason="", sentence=""))
    site.happens(LOST)
    site.look()
    assert site.asked == []


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


# --- evictions


def test_a_node_is_drained_whoever_evicts_it_and_once(site: Site) -> None:
    site.look()
    rule = HostEvicted(name="rr2", reason="GPU 0: it is gone", by="rule gpu.lost")
    site.happens(action=rule)
    site.look()
    assert site.asked == ["NodeName=rr2"]
    assert site.said == ["rr2 is drained: robust-run: job 41: GPU 0: it is gone"]
    site.happens(NodeEvicted(name="rr3", reason="", by="ada"), action=HostEvicted(name="rr3", reason="", by="ada"))
    site.happens(action=rule)
    site.look()
    assert site.asked == ["NodeName=rr2", "NodeName=rr3"]
    assert site.said[1] == "rr3 is drained: robust-run: job 41: evicted by ada"


def test_who_may_not_drain_says_the_command(site: Site) -> None:
    site.look()
    site.may_drain = False
    site.happens(action=HostEvicted(name="rr2", reason="it hangs", by="robust-run"))
    site.look()
    assert site.said == [
        "an administrator may want to look at rr2: "
        'scontrol update NodeName=rr2 State=DRAIN Reason="robust-run: job 41: it hangs"'
    ]


def test_a_node_that_is_readmitted_is_still_drained_and_drained_again_with_its_next_eviction(site: Site) -> None:
    site.look()
    site.happens(action=HostEvicted(name="rr2", reason="it hangs", by="robust-run"))
    site.look()
    site.happens(NodeReadmitted(name="rr2"))
    site.look()
    assert site.said[-1] == "rr2 is readmitted, and still drained: scontrol update NodeName=rr2 State=RESUME"
    site.happens(action=HostEvicted(name="rr2", reason="again", by="robust-run"))
    site.look()
    assert site.asked == ["NodeName=rr2"] * 2


def test_what_was_seen_to_before_or_by_another_job_or_is_void_drains_nothing(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.happens(action=HostEvicted(name="rr2", reason="x", by="robust-run"))
    before = Site(tmp_path, term=2)
    before.look()
    assert before.asked == [], "it leads from now on"
    site.look()
    site.happens(NodeEvicted(name="rr3", reason="x", by="ada", listed=True), term=3)
    site.happens(action=HostEvicted(name="rr3", reason="x", by="ada", listed=True), term=3)
    site.happens(action=HostEvicted(name="rr4", reason="x", by="robust-run"), term=2)
    site.look()
    assert site.asked == ["NodeName=rr2"], "the controller of term 2 did not know that it was followed"


def test_what_this_controller_evicted_before_the_journal_was_first_looked_at_is_drained(tmp_path: Path) -> None:
    """A GPU that breaks in the first second."""
    (tmp_path / "journal.jsonl").touch()
    lines = [
        JournalEntry(at=0.0, mono=0.0, term=term, action=HostEvicted(name=name, reason="x", by="rule r"))
        for term, name in ((1, "rr2"), (2, "rr3"))
    ]
    journal = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
    (tmp_path / "journal.jsonl").write_bytes(journal)
    assert Site(tmp_path, term=2).asked == ["NodeName=rr3"]
