"""The register of a job's runs: the newest counts, of two founders one is on record, and nothing planted leads elsewhere.

And nodes in virtual time that lose their power, come back with the same line, stand still and are cut off, of a job whose
candidates meet in a folder: at no time two of them lead, of whatever run, and with all at peace one does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stores import ModelFiles, ModelFolder
from virtual import Host, Network, run_virtual

from robust_run.errors import PlatformError, UserError
from robust_run.launcher.controller.leadership.folder import FolderCoordinator
from robust_run.launcher.controller.leadership.job_runs import FolderRuns, RunEntry, RunOnRecord
from robust_run.launcher.controller.leadership.tenure import Leadership
from robust_run.launcher.controller.leadership.types import Candidate, CoordinatorRefused, JobFinished, RunStanding
from robust_run.launcher.start.many.founding import Founding, Known, RunSeen, decide

KEY = "a" * 32
TTL_S = 2.0
HOSTS = 3


def entry(run_id: str) -> RunEntry:
    return RunEntry(run_id=run_id, command="c")


class Place:
    """A shared folder: the register, and an election for each run."""

    def __init__(self) -> None:
        self.register = ModelFolder()
        self.runs: dict[str, ModelFolder] = {}

    def election(self, run_id: str, host: Host) -> FolderCoordinator:
        folder = self.runs.setdefault(run_id, ModelFolder())
        return FolderCoordinator(ModelFiles(folder, host), host, host.sleep)

    def on_record(self, host: Host) -> FolderRuns:
        async def standing_of(run_id: str) -> RunStanding | None:
            return await self.election(run_id, host).standing()

        return FolderRuns(ModelFiles(self.register, host), KEY, standing_of)


def test_the_newest_run_counts_and_of_two_founders_one_is_on_record() -> None:
    async def main() -> None:
        place, host = Place(), Host("a", Network(0))
        runs = place.on_record(host)
        assert await runs.newest() is None
        await runs.enter(entry("x"), after=0)
        with pytest.raises(UserError, match="was founded at the same moment"):
            await runs.enter(entry("y"), after=0)
        assert await runs.newest() == RunOnRecord(run_id="x", command="c", number=1)
        await runs.enter(entry("y"), after=1)
        newest = await runs.newest()
        assert newest is not None and (newest.run_id, newest.number) == ("y", 2)
        assert len(place.register.contents) == 1

    run_virtual(main())


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", msgspec.json.encode(RunEntry(schema=9, run_id="x", command="")), b'{"run_id": "../x", "command": ""}'],
)
def test_what_is_damaged_newer_or_leads_elsewhere_is_refused(content: bytes) -> None:
    async def main() -> None:
        place, host = Place(), Host("a", Network(0))
        place.register.contents[f"{KEY}-000001.json"] = content
        with pytest.raises(CoordinatorRefused):
            await place.on_record(host).newest()

    run_virtual(main())


class Node:
    """One machine. Each life of it: look, decide, and found, go on, or stand by for the run that it joined."""

    def __init__(self, world: World, index: int) -> None:
        self.world, self.name = world, f"n{index}"
        self.host = Host(self.name, world.network)
        self.host.after_each_step = world.check
        self.remembers = ""
        self.life: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self.life is None or self.life.done():
            self.life = asyncio.ensure_future(self.live())

    def lose_power(self) -> None:
        if self.life is not None:
            self.life.cancel()
        self.world.leading.pop(self.name, None)

    async def live(self) -> None:
        host, began_s = self.host, self.host.monotonic_s()
        runs, sign, since_s = self.world.place.on_record(host), None, began_s
        while True:
            newest, trouble = None, ""
            try:
                newest = await runs.newest()
            except PlatformError as error:
                trouble = str(error)
            now_s = host.monotonic_s()
            run = None
            if newest is not None:
                standing = newest.standing
                if (newest.run_id, standing and standing.sign) != sign:
                    sign, since_s = (newest.run_id, standing and standing.sign), now_s
                run = RunSeen(
                    run_id=newest.run_id,
                    number=newest.number,
                    over=standing is not None and standing.over,
                    gone=standing is None,
                    leader="leader",
                    answers=self.world.answers(newest.run_id, self),
                    silent_s=now_s - since_s,
                )
            known = Known(
                moves=True,
                trouble=trouble,
                run=run,
                remembers=self.remembers,
                watched_s=now_s - began_s,
                patience_s=3 * TTL_S,
            )
            await self.act(self.world.decides(known), run)
            await host.sleep(0.5)

    async def act(self, founding: Founding, run: RunSeen | None) -> None:
        world, place = self.world, self.world.place
        with suppress(PlatformError, UserError, JobFinished):
            if founding.act == "found" and self is world.nodes[0]:  # the node that has the endpoint
                world.founded += 1
                run_id = f"run{world.founded}"
                leadership = await self.elect(run_id)
                await place.on_record(self.host).enter(entry(run_id), founding.after)
                await self.lead(run_id, leadership)
            elif founding.act == "go_on" or (founding.act == "join" and run is not None):
                run_id = founding.run_id or (run.run_id if run is not None else "")
                self.remembers = run_id
                await self.lead(run_id, await self.elect(run_id))

    async def elect(self, run_id: str) -> Leadership:
        me = Candidate(address=f"{self.name}:1", host=self.name, run_id=run_id)
        return await self.world.place.election(run_id, self.host).campaign(me, TTL_S)

    async def lead(self, run_id: str, leadership: Leadership) -> None:
        """Lead until it is lost; end the run now and then."""
        self.remembers = run_id
        self.world.leading[self.name] = run_id, self.host, leadership
        self.world.led += 1
        self.world.check()
        keeping = asyncio.ensure_future(leadership.keep())
        try:
            ends_at_s = self.host.monotonic_s() + self.world.network.random.choice((4.0, 60.0, 600.0))
            while leadership.is_valid(self.host.monotonic_s()) and self.host.monotonic_s() < ends_at_s:
                await self.host.sleep(0.3)
            if leadership.is_valid(self.host.monotonic_s()):
                await leadership.resign(finished=True)
                self.remembers = ""
        finally:
            keeping.cancel()
            self.world.leading.pop(self.name, None)


class World:
    """Nodes of one job, and what must hold."""

    def __init__(self, seed: int, decides: Callable[[Known], Founding]) -> None:
        self.network, self.place, self.decides = Network(seed), Place(), decides
        self.leading: dict[str, tuple[str, Host, Leadership]] = {}
        self.founded = self.led = 0
        self.nodes: list[Node] = []
        self.nodes = [Node(self, index) for index in range(HOSTS)]

    def leaders(self) -> list[str]:
        """Runs that are led at this moment."""
        return [run for run, host, leadership in self.leading.values() if leadership.is_valid(host.monotonic_s())]

    def check(self) -> None:
        assert len(self.leaders()) <= 1, f"{self.leaders()} are led at once"

    def answers(self, run_id: str, node: Node) -> bool:
        """Whether a node reaches the leader of a run: what a partition keeps from it."""
        now_s = asyncio.get_running_loop().time()
        return any(
            run == run_id and host.cut_until_s <= now_s and node.host.cut_until_s <= now_s
            for run, host, _ in self.leading.values()
        )


FAULTS = st.lists(
    st.tuples(
        st.sampled_from(["power", "all power", "pause", "cut", "trouble", "slow"]),
        st.integers(0, HOSTS - 1),
        st.floats(0.1, 8.0),
    ),
    max_size=12,
)


def hurt(world: World, what: str, which: int, length_s: float) -> None:
    node, now_s = world.nodes[which], asyncio.get_running_loop().time()
    if what == "power":
        node.lose_power()
    elif what == "all power":
        for each in world.nodes:
            each.lose_power()
    elif what == "pause":
        node.host.paused_until_s = now_s + length_s
    elif what == "cut":
        node.host.cut_until_s = now_s + length_s
    elif what == "trouble":
        world.network.trouble = length_s / 30
    else:
        world.network.slowest_s = (length_s / 8) ** 3


async def live(seed: int, faults: list[tuple[str, int, float]], decides: Callable[[Known], Founding] = decide) -> None:
    """Run the nodes of a job through faults, then in peace until one leads."""
    world = World(seed, decides)
    for what, which, length_s in faults:
        for node in world.nodes:
            node.start()  # one that lost its power comes back with the same line
        await asyncio.sleep(length_s)
        hurt(world, what, which, length_s)
    await asyncio.sleep(0.1)  # whose power is off has ended by then
    world.network.trouble, world.network.slowest_s = 0.0, 0.05
    for node in world.nodes:
        node.start()
    led = world.led
    for _ in range(600):
        if world.leaders() or world.led > led:
            return
        await asyncio.sleep(0.2)
    raise AssertionError("nobody leads although all is at peace")


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), faults=FAULTS)
def test_never_two_runs_of_one_job_are_led_and_in_peace_one_is(seed: int, faults: list[tuple[str, int, float]]) -> None:
    run_virtual(live(seed, faults))


def test_the_check_finds_two_runs_where_a_node_that_comes_back_founds_at_once() -> None:
    """The world is bad enough: a founder that looks at nothing but the endpoint leads a run beside the one that went on."""

    def at_once(known: Known) -> Founding:
        after = known.run.number if known.run is not None else 0
        return Founding(act="found", after=after) if known.watched_s < 1.0 else decide(known)

    with pytest.raises(AssertionError, match="are led at once"):
        for seed in range(40):
            run_virtual(live(seed, [("slow", 1, 8.0), ("power", 0, 8.0), ("slow", 1, 8.0)], at_once))
