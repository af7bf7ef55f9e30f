"""The process that leads a job of several roles: events in, decisions on record, orders out."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Mapping

import msgspec

from robust_run.atomic_file import write_file
from robust_run.clock import Clock
from robust_run.errors import UserError
from robust_run.orchestrator import core
from robust_run.orchestrator.members import MemberLauncher
from robust_run.orchestrator.placement import can_ever_fit
from robust_run.orchestrator.queue.book import QueueBook
from robust_run.orchestrator.server import RoleServer
from robust_run.orchestrator.state import JobState
from robust_run.orchestrator.words import (
    Action,
    Asked,
    Begun,
    Changed,
    Event,
    Finish,
    MemberName,
    NodeOffered,
    RolesSpec,
    SayLine,
    StartMember,
    StopMember,
    Tick,
    WakeAt,
    WorldEnded,
)
from robust_run.roles.client import Place
from robust_run.roles.queue_words import QueueLimits
from robust_run.roles.words import Member
from robust_run.terminal import plain
from robust_run.version import RUN_DIR_SCHEMA, __version__

#: Workers of one machine, where nothing says how many fit.
MANY_SLOTS = 1 << 16
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class JournalLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the journal: what happened, and what was decided."""

    at: float
    mono: float
    event: Event | None = None
    actions: tuple[Action, ...] = ()


class Leader:
    """One job of several roles on this machine. `folder`: its run directory, which exists."""

    def __init__(self, spec: RolesSpec, folder: str, env: Mapping[str, str], clock: Clock) -> None:
        self._spec, self._folder, self._env, self._clock = spec, folder, env, clock
        self.state = JobState()
        self._place = os.path.join(folder, "roles.place")
        self._members_folder = os.path.join(folder, "members")
        self._launchers: dict[MemberName, MemberLauncher] = {}
        self._events: deque[Event] = deque()
        self._busy = False
        self._done: asyncio.Future[Finish] | None = None
        limits = QueueLimits(items=spec.queue_items, bytes=spec.queue_bytes, lease_s=spec.lease_s)
        self._queues = QueueBook(os.path.join(folder, "queues"), limits, self.say)
        self._server = RoleServer(os.urandom(32), self._queues, clock, self.tell, self._known)
        self._encoder = msgspec.json.Encoder()
        self._journal = -1

    async def run(self) -> Finish:
        """Lead the job to its end. Raises UserError where no node could ever run one of its roles, OSError."""
        loop = asyncio.get_running_loop()
        self._done = loop.create_future()
        os.makedirs(self._members_folder, mode=0o700, exist_ok=True)
        self._journal = os.open(
            os.path.join(self._folder, "roles.jsonl"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        head = {"schema": RUN_DIR_SCHEMA, "version": __version__, "roles": msgspec.to_builtins(self._spec)}
        os.write(self._journal, self._encoder.encode(head) + b"\n")
        port = await self._server.listen("127.0.0.1")
        place = Place(address="127.0.0.1", port=port, secret=self._server.secret, roles=self._spec.names)
        write_file(self._place, msgspec.json.encode(place), mode=0o600)
        for number in SIGNALS:
            loop.add_signal_handler(number, self._signalled, number)
        try:
            self.tell(NodeOffered(node=socket.gethostname(), slots=MANY_SLOTS, devices=devices(self._env)))
            for role in self._spec.roles:
                if not can_ever_fit(role, self.state.nodes):
                    raise UserError(
                        f"[roles.{role.name}] needs {role.devices * role.nproc} GPUs on {role.nodes} nodes, which there are not"
                    )
            self.tell(Begun())
            return await self._done
        finally:
            self._server.close()
            self._queues.close()
            os.close(self._journal)

    def tell(self, event: Event) -> None:
        """Take in what happened, and do what follows; events told meanwhile are taken in turn."""
        self._events.append(event)
        if self._busy:
            return
        self._busy = True
        try:
            while self._events:
                self._take(self._events.popleft())
        finally:
            self._busy = False

    def say(self, text: str) -> None:
        """Tell people a line."""
        sys.stderr.write(f"robust-run: {plain(text)}\n")
        sys.stderr.flush()

    def _take(self, event: Event) -> None:
        now_s = self._clock.monotonic_s()
        actions = core.step(self._spec, self.state, event, now_s)
        line = JournalLine(at=self._clock.unix_s(), mono=now_s, event=event, actions=actions)
        os.write(self._journal, self._encoder.encode(line) + b"\n")
        for action in actions:
            self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case StartMember():
                self._start(action)
            case StopMember():
                launcher = self._launchers.get(action.member)
                if launcher is not None and launcher.serial == action.serial:
                    launcher.end(action.signal)
            case Changed():
                self._server.changed(self._shown(action.member))
            case SayLine():
                self.say(action.text)
            case WakeAt():
                delay_s = max(action.at_s - self._clock.monotonic_s(), 0.0)
                asyncio.get_running_loop().call_later(delay_s + 0.001, self.tell, Tick())
            case Finish() if self._done is not None and not self._done.done():
                self._done.set_result(action)
            case Finish():
                pass

    def _start(self, action: StartMember) -> None:
        role = self._spec.role(action.member.role)
        try:
            self._launchers[action.member] = MemberLauncher(
                role, action, self._members_folder, self._place, self._env, self.tell, self._show
            )
        except OSError as error:
            sentence = f"it cannot be started: {error.strerror}"
            self.tell(WorldEnded(member=action.member, serial=action.serial, code=1, sentence=sentence))

    def _show(self, member: MemberName, line: bytes) -> None:
        sys.stdout.buffer.write(b"[%s]: %s\n" % (str(member).encode(), line))
        sys.stdout.buffer.flush()

    def _signalled(self, number: int) -> None:
        self.tell(Asked(what="stop", signal=number, by=signal.Signals(number).name))

    def _known(self) -> dict[str, Member]:
        return {str(name): self._shown(name) for name in self.state.members}

    def _shown(self, name: MemberName) -> Member:
        member = self.state.members[name]
        most = max(member.ready, default=-1) + 1
        return Member(
            role=name.role,
            index=name.index,
            generation=member.generation,
            state=member.standing,
            ready=member.is_ready,
            addresses=tuple(member.ready.get(rank, "") for rank in range(most)),
            nodes=member.nodes,
        )


def devices(env: Mapping[str, str]) -> int:
    """Return how many GPUs this machine gives to the job."""
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([each for each in visible.split(",") if each.strip()])
    try:
        return sum(name.startswith("nvidia") and name[6:].isdigit() for name in os.listdir("/dev"))
    except OSError:
        return 0
