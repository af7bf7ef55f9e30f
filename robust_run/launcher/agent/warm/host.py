"""The agent's side of the warm process: starts it, keeps a standby worker for every rank, and promotes them."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from typing import Literal, Protocol

import msgspec

from robust_run.errors import PlatformError
from robust_run.launcher.agent.warm.identity import Identity
from robust_run.launcher.agent.warm.messages import (
    LARGEST_BYTES,
    CannotPromote,
    FromStandby,
    FromWarm,
    MakeStandby,
    Preload,
    Preloaded,
    Promote,
    Promoted,
    StandbyReady,
    WarmStartRefused,
    packet_socketpair,
    send,
)
from robust_run.launcher.agent.warm.on_disk import OnDisk, why_no_new_one
from robust_run.launcher.agent.warm.start_up import start_environment
from robust_run.launcher.agent.workers.store import StartsHelpers

_MAIN = "robust_run.launcher.agent.warm.process:main"

#: How long a standby worker may take to be made, and to say that it has become the worker. Nothing else is done meanwhile,
#: so it is less than the guard gives an agent to answer a second Ctrl-C.
FORK_S = 4.0
#: The same where heartbeats are due. A worker that is started from nothing in its place takes longer than either.
FORK_AMONG_NODES_S = 1.0

State = Literal["none", "importing", "ready", "refused"]


class StandbyWatcher(Protocol):
    """Calls back when a socket is readable; a second call for the same one replaces the first."""

    def __call__(self, sock: socket.socket, call: Callable[[], None] | None) -> None:
        """None stops watching."""
        ...


class Standby:
    """One standby worker, from the request on."""

    def __init__(self, slot: int, gate: socket.socket) -> None:
        self.slot = slot
        self.gate = gate
        self.pid: int | None = None
        """Known once it waits."""


class WarmHost:
    """One warm process and its standby workers.

    `argv` and `env` are those of a worker (not armed for the tracer): the warm process is one that stops before its program.
    """

    def __init__(
        self,
        start: StartsHelpers,
        argv: tuple[str, ...],
        env: Mapping[str, str],
        agent_pid: int,
        on_news: Callable[[msgspec.Struct], None],
        on_standby: Callable[[int, int], None],
        fork_s: float = FORK_S,
    ) -> None:
        self.state: State = "none"
        self.reason = ""
        self.has_died = False
        """It ended without a reason of its own: another one may do better."""
        self.proven: tuple[str, ...] = ()
        """Modules that it has imported and lived: what one that takes its place imports, not what killed it."""
        self.on_disk = OnDisk(())
        self.env = dict(env)
        self.pid: int | None = None
        self.standbys: dict[int, Standby] = {}
        self.watch: StandbyWatcher = _watch_nothing
        self._start = start
        self._argv = argv
        self._agent_pid = agent_pid
        self._on_news = on_news
        self._on_standby = on_standby
        self._fork_s = fork_s
        self._control: socket.socket | None = None
        self._modules: tuple[str, ...] = ()
        self._outdated: list[Standby] = []

    def launch(self, modules: tuple[str, ...]) -> None:
        """Start the warm process; nothing is waited for. A platform that refuses is a reason to spawn, no error."""
        self._hang_up()  # on one that was there before: nobody listens to it any more
        if why := why_no_new_one():
            self._refuse(why)
            return
        ours, theirs = packet_socketpair()
        arguments = (str(theirs.fileno()), str(self._agent_pid), ",".join(modules))
        env = {**self.env, **start_environment(self.env, _MAIN, arguments)}
        try:
            self.pid = self._start(self._argv, env, (theirs.fileno(),))
        except PlatformError as error:
            ours.close()
            self._refuse(str(error))
            return
        finally:
            theirs.close()
        self._modules = modules
        self._control = ours
        self.state = "importing"

    def adopt(self, pid: int, control: socket.socket, modules: tuple[str, ...]) -> None:
        """Take over a warm process that was not started by us and has imported the modules."""
        self.pid, self._control, self._modules = pid, control, modules
        self.proven, self.on_disk = modules, OnDisk(modules)
        self.state = "ready"

    def attach(self, watch: StandbyWatcher) -> None:
        """Listen from now on to what the processes say."""
        self.watch = watch
        if self._control is not None:
            watch(self._control, self._read_control)
        for standby in self.standbys.values():
            self._watch_standby(standby)

    def _read_control(self) -> None:
        if self._control is None:
            return
        try:
            # Never to be waited for: the agent does all else meanwhile, and what was readable may have been another's.
            data = self._control.recv(LARGEST_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._hang_up()
            if self.state != "refused":
                self.has_died = True
                self._refuse("the warm process died")
            return
        match msgspec.json.decode(data, type=FromWarm):
            case Preloaded() as news:
                self.state, self.proven, self.on_disk = "ready", self._modules, OnDisk(self._modules)
                self._discard_outdated()
                self._on_news(news)
            case WarmStartRefused() as news:
                self._hang_up()
                rest = tuple(name for name in self._modules if name not in news.modules)
                if rest != self._modules:
                    self._on_news(news)
                    self.launch(rest)
                    self.attach(self.watch)
                else:
                    self._refuse(news.reason)

    def _refuse(self, reason: str) -> None:
        self.state, self.reason = "refused", reason
        self._on_news(WarmStartRefused(reason))

    def _hang_up(self) -> None:
        if self._control is not None:
            self.watch(self._control, None)
            self._control.close()
            self._control = None

    def preload(self, modules: tuple[str, ...]) -> None:
        """Have more modules imported. Standby workers that lack them wait on until it is done, and are let go then."""
        more = tuple(name for name in modules if name not in self._modules)
        if more and self.state == "ready" and self._control is not None:
            self._modules += more
            self._outdated = list(self.standbys.values())
            self.state = "importing"
            self._tell_warm(Preload(more))

    def _discard_outdated(self) -> None:
        for standby in self._outdated:
            if self.standbys.get(standby.slot) is standby:
                self.discard(standby)
        self._outdated = []

    def _tell_warm(self, message: msgspec.Struct, descriptors: tuple[int, ...] = ()) -> bool:
        assert self._control is not None
        try:
            send(self._control, message, descriptors)
        except OSError as error:
            self._hang_up()
            self._refuse(f"the warm process cannot be reached ({error})")
            return False
        return True

    # --- standby workers ---

    def stock(self, slots: int) -> None:
        """Have a standby worker made for every slot that has none."""
        for slot in range(slots):
            if slot not in self.standbys:
                self._request(slot)

    def _request(self, slot: int) -> Standby | None:
        if self.state != "ready" or self._control is None:
            return None
        ours, theirs = packet_socketpair()
        try:
            if not self._tell_warm(MakeStandby(slot), (theirs.fileno(),)):
                ours.close()
                return None
        finally:
            theirs.close()
        standby = self.standbys[slot] = Standby(slot, ours)
        self._watch_standby(standby)
        return standby

    def _watch_standby(self, standby: Standby) -> None:
        self.watch(standby.gate, lambda: self._read_standby(standby))

    def _read_standby(self, standby: Standby) -> None:
        news = _receive(standby.gate, 0.0)
        if isinstance(news, StandbyReady):
            standby.pid = news.pid
            self._on_standby(standby.slot, news.pid)
        elif news is None:
            self.discard(standby)

    def ready(self, slot: int) -> Standby | None:
        """Return the slot's standby worker if it waits."""
        standby = self.standbys.get(slot)
        return standby if standby is not None and standby.pid is not None else None

    def make_now(self, slots: list[int]) -> None:
        """Make standby workers for these slots and wait until they are there, `fork_s` at most for all together."""
        wanted = [standby for slot in slots if (standby := self.standbys.get(slot) or self._request(slot))]
        give_up_at_s = time.monotonic() + self._fork_s
        for standby in wanted:
            if standby.pid is None:
                news = _receive(standby.gate, give_up_at_s - time.monotonic())
                if isinstance(news, StandbyReady):
                    standby.pid = news.pid

    def promote(self, standby: Standby, identity: Identity, streams: tuple[int, int, int]) -> bool:
        """Tell a standby worker who it is; `confirm` must follow. False if it cannot be told."""
        self.watch(standby.gate, None)
        try:
            send(standby.gate, Promote(identity=identity), streams)
        except (OSError, ValueError):  # gone, or an environment that is no text
            return False
        return True

    def confirm(self, standby: Standby) -> str:
        """Wait until it has become the worker; return why it could not, empty if it has. It is no standby any more."""
        news = _receive(standby.gate, self._fork_s)
        del self.standbys[standby.slot]
        standby.gate.close()
        match news:
            case Promoted():
                return ""
            case CannotPromote(reason=reason):
                return reason
            case None:
                return f"standby worker {standby.pid} did not answer"
            case _:
                return f"standby worker {standby.pid} gave an answer that was not expected: {news}"

    def discard(self, standby: Standby) -> None:
        """Let a standby worker go: hanging up ends it."""
        self.watch(standby.gate, None)
        standby.gate.close()
        self.standbys.pop(standby.slot, None)

    def close(self) -> None:
        """Hang up on all of them: that ends them."""
        for standby in list(self.standbys.values()):
            self.discard(standby)
        self._hang_up()

    def pids(self) -> list[int]:
        """Return the pids of standby workers that wait."""
        return [standby.pid for standby in self.standbys.values() if standby.pid is not None]


def _receive(gate: socket.socket, timeout_s: float) -> msgspec.Struct | None:
    """Return the next message, None if the other end is gone or silent for too long."""
    gate.settimeout(max(timeout_s, 0.0))
    try:
        data = gate.recv(LARGEST_BYTES)
    except OSError:
        return None
    return msgspec.json.decode(data, type=FromStandby) if data else None


def _watch_nothing(sock: socket.socket, call: Callable[[], None] | None) -> None:
    """Stand in for the loop before there is one."""
