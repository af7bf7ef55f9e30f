"""Who takes a job over knows of alerts what its controller knew, though the journal has few of them: stories of sensors."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from stories import several_nodes, told_to_end

from robust_run.health.types import Event
from robust_run.launcher.controller.controller import Controller
from robust_run.launcher.core.state import JobState
from robust_run.launcher.core.step import replay
from robust_run.launcher.model.events import AttemptEnded, AttemptStarted, RankExited, StoreOpened, Tick
from robust_run.launcher.model.health_events import HealthSeen
from robust_run.launcher.model.job import Progress
from robust_run.launcher.model.links import Outbox
from robust_run.launcher.records import journal
from robust_run.launcher.records.incidents import IncidentBook
from robust_run.launcher.records.run_directory import RunDirectory


class Clock:
    """Time that tests move."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return 1e9 + self.now_s


class Nobody(Outbox):
    """Orders go nowhere."""

    def send(self, node: str, order: object) -> None:
        """Nothing is done."""


class Led:
    """A job of nodes that goes on with one of them, whose controller hears of sensors."""

    def __init__(self, folder: Path, nodes: str = "ab") -> None:
        self.clock = Clock()
        self.path = str(folder / "journal.jsonl")
        self._story = several_nodes(*nodes, fewest=1)
        self.policy, self.state = self._story.policy, self._story.state
        self.controller = Controller(
            policy=self.policy,
            state=self.state,
            journal=journal.Journal(self.path, self.clock, lambda *_: None),
            book=IncidentBook(self.clock, RunDirectory(str(folder), str(folder)), lambda _: None, lambda *_: None),
            clock=self.clock,
            outbox=Nobody(),
            later=asyncio.get_running_loop().call_later,
            on_finish=lambda _: None,
        )

    def hears(
        self, name: str, subject: str = "eth0", *, node: str = "b", after_s: float = 0.0, kind: str = "alert"
    ) -> None:
        self.clock.now_s += after_s
        event = Event(name=name, kind=kind, subject=subject, detail="it is so", at_s=self.clock.now_s)  # type: ignore[arg-type]
        self.controller.tell(HealthSeen(node=node, event=event, at_unix_s=self.clock.unix_s()))

    def lines(self) -> int:
        return Path(self.path).read_text(encoding="utf-8").count("health_seen")

    def goes_on(self) -> None:
        """Nodes do what they are told until an attempt runs again."""
        tell, state = self.controller.tell, self.state
        while state.phase in ("ending", "suspecting", "opening", "gathering") and state.finish is None:
            self.clock.now_s += 31.0
            tell(Tick())
            if state.phase == "opening":
                tell(StoreOpened(attempt=state.attempt, node=state.layout[0].node, address="x", port=1))
                for place in state.layout:
                    tell(AttemptStarted(attempt=state.attempt, node=place.node, pids=(1, 2), port=1))
            for place in tuple(state.layout) if state.phase == "ending" else ():
                ranks = tuple(told_to_end(place.first_rank + each, self.clock.now_s) for each in range(place.nproc))
                made = Progress(steps=1000, lived_s=1000.0)
                ended = AttemptEnded(
                    attempt=state.attempt, node=place.node, started_at_s=0.0, ranks=ranks, progress=made
                )
                tell(ended)

    def replayed(self) -> JobState:
        """Where another controller begins that reads the journal."""
        with open(self.path, "rb") as file:
            entries = [msgspec.json.decode(line, type=journal.JournalEntry) for line in file]
        before = replay(self.policy, self._story.told)
        return replay(self.policy, journal.events_of(entries), before)


def told(folder: Path, happens: Callable[[Led], None], nodes: str = "ab") -> tuple[JobState, JobState, int]:
    """Return where a job stands after this, where who takes it over does, and of how many alerts its journal has."""

    async def tell() -> tuple[JobState, JobState, int]:
        led = Led(folder, nodes)
        happens(led)
        lines = led.lines()
        return led.state, led.replayed(), lines

    return asyncio.run(tell())


