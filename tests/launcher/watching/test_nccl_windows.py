"""What an agent tells of NCCL in its ranks, window by window, and what the controller makes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from stories import several_nodes
from tracer.nccl.conftest import compiler, driver, plugin  # noqa: F401 - fixtures
from tracer.nccl.playing import Rank
from tracer.nccl.test_slow import SLOW, WELL, work

from robust_run.harmless import Harmless
from robust_run.health.signs.nic_bursts import NicBurst
from robust_run.launcher.agent.nccl.nics import NicLook
from robust_run.launcher.agent.nccl.windows import FIRST_MARK_S, NcclWindows
from robust_run.launcher.control.frames import HEADER_BYTES, decode_from_agent, encode
from robust_run.launcher.controller.comparing.nccl_slowness import NcclSlowness, WindowNumbers
from robust_run.launcher.model.events import Event, Inquired
from robust_run.launcher.model.nccl_windows import NcclWindow
from robust_run.tracer.nccl.sampling import sampled_ranks
from robust_run.tracer.nccl.slowness import EVERYBODY, FEWEST, NEEDED, NEEDED_OF_GPUS, WARM_UP, WINDOW_S
from robust_run.tracer.nccl.work import RankWork
from robust_run.tracer.plugin import layout


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return self.now_s


def nics_of(second: int) -> NicBurst:
    """Half a second of two NICs."""
    return NicBurst(length_s=0.5, moved={"mlx5_0": (10**6,) * 50, "mlx5_1": (second,) * 50})


class Node:
    """Two ranks of a node of a job of forty, of which the second is not sampled."""

    def __init__(self, ranks: list[Rank]) -> None:
        self.ranks, self.clock = ranks, Clock()
        self.told: list[NcclWindow] = []
        self.complaints: list[str] = []
        self.done = 0
        for number, rank in enumerate(ranks):
            rank.play(f"comm 0 dp_{number} {70 + number} 20 4 0")
        self.bursts = [nics_of(10**6), *[nics_of(0)] * 20]
        self.windows = NcclWindows(
            attempt=3,
            world_size=40,
            paths={number: rank.path for number, rank in enumerate(ranks)},
            clock=self.clock,
            deliver=self.told.append,
            harmless=Harmless("looking", self.complaints.append),
            nics=NicLook(lambda: self.bursts.pop(0), lambda what: what()),
        )

    def window(self, after_s: float = WINDOW_S) -> None:
        """An operation of eight steps in each rank, and a look."""
        for rank in self.ranks:
            rank.play(f"coll 0 1 {self.done} AllReduce 4096 ncclFloat32 0", "op 0 2 1 0 0 1 8 1", "stop 1")
            rank.play("steps 0 2 0 8 1", "stop 2")
        self.done += 1
        self.clock.now_s += after_s
        self.windows.look()


@pytest.fixture
def node(driver: str, plugin: str, tmp_path: Path) -> Iterator[Node]:  # noqa: F811
    ranks = []
    for number in range(2):
        path = str(tmp_path / f"{number}.nccl")
        layout.create(path)
        ranks.append(Rank(driver, plugin, 6, path))
    made = Node(ranks)
    yield made
    for rank in ranks:
        rank.close()
    assert made.complaints == []


def ranks_of(works: tuple[RankWork, ...]) -> list[int]:
    return [work.rank for work in works]


def test_sampled_ranks_are_told_of_and_all_once_something_is_suspicious(node: Node) -> None:
    sampled = [rank for rank in sampled_ranks(40, 2, int(1000 / WINDOW_S) // 120) if rank < 2]
    assert len(sampled) == 1
    node.window()
    assert node.told == []  # the first look has nothing before it
    node.window()
    assert ranks_of(node.told[-1].works) == sampled
    assert (node.told[-1].number, node.told[-1].works[0].length_s) == (int(node.clock.now_s // WINDOW_S), WINDOW_S)
    assert [comm.ops for comm in node.told[-1].works[0].comms] == [1]
    node.windows.everybody()
    node.window()
    assert (ranks_of(node.told[-1].works), node.told[-1].past) == ([0, 1], ())  # nobody knows a past yet
    for _ in range(EVERYBODY):
        node.window()
    assert ranks_of(node.told[-1].works) == sampled


def test_the_past_is_told_once_when_all_are_looked_at(node: Node) -> None:
    node.window()
    node.window(FIRST_MARK_S)
    node.window()
    node.window()
    node.windows.everybody()
    node.window()
    assert ranks_of(node.told[-1].past) == [0, 1]
    assert [work.comms[0].ops for work in node.told[-1].past] == [3, 3]
    (line,) = node.told[-1].nics
    assert line.startswith("NIC mlx5_1 moves nothing, its peers 100 MB/s (")
    assert [told.nics for told in node.told[:-1]] == [()] * (len(node.told) - 1)
    node.windows.everybody()  # it goes on
    node.window()
    assert node.told[-1].past == ()
    assert len(node.told[-1].nics) == 1, "NICs are looked at for as long as it does"
    left = len(node.bursts)
    for _ in range(EVERYBODY + 2):
        node.window()
    assert left - EVERYBODY <= len(node.bursts), "and no longer"
    assert node.told[-1].nics == ()


def test_a_window_that_was_missed_is_not_made_up_for(node: Node) -> None:
    node.window()
    node.window()
    count = len(node.told)
    node.window(3 * WINDOW_S)
    assert len(node.told) == count


# ---- the controller
NODES = ("n0", "n1", "n2", "n3")


class Controller:
    """A controller of four nodes with a rank each."""

    def __init__(self) -> None:
        self.asked = 0
        self.told: list[Event] = []
        self.complaints: list[str] = []
        self.story = several_nodes(*NODES)
        self.number, self.clock = 0, Clock()
        self.ahead = [0] * len(NODES)
        """By node: how many windows its calendar is ahead."""
        self.slowness = NcclSlowness(
            state=self.story.state, clock=self.clock, ask=self.ask, tell=self.told.append, say=self.complaints.append
        )

    def ask(self) -> None:
        self.asked += 1

    def window(
        self,
        works: list[RankWork],
        past: list[RankWork] | None = None,
        nics: tuple[str, ...] = (),
        speaks: Callable[[int], bool] = lambda _: True,
    ) -> None:
        self.number += 1
        self.clock.now_s += WINDOW_S
        for rank, node in enumerate(NODES):
            if speaks(rank):
                said = NcclWindow(
                    attempt=self.story.state.attempt,
                    number=self.number + self.ahead[rank],
                    works=(works[rank],),
                    past=(past[rank],) if past is not None else (),
                    nics=nics,
                )
                self.slowness.take(node, said)


def test_what_stays_slow_is_said_once_and_as_other_slow_verdicts_are() -> None:
    controller = Controller()
    for _ in range(WARM_UP + FEWEST):
        controller.window(WELL)
    assert controller.asked == 0
    controller.window(SLOW)
    assert controller.asked == 1
    controller.window(SLOW, past=WELL)
    for _ in range(NEEDED + 1):
        controller.window(SLOW)
    (told,) = controller.told
    assert isinstance(told, Inquired) and told.verdict is not None
    assert (told.verdict.kind, told.verdict.ranks, told.verdict.rule) == ("slow", (1, 2), "nccl_slow_link")
    assert told.verdict.nodes == ()  # it is not known which of the two; nobody is evicted for it
    assert controller.complaints == []


@pytest.mark.parametrize("ahead", [[0, 0, 0, 0], [0, 1800, 0, 0], [-43200, 0, 0, 1], [9, 1800, -7, 43200]])
def test_what_is_slow_is_found_where_calendars_of_nodes_are_hours_apart(ahead: list[int]) -> None:
    controller = Controller()
    controller.ahead = ahead
    for _ in range(WARM_UP + FEWEST):
        controller.window(WELL)
    controller.window(SLOW)
    assert controller.asked == 1


@pytest.mark.parametrize("windows", [-1800, 1800])
def test_after_all_calendars_were_set_what_is_slow_is_still_found(windows: int) -> None:
    controller = Controller()
    for _ in range(WARM_UP + FEWEST):
        controller.window(WELL)
    controller.ahead = [windows] * len(NODES)
    controller.window(WELL)
    controller.window(SLOW)
    assert controller.asked == 1


def numbered(numbers: WindowNumbers, windows: range, late: Callable[[int], float] = lambda _: 0.0) -> list[set[int]]:
    """Return by window how it is numbered, of three nodes with one calendar of which the second is late, in windows."""
    places = enumerate(("a", "b", "c"))
    delays = {node: 0.1 * place for place, node in places}
    return [
        {
            numbers.of(node, window, (window + 7.45 + delay + (late(window) if node == "b" else 0.0)) * WINDOW_S)
            for node, delay in delays.items()
        }
        for window in windows
    ]


@pytest.mark.parametrize("windows_late", [0.6, 1.2, 1.8, 2.6, 4.0])
def test_a_network_that_was_slow_for_a_while_is_no_calendar(windows_late: float) -> None:
    """What nodes did in different windows would be compared, and one be slow that is not."""
    numbers = WindowNumbers()
    numbered(numbers, range(50))
    slow = numbered(numbers, range(50, 54), lambda _: windows_late)
    assert all(len(each) == 1 for each in slow), "it knows which window it was"
    assert all(len(each) == 1 for each in numbered(numbers, range(54, 60)))


def test_so_is_one_that_was_slow_for_long_once_it_is_quick_again() -> None:
    numbers = WindowNumbers()
    numbered(numbers, range(50))
    numbered(numbers, range(50, 70), lambda window: 2.0 + window % 3)
    assert all(len(each) == 1 for each in numbered(numbers, range(70, 90)))


def test_what_nics_are_unlike_their_peers_is_evidence() -> None:
    controller = Controller()
    late = [work(0), work(1, late_s=0.3), work(2), work(3)]
    for _ in range(WARM_UP + FEWEST):
        controller.window(WELL)
    controller.window(late)
    controller.window(late, past=WELL)
    controller.window(late, nics=("NIC x moves nothing",))
    for _ in range(NEEDED_OF_GPUS + 2):
        controller.window(late)
    (told,) = controller.told
    assert isinstance(told, Inquired) and told.verdict is not None
    assert (told.verdict.rule, told.verdict.nodes) == ("nccl_slow_gpu", ("n1",))
    assert told.verdict.evidence[-1] == "n1: NIC x moves nothing"


def test_a_node_that_says_nothing_holds_a_window_up_for_a_moment_only() -> None:
    controller = Controller()
    for _ in range(WARM_UP + FEWEST):
        controller.window(WELL, speaks=lambda rank: rank < 2)
    controller.window(SLOW, speaks=lambda rank: rank < 2)
    assert controller.asked == 0
    controller.window(SLOW, speaks=lambda rank: rank < 2)
    controller.window(SLOW, speaks=lambda rank: rank < 2)
    assert controller.asked == 1


def test_windows_of_another_attempt_and_late_ones_do_not_count() -> None:
    controller = Controller()
    for number in (5, 4, 3):
        for node in NODES:
            controller.slowness.take(node, NcclWindow(attempt=0, number=number, works=(SLOW[0],)))
    controller.slowness.take("n0", NcclWindow(attempt=9, number=6, works=(SLOW[0],)))
    assert (controller.asked, controller.told, controller.complaints) == (0, [], [])


def test_they_travel() -> None:
    said = NcclWindow(attempt=0, number=7, works=tuple(SLOW), past=tuple(WELL))
    assert decode_from_agent(encode(said)[HEADER_BYTES:]) == said
