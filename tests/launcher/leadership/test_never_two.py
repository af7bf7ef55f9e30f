"""Never two leaders: candidates in virtual time, on hosts that pause, are cut off and have clocks of their own; requests that
get lost, whose answers get lost, that are carried out seconds later; a store that goes down and holds elections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from stores import EtcdModel, ModelFiles, ModelFolder, ModelTransport
from virtual import Host, Network, run_virtual

from robust_run.launcher.controller.leadership.coordinator import Coordinator
from robust_run.launcher.controller.leadership.etcd import EtcdCoordinator
from robust_run.launcher.controller.leadership.folder import FolderCoordinator
from robust_run.launcher.controller.leadership.tenure import Leadership
from robust_run.launcher.controller.leadership.types import Candidate, CoordinatorUnreachable, LostLeadership

TTL_S = 2.0
CANDIDATES = 3
MOST_LENGTH_S = 8.0


class World:
    """Candidates that lead when elected, append to a history when leading, and are watched all the time."""

    def __init__(self, kind: str, seed: int) -> None:
        self.network = Network(seed)
        self.hosts = [Host(f"host{index}", self.network) for index in range(CANDIDATES)]
        self.won: list[tuple[Host, Leadership]] = []
        self.acknowledged: list[list[int]] = []
        """The history of the job: [term, number] of every write that was acknowledged."""
        self.members: dict[str, int] = {}
        self.etcd, self.folder = EtcdModel(), ModelFolder()
        self.transports = [ModelTransport(self.etcd, host) for host in self.hosts]
        for host in self.hosts:
            host.after_each_step = self.check
        self._make: Callable[[int], Coordinator] = self._at_etcd if kind == "etcd" else self._in_folder

    def _at_etcd(self, index: int) -> Coordinator:
        return EtcdCoordinator(self.transports[index], "job", self.hosts[index], self.hosts[index].sleep)

    def _in_folder(self, index: int) -> Coordinator:
        host = self.hosts[index]
        return FolderCoordinator(ModelFiles(self.folder, host), host, host.sleep)

    def leaders(self) -> list[int]:
        """Terms of all that believe, by their own clocks, that they lead."""
        return [leadership.term for host, leadership in self.won if leadership.is_valid(host.monotonic_s())]

    def check(self) -> None:
        assert len(self.leaders()) <= 1, f"terms {self.leaders()} lead at once"

    async def candidate(self, index: int) -> None:
        host, coordinator = self.hosts[index], self._make(index)
        me = Candidate(address=f"{host.name}:1", host=host.name, run_id="run")
        while True:
            leadership = await coordinator.campaign(me, TTL_S)
            assert leadership.term > max((won.term for _, won in self.won), default=0)
            self.won.append((host, leadership))
            self.check()
            keeping = asyncio.ensure_future(leadership.keep())
            try:
                await self.lead(host, coordinator, leadership)
            except LostLeadership:
                pass
            except CoordinatorUnreachable:
                with suppress(CoordinatorUnreachable):
                    await leadership.resign()
            finally:
                keeping.cancel()

    async def lead(self, host: Host, coordinator: Coordinator, leadership: Leadership) -> None:
        acknowledged, known = list(self.acknowledged), dict(self.members)
        saved = await coordinator.load()
        history: list[list[int]] = json.loads(saved.state) if saved else []
        assert history[: len(acknowledged)] == acknowledged, "a write was acknowledged and lost"
        members = await coordinator.load_members()
        assert all(int(members.get(name, b"0")) >= value for name, value in known.items())
        number = max((number for _, number in history), default=0)
        while True:
            number += 1
            history.append([leadership.term, number])
            name = f"member{number % 4}"
            try:
                await leadership.save(number, json.dumps(history).encode())
                shorter, longer = sorted((history, self.acknowledged), key=len)
                assert longer[: len(shorter)] == shorter, "two leaders wrote"
                self.acknowledged = list(longer)  # the answer may have been long on its way
                await leadership.put_members({name: b"%d" % number})
                self.members[name] = max(number, self.members.get(name, 0))
                if number % 5 == 0:
                    acknowledged, now = list(self.acknowledged), await coordinator.load()
                    assert now is not None
                    assert json.loads(now.state)[: len(acknowledged)] == acknowledged, "a write was undone"
            except CoordinatorUnreachable:
                pass
            if number % 11 == 0:
                await leadership.resign()
                return
            await host.sleep(5.0 * self.network.random.random() ** 3)


def apply(world: World, what: str, which: int, length_s: float) -> None:
    """Let one thing go wrong."""
    now_s = asyncio.get_running_loop().time()
    host, transport = world.hosts[which % CANDIDATES], world.transports[which % CANDIDATES]
    if what == "pause":
        host.paused_until_s = now_s + length_s
    elif what == "cut":
        host.cut_until_s = now_s + length_s
    elif what == "down":
        world.network.down_until_s = now_s + length_s / 2
        world.etcd.elect()
    elif what == "stale":  # this candidate talks to a member of etcd that the majority has left behind
        transport.stale_until_s, transport.stale_raft_term = now_s + length_s, world.etcd.raft_term
        world.etcd.elect()
    elif what == "trouble":
        world.network.trouble = length_s / 16
    elif what == "slow":
        world.network.slowest_s = (length_s / 8) ** 3


FAULTS = st.lists(
    st.tuples(
        st.sampled_from(["pause", "cut", "down", "stale", "trouble", "slow"]),
        st.integers(0, CANDIDATES - 1),
        st.floats(0.1, MOST_LENGTH_S),
        st.floats(0.0, 3.0),
    ),
    min_size=3,
    max_size=30,
)


async def live(kind: str, seed: int, faults: list[tuple[str, int, float, float]]) -> World:
    """Run the candidates through the faults, then in peace for a while."""
    world = World(kind, seed)
    tasks = [asyncio.ensure_future(world.candidate(index)) for index in range(CANDIDATES)]

    async def director() -> None:
        for what, which, length_s, wait_s in faults:
            apply(world, what, which, length_s)
            await asyncio.sleep(wait_s)
        world.network.trouble, world.network.slowest_s = 0.0, 0.05
        await asyncio.sleep(MOST_LENGTH_S + world.network.longest_s + 5 * TTL_S)

    tasks.append(asyncio.ensure_future(director()))
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
    return world


@pytest.mark.parametrize("kind", ["etcd", "folder"])
@settings(max_examples=60, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(seed=st.integers(0, 2**32), faults=FAULTS)
def test_at_no_time_two_lead_terms_grow_and_nothing_acknowledged_is_lost(
    kind: str, seed: int, faults: list[tuple[str, int, float, float]]
) -> None:
    world = run_virtual(live(kind, seed, faults))
    assert world.won, "nobody was ever elected"
    assert len(world.acknowledged) > 3, "with all at peace, a leader writes"


def test_the_check_finds_two_leaders_where_any_keepalive_counts() -> None:
    """The world is bad enough: were a keepalive from a member left behind taken for a renewal, two would lead."""

    async def main(seed: int) -> None:
        world = World("etcd", seed)
        tasks = [asyncio.ensure_future(world.candidate(index)) for index in range(CANDIDATES)]
        await asyncio.sleep(1.0)
        leader = world.hosts.index(world.won[-1][0])
        apply(world, "stale", leader, MOST_LENGTH_S)
        world.transports[leader].stale_raft_term = world.etcd.raft_term  # it pretends to be up to date
        done, _ = await asyncio.wait(tasks, timeout=MOST_LENGTH_S, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    with pytest.raises(AssertionError, match="lead at once"):
        for seed in range(5):
            run_virtual(main(seed))
