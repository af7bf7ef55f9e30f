"""What the journal has of that which sensors say again and again: stories of sensors, with the time in the test's hands."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
from stories import several_nodes

from robust_run.clock import SystemClock
from robust_run.health.sensors.types import Condition, Levels
from robust_run.health.signs.levels import follow
from robust_run.health.types import Event
from robust_run.launcher.controller.controller import Controller
from robust_run.launcher.controller.repeats import RAREST_S, Repeats
from robust_run.launcher.model.health_events import HealthSeen
from robust_run.launcher.model.links import Outbox
from robust_run.launcher.records import journal
from robust_run.launcher.records.incidents import IncidentBook
from robust_run.launcher.records.run_directory import RunDirectory

DAY_S = 86400.0
LINK_DOWN = Condition(name="network.link_down", subject="eth0", detail="the link is down", repeat_s=30.0)


class Journal:
    """A controller's book, and what it put on record, with the times."""

    def __init__(self) -> None:
        self.repeats = Repeats()
        self.now_s = 0.0
        self.lines: list[tuple[float, HealthSeen]] = []
        self._levels: Levels = {}
        self.heard = 0

    def hears(self, event: Event, node: str = "a", *, has_consequences: bool = False) -> bool:
        self.heard += 1
        seen = HealthSeen(node=node, event=event, at_unix_s=1e9 + self.now_s)
        kept = self.repeats.on_record(seen, self.now_s, has_consequences=has_consequences)
        self.lines += [(self.now_s, line) for line in kept]
        return bool(kept)

    def lasts(self, *conditions: Condition, for_s: float, every_s: float = 30.0) -> None:
        """A sensor looks every so often, and finds this each time."""
        for _ in range(int(for_s / every_s)):
            self.looks(*conditions)
            self.now_s += every_s

    def looks(self, *conditions: Condition) -> None:
        self._levels, events = follow(self._levels, conditions, self.now_s)
        for event in events:
            self.hears(event)

    @property
    def times_s(self) -> list[float]:
        return [at_s for at_s, _ in self.lines]


def alert(
    name: str = "memory.oom_kill", detail: str = "python was killed", number: int = 0, kind: str = "alert"
) -> Event:
    return Event(name=name, kind=kind, subject="", detail=detail, at_s=0.0, number=number)  # type: ignore[arg-type]


def test_a_link_that_is_down_for_two_months_takes_less_than_a_megabyte() -> None:
    journal = Journal()
    journal.lasts(LINK_DOWN, for_s=60 * DAY_S)
    assert journal.heard == 60 * 2880
    assert sum(len(msgspec.json.encode(line)) for _, line in journal.lines) < 1 << 20
    gaps = [later - sooner for sooner, later in zip(journal.times_s, journal.times_s[1:], strict=False)]
    assert max(gaps) == RAREST_S, "somebody who looks into the journal finds it within the hour that status shows it"


def test_it_is_told_at_once_then_ever_more_seldom_and_when_it_is_over_with_how_often_it_was_said() -> None:
    journal = Journal()
    journal.lasts(LINK_DOWN, for_s=600.0)
    journal.looks()
    assert journal.times_s == [0.0, 30.0, 60.0, 120.0, 240.0, 480.0, 600.0]
    assert [line.left_out for _, line in journal.lines] == [0, 0, 0, 1, 3, 7, 3]
    assert sum(1 + line.left_out for _, line in journal.lines) == journal.heard
    assert journal.lines[-1][1].event.kind == "clear"
    assert journal.lines[-1][1].event.detail == "over after 600 s: the link is down"


