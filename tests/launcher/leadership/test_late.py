"""The moments that matter most, one by one: a candidate stopped just before it claims, writes that arrive long after."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from following import wait_for_leader
from stores import EtcdModel, ModelFiles, ModelFolder, ModelTransport
from virtual import Host, Network, run_virtual

from robust_run.launcher.controller.leadership.etcd import EtcdCoordinator
from robust_run.launcher.controller.leadership.etcd_messages import Txn
from robust_run.launcher.controller.leadership.folder import FolderCoordinator
from robust_run.launcher.controller.leadership.tenure import Leadership
from robust_run.launcher.controller.leadership.types import Candidate, CoordinatorUnreachable, LostLeadership

TTL_S = 2.0


def named(host: Host) -> Candidate:
    return Candidate(address=f"{host.name}:1", host=host.name, run_id="run")


class StoppedBeforeClaiming(ModelFiles):
    """The leader dies, as far as this host can see; the host is stopped, and the leader is back, just before it claims."""

    def __init__(self, folder: ModelFolder, host: Host) -> None:
        super().__init__(folder, host)
        self.blind = True
        self.stop_for_s = 0.0
        self._seen: bytes | None = None

    async def read(self, name: str, timeout_s: float) -> bytes | None:
        data = await super().read(name, timeout_s)
        if self.blind and name.startswith("heartbeat"):
            data = self._seen = self._seen or data
        return data

    async def create(self, name: str, data: bytes, timeout_s: float) -> bool:
        if self.blind:
            self.blind = False
            await asyncio.sleep(self.stop_for_s)
        return await super().create(name, data, timeout_s)


@pytest.mark.parametrize("stop_for_s", [0.0, 0.5, 2.0, 4.0])
@pytest.mark.parametrize("seed", range(5))
def test_a_candidate_that_claims_by_mistake_does_not_lead_beside_the_leader_that_lives(
    stop_for_s: float, seed: int
) -> None:
    async def main() -> None:
        network, folder = Network(seed), ModelFolder()
        hosts = [Host(name, network) for name in "abc"]
        won: list[tuple[Host, Leadership]] = []

        def check() -> None:
            leading = [leadership.term for host, leadership in won if leadership.is_valid(host.monotonic_s())]
            assert len(leading) <= 1, f"terms {leading} lead at once"

        async def candidate(host: Host, files: ModelFiles) -> None:
            host.after_each_step = check
            while True:
                leadership = await FolderCoordinator(files, host, host.sleep).campaign(named(host), TTL_S)
                won.append((host, leadership))
                await leadership.keep()

        tasks = [asyncio.ensure_future(candidate(hosts[0], ModelFiles(folder, hosts[0])))]
        while not won:
            await asyncio.sleep(0.1)
        late = StoppedBeforeClaiming(folder, hosts[1])
        late.stop_for_s = stop_for_s
        tasks.append(asyncio.ensure_future(candidate(hosts[1], late)))
        tasks.append(asyncio.ensure_future(candidate(hosts[2], ModelFiles(folder, hosts[2]))))
        await asyncio.wait(tasks, timeout=30.0)
        assert not late.blind, "it claimed"
        assert not any(task.done() for task in tasks)
        assert won[-1][1].is_valid(won[-1][0].monotonic_s())
        for task in tasks:
            task.cancel()

    run_virtual(main())


class Detained(ModelTransport):
    """Keeps back, once, the writes that a condition is true of; `let_go` delivers them."""

    def __init__(self, model: EtcdModel, host: Host) -> None:
        super().__init__(model, host)
        self.keep_back: Callable[[Any], bool] = lambda _: False
        self.kept: list[Any] = []

    async def call(self, path: str, request: Any, reply: Any, timeout_s: float) -> Any:
        if self.keep_back(request):
            self.keep_back = lambda _: False
            self.kept.append(request)
            raise CoordinatorUnreachable("no answer")
        return await super().call(path, request, reply, timeout_s)

    def let_go(self) -> None:
        for request in self.kept:
            self._model.answer(request)


def test_in_etcd_a_write_of_one_s_own_that_arrives_late_undoes_nothing() -> None:
    async def main() -> None:
        host, model = Host("a", Network(0)), EtcdModel()
        wire = Detained(model, host)
        place = EtcdCoordinator(wire, "job", host, host.sleep)
        leadership = await place.campaign(named(host), TTL_S)
        wire.keep_back = lambda request: isinstance(request, Txn)
        with pytest.raises(CoordinatorUnreachable):
            await leadership.save(1, b"first")
        await leadership.save(2, b"second")
        wire.let_go()
        saved = await place.load()
        assert saved is not None
        assert (saved.position, saved.state) == (2, b"second")
        await leadership.save(3, b"third")

    run_virtual(main())


def test_in_etcd_a_write_that_seemed_lost_and_had_arrived_hinders_nothing() -> None:
    async def main() -> None:
        host, model = Host("a", Network(0)), EtcdModel()
        wire = Detained(model, host)
        place = EtcdCoordinator(wire, "job", host, host.sleep)
        leadership = await place.campaign(named(host), TTL_S)
        wire.keep_back = lambda request: isinstance(request, Txn)
        with pytest.raises(CoordinatorUnreachable):
            await leadership.put_members({"n1": b"1"})
        wire.let_go()
        await leadership.put_members({"n1": b"2"})
        assert await place.load_members() == {"n1": b"2"}

    run_virtual(main())


def test_a_claim_whose_answer_is_lost_leads_to_nobody_and_the_next_one_is_of_a_later_term() -> None:
    async def main() -> None:
        host, model = Host("a", Network(0)), EtcdModel()
        wire = Detained(model, host)

        def arrives_without_an_answer(request: Any) -> bool:
            claim = isinstance(request, Txn) and bool(request.compare)
            if claim:
                model.answer(request)
            return claim

        wire.keep_back = arrives_without_an_answer
        place = EtcdCoordinator(wire, "job", host, host.sleep)
        leadership = await place.campaign(named(host), TTL_S)
        assert leadership.term == 2
        wire.let_go()  # and the lost claim arrives a second time
        assert await leadership.renew()

    run_virtual(main())


class LateFiles(ModelFiles):
    """Keeps back the creation of one file; `let_go` carries it out."""

    keep_back = ""

    def __init__(self, folder: ModelFolder, host: Host) -> None:
        super().__init__(folder, host)
        self.kept: list[tuple[str, bytes]] = []

    async def create(self, name: str, data: bytes, timeout_s: float) -> bool:
        if self.keep_back and name.startswith(self.keep_back):
            self.keep_back = ""
            self.kept.append((name, data))
            raise CoordinatorUnreachable("the folder hangs")
        return await super().create(name, data, timeout_s)

    def let_go(self) -> None:
        for name, data in self.kept:
            self._contents.setdefault(name, data)


def test_in_a_folder_a_write_of_one_s_own_that_arrives_late_undoes_nothing() -> None:
    async def main() -> None:
        host, folder = Host("a", Network(0)), ModelFolder()
        files = LateFiles(folder, host)
        place = FolderCoordinator(files, host, host.sleep)
        leadership = await place.campaign(named(host), TTL_S)
        files.keep_back = "state"
        with pytest.raises(CoordinatorUnreachable):
            await leadership.save(1, b"first")
        await leadership.save(2, b"second")
        files.keep_back = "members"
        with pytest.raises(CoordinatorUnreachable):
            await leadership.put_members({"n1": b"1"})
        await leadership.put_members({"n1": b"2"})
        files.let_go()
        saved = await place.load()
        assert saved is not None
        assert saved.state == b"second"
        assert await place.load_members() == {"n1": b"2"}

    run_virtual(main())


def test_in_a_folder_what_a_deposed_leader_s_write_brings_late_is_never_read() -> None:
    async def main() -> None:
        network, folder = Network(0), ModelFolder()
        old, new, newest = (Host(name, network) for name in "abc")
        files = LateFiles(folder, old)
        first = await FolderCoordinator(files, old, old.sleep).campaign(named(old), TTL_S)
        files.keep_back = "state"
        with pytest.raises(CoordinatorUnreachable):
            await first.save(1, b"late")
        second = await FolderCoordinator(ModelFiles(folder, new), new, new.sleep).campaign(named(new), TTL_S)
        files.let_go()
        with pytest.raises(LostLeadership):
            await first.save(2, b"later")
        assert second.term == 2
        place = FolderCoordinator(ModelFiles(folder, newest), newest, newest.sleep)
        await place.campaign(named(newest), TTL_S)
        assert await place.load() is None, "the second leader began without it, so must the third"

    run_virtual(main())


def test_a_claim_that_arrives_late_and_has_nobody_behind_it_costs_a_lease_of_waiting() -> None:
    async def main() -> None:
        network, folder = Network(0), ModelFolder()
        ghost, living = Host("a", network), Host("b", network)
        files = LateFiles(folder, ghost)
        files.keep_back = "term"
        campaign = asyncio.ensure_future(FolderCoordinator(files, ghost, ghost.sleep).campaign(named(ghost), TTL_S))
        while not files.kept:
            await asyncio.sleep(0.01)
        campaign.cancel()
        files.let_go()
        leadership = await FolderCoordinator(ModelFiles(folder, living), living, living.sleep).campaign(
            named(living), TTL_S
        )
        assert leadership.term == 2
        record = await wait_for_leader(
            FolderCoordinator(ModelFiles(folder, living), living), newer_than=1, every_s=1.0, sleep=living.sleep
        )
        assert record.host == "b"

    run_virtual(main())
