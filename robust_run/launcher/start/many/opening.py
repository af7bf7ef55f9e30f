"""The workers' place on one node of several, made before it joins: what came of it is part of how it introduces itself."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping

from robust_run.clock import Clock
from robust_run.launcher.agent.places.place import OpenedPlace
from robust_run.launcher.agent.places.snapshot_news import read_snapshot
from robust_run.launcher.control.meeting import Guest, SystemNetwork, in_order, is_loopback
from robust_run.launcher.model.job import JobSpec, ManyNodes
from robust_run.launcher.records.run_directory import RunDirectory
from robust_run.launcher.start.many.dialing import guest_at
from robust_run.launcher.start.many.joining import Joining
from robust_run.launcher.start.many.lookout import Lookout


class NewsOfJob:
    """What this node learns of the job's snapshot before it joins: from the controller, or from the run it resumes.

    See `snapshot_news.News`. For a thread without an event loop.
    """

    def __init__(self, spec: JobSpec, many: ManyNodes, joining: Joining, clock: Clock, run_path: str) -> None:
        """`run_path`: the run directory of a job that is resumed here; empty: it is not."""
        self._spec, self._many, self._joining, self._clock, self._run_path = spec, many, joining, clock, run_path
        self._network = SystemNetwork()

    @property
    def is_first(self) -> bool:
        """Whether this node is rank 0 or hosts the controller, as far as is known before it is tried."""
        many = self._many
        if many.node_rank is not None:
            return many.node_rank == 0
        if many.is_host is not None:
            return many.is_host
        return any(self._is_own(address) for address in self._network.resolve(many.host))

    def _is_own(self, address: str) -> bool:
        try:
            return is_loopback(address) or self._network.address_towards(address).partition("%")[0] == address
        except OSError:
            return False

    def ask(self) -> bytes | None:
        """See `snapshot_news.News`. Raises Refusal where this node does not belong to the job."""
        if self._run_path:
            return read_snapshot(RunDirectory(self._run_path, self._run_path).snapshot)
        return asyncio.run(self._ask())

    async def _ask(self) -> bytes | None:
        many = self._many
        guest = await self._led_elsewhere() if many.controller_standby else None
        addresses = in_order(self._network.resolve(many.host))
        return await self._joining.ask_setup(guest or Guest(addresses=addresses, port=many.port))

    async def _led_elsewhere(self) -> Guest | None:
        """Return where the job is led that moved away from where its nodes meet, None if it did not, or nobody can tell."""
        lookout = Lookout(self._spec, self._many, "", socket.gethostname(), self._clock, lambda _: None)
        founding = await lookout.look()
        await lookout.close()
        return guest_at(founding.where) if founding.act == "join" else None


def open_place(
    spec: JobSpec,
    env: Mapping[str, str],
    clock: Clock,
    joining: Joining,
    say: Callable[[str], None],
    lifeline: int,
    token: str,
    run_path: str,
) -> OpenedPlace:
    """Mount the job's image, restore its set-up, and note in `joining` what other nodes are told of it. Raises PlatformError.

    `run_path`: of the run that is continued; empty: it is a new one.
    """
    assert spec.many is not None
    news = NewsOfJob(spec, spec.many, joining, clock, run_path) if spec.setup is not None else None
    if spec.image is not None:
        from robust_run.launcher.agent.places.image_start import open_image

        folder = spec.log_dir  # the run directory will be in it
        opened = open_image(spec, env, clock, folder, say, lifeline, token=token, news=news)
        if opened.place is not None:
            joining.block_ports = opened.place.block_ports
    else:
        from robust_run.launcher.agent.places.setup_start import open_setup

        assert news is not None
        opened = open_setup(spec, env, clock, say, lifeline, news, token)
        assert opened.place is not None
        joining.block_ports = opened.place.block_ports
    if opened.place is not None:
        joining.setup = opened.place.snapshot
    return opened