def test_what_comes_and_goes_again_and_again_fills_no_disk_and_its_end_is_on_record_where_its_beginning_is() -> None:
    journal = Journal()
    for _ in range(2880):
        journal.looks(LINK_DOWN)
        journal.now_s += 15.0
        journal.looks()
        journal.now_s += 15.0
    assert len(journal.lines) < 80
    kinds = [line.event.kind for _, line in journal.lines]
    assert kinds == ["alert", "clear"] * (len(kinds) // 2), "no beginning without its end"


def test_what_something_follows_from_is_always_on_record() -> None:
    journal = Journal()
    for _ in range(50):
        assert journal.hears(alert(), has_consequences=True)
        journal.now_s += 1.0


def test_what_tells_something_new_is_always_on_record() -> None:
    journal = Journal()
    for number in range(50):  # each another process
        assert journal.hears(alert(number=1000 + number))
    for node in "abcdef":
        assert journal.hears(alert(name="gpu.xid.63"), node)
    assert journal.hears(alert(name="gpu.xid.63", detail="something else"))


def test_what_was_not_heard_of_for_an_hour_is_new() -> None:
    journal = Journal()
    assert [journal.hears(alert()) for _ in range(3)] == [True, True, True]
    journal.now_s += 10.0
    assert journal.hears(alert())
    journal.now_s += 5.0
    assert not journal.hears(alert())
    journal.now_s += RAREST_S + 1
    assert journal.hears(alert())


def test_after_other_sensors_took_over_what_is_still_so_is_on_record_again() -> None:
    """The record of before is void with them, also for who reads the journal."""
    journal = Journal()
    journal.lasts(LINK_DOWN, for_s=300.0)
    assert journal.hears(alert("sensors.ended", "they hang", kind="note"))
    assert journal.hears(alert("sensors.ended", "they hang", kind="note"))
    before = len(journal.lines)
    journal.looks(LINK_DOWN)
    assert len(journal.lines) == before + 1


class Nobody(Outbox):
    """Orders go nowhere."""

    def send(self, node: str, order: object) -> None:
        """Nothing is done."""


def test_the_controller_hears_all_of_it_and_its_journal_has_little(tmp_path: Path) -> None:
    async def hears() -> int:
        story = several_nodes("a", "b")
        controller = Controller(
            policy=story.policy,
            state=story.state,
            journal=journal.Journal(str(tmp_path / "journal.jsonl"), SystemClock(), lambda *_: None),
            book=IncidentBook(
                SystemClock(), RunDirectory(str(tmp_path), str(tmp_path)), lambda _: None, lambda *_: None
            ),
            clock=SystemClock(),
            outbox=Nobody(),
            later=asyncio.get_running_loop().call_later,
            on_finish=lambda _: None,
        )
        for again in range(200):
            event = Event(name="gpu.throttled", kind="alert", subject="GPU 0", detail=f"for {again} s now", at_s=again)
            controller.tell(HealthSeen(node="a", event=event, at_unix_s=1e9 + again))
        (sign,) = story.state.health.active.values()
        return int(sign.event.at_s)

    assert asyncio.run(hears()) == 199
    lines = (tmp_path / "journal.jsonl").read_text().count("health_seen")
    assert 1 <= lines < 200


def test_another_gpu_port_or_rank_is_news_and_another_number_is_not() -> None:
    journal = Journal()
    for number in range(8):
        assert journal.hears(alert("gpu.dropped", f"GPU {number} fell off the bus"))
        assert journal.hears(alert("nic.errors", f"mlx5_{number} lost 3 packets"))
        assert journal.hears(alert("disk.io", f"nvme{number}n1: sector 12345"))
        assert journal.hears(alert("pcie", f"0000:{number}b:00.0 replays"))
        assert journal.hears(alert("numbers", f"rank {number} differs"))
        assert journal.hears(
            alert("memory.ce", f"2 errors on CPU_SrcID#0_MC#1_Chan#0_DIMM#{number} (page:0x12{number})")
        )
    before = len(journal.lines)
    for each in range(40):
        journal.hears(alert("retransmitted", f"{5 + each / 10}% of the segments, at 0x{each:x}"))
        journal.now_s += 30.0
    assert len(journal.lines) - before < 10