def test_a_node_that_a_rule_took_out_stays_out_though_the_alert_before_was_one_of_many_alike(tmp_path: Path) -> None:
    """Two alerts within five minutes evict; alerts further apart came for a day before."""

    def happens(led: Led) -> None:
        for _ in range(24 * 6):
            led.hears("network.errors", after_s=600.0)
        led.hears("network.errors", after_s=100.0)

    known, taken_over, lines = told(tmp_path, happens)
    assert lines < 40
    assert list(known.evicted) == ["b"]
    assert (list(taken_over.evicted), taken_over.phase) == (["b"], known.phase)


def test_what_lasts_for_a_day_takes_few_lines(tmp_path: Path) -> None:
    def happens(led: Led) -> None:
        for _ in range(2880):
            led.hears("gpu.throttled", "GPU 0", after_s=30.0)

    _, _, lines = told(tmp_path, happens)
    assert lines < 50


def test_what_was_seen_shortly_before_a_failure_is_known_to_who_takes_over(tmp_path: Path) -> None:
    def happens(led: Led) -> None:
        for _ in range(100):
            led.hears("gpu.throttled", "GPU 0", after_s=30.0)
        led.clock.now_s += 5.0
        led.controller.tell(RankExited(attempt=0, rank=2, exit_code=1))

    known, taken_over, lines = told(tmp_path, happens)
    assert lines < 20
    assert known.phase == taken_over.phase != "running"
    assert taken_over.health.recent[-1].event == known.health.recent[-1].event
    assert taken_over.health.active == known.health.active


def test_what_went_on_again_after_it_was_said_to_be_over_is_so_for_who_takes_over(tmp_path: Path) -> None:
    """It came and went for four hours, each time said once; then it stays."""

    def comes_and_goes(led: Led) -> None:
        for _ in range(500):
            led.hears("gpu.throttled", "GPU 0", after_s=15.0)
            led.hears("gpu.throttled", "GPU 0", after_s=15.0, kind="clear")
        for _ in range(11):
            led.hears("gpu.throttled", "GPU 0", after_s=30.0)

    known, taken_over, lines = told(tmp_path, comes_and_goes)
    assert lines < 40
    assert list(taken_over.health.active) == list(known.health.active) == [("b", "gpu.throttled", "GPU 0")]


@pytest.mark.parametrize("seed", range(8))
def test_whatever_sensors_say_who_takes_over_stands_where_its_predecessor_did(tmp_path: Path, seed: int) -> None:
    """Nodes are evicted, ranks fail, alerts come and go, close together and far apart."""
    chance = random.Random(seed)
    names = ("network.errors", "network.link_down", "gpu.throttled", "mount.stale", "mount.hung", "disk.stuck")
    usual = [(chance.choice(names), chance.choice("abcdef")) for _ in range(4)]
    gap_s = chance.choice((30.0, 60.0, 200.0, 600.0))

    def happens(led: Led) -> None:
        for _ in range(400):
            name, node = chance.choice(usual)
            kind = "clear" if chance.random() < 0.25 else "alert"
            led.hears(name, "it", node=node, after_s=chance.uniform(0.1, 2 * gap_s), kind=kind)
            if chance.random() < 0.02:
                ranks = sum(place.nproc for place in led.state.layout)
                led.controller.tell(RankExited(attempt=led.state.attempt, rank=chance.randrange(ranks), exit_code=1))
            led.goes_on()

    known, taken_over, _ = told(tmp_path, happens, "abcdef")
    assert known.attempt > 0
    assert _stands(taken_over) == _stands(known)


def _stands(state: JobState) -> tuple[object, ...]:
    gone = [(each.name, each.rule) for each in state.health.evicted]
    return (state.attempt, state.phase, sorted(state.evicted), gone, [place.node for place in state.layout])
