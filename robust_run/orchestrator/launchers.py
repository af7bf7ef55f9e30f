"""Launchers of all members: started and signalled by the guard, followed here. Decides nothing.

What a leader that is started again finds is told by the guard, which alone knows; see `guarding.guard`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from robust_run.orchestrator.guarding.words import (
    AllKnown,
    Asked,
    FromLeader,
    Known,
    Lease,
    Link,
    Send,
    Shown,
    Spawn,
)
from robust_run.orchestrator.members import MemberLauncher, console
from robust_run.orchestrator.model.command import Meets, command_line, environment, parsed, run_name
from robust_run.orchestrator.model.names import MemberName
from robust_run.orchestrator.model.node_words import LauncherNow
from robust_run.orchestrator.model.spec import RoleSpec
from robust_run.orchestrator.model.state import JobState, Member
from robust_run.orchestrator.model.update_words import UpdateMember
from robust_run.orchestrator.model.words import Event, RestartMember, StartMember, StopMember, WorldEnded
from robust_run.orchestrator.restarting import ask_to_restart
from robust_run.orchestrator.rules.update_rules import start_again
from robust_run.orchestrator.updates.shelf import Shelf
from robust_run.orchestrator.updates.stager import Stager
from robust_run.process_start import started_at

#: How often launchers are looked at once no guard says when they end.
LOOK_S = 0.2


class Launchers:
    """Of one job. `folder`: its run directory; `place`: of the file for workers."""

    def __init__(
        self,
        folder: str,
        place: str,
        env: Mapping[str, str],
        link: Link,
        tell: Callable[[Event], None],
        say: Callable[[str], None],
    ) -> None:
        """Raises OSError where there can be no folder for members, or no guard."""
        self.shelf = Shelf(folder)
        self._folder, self._place, self._env, self._link = os.path.join(folder, "members"), place, env, link
        self._tell, self._say = tell, say
        self._launchers: dict[str, MemberLauncher] = {}
        """By the name of their run directory."""
        self._known: dict[str, Known] = {}
        self._signalled: Callable[[int, str], None] | None = None
        self.trust: tuple[str, ...] = ()
        """See `command_line`."""
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        self._stager = Stager(self._folder, env, tell)

    def listen(self, signalled: Callable[[int, str], None], said: Sequence[object] = ()) -> None:
        """Wait for the guard's first word; take in what it says then. `signalled`: told of its signals; `said`: what it has said
        already. Raises EOFError.
        """
        self._signalled = signalled
        later: list[object] = list(said)
        while not self._known_is_here(later):
            later += self._link.receive()
        asyncio.get_running_loop().add_reader(self._link.socket.fileno(), self._heard)
        for message in later:
            asyncio.get_running_loop().call_soon(self._take, message)

    def _known_is_here(self, messages: list[object]) -> bool:
        for message in messages:
            if isinstance(message, AllKnown):
                self._known = {each.name: each for each in message.launchers}
                messages.remove(message)
                return True
        return False

    def start(self, role: RoleSpec, start: StartMember, meets: Meets | None = None) -> None:
        """Have a member's launcher started, once. `meets`: where the nodes of a member of several meet."""
        if run_name(start) in self._launchers or run_name(start) in self._known:
            return  # an order that was sent again
        launcher = self._follow(start.member, start.serial)
        try:
            self.shelf.prepare(os.path.join(self._folder, run_name(start)), role.name, start.code)
        except OSError as error:
            why = f"its run directory cannot be written ({error.strerror or error})"
            self._ended(launcher, Known(name=run_name(start), code=1, why=why))
            return
        self._send(
            Spawn(
                name=run_name(start),
                argv=tuple(command_line(role, start, self._folder, sys.executable, meets, self.trust)),
                env=environment(role, start, self._env, self._place),
                output=console(os.path.join(self._folder, run_name(start))),
            )
        )

    def stop(self, stop: StopMember) -> None:
        """Have a launcher told to end."""
        self._send(Send(name=run_name(stop), number=stop.signal))

    def update(self, order: UpdateMember) -> None:
        """Have a launcher put a version of its role's code in place."""
        name = run_name(StopMember(member=order.member, serial=order.serial))
        if name in self._launchers:
            self._stager.order(name, order)

    def restart(self, order: RestartMember) -> None:
        """Have a launcher start its workers again."""
        ask_to_restart(os.path.join(self._folder, run_name(order)), order.reason, self._say)

    def adopt(self, role: RoleSpec, member: Member, state: JobState, meets: Meets | None = None) -> None:
        """Go on with a member whose launcher an earlier leader had started, or was about to."""
        start = start_again(state, member)
        known = self._known.get(run_name(start))
        if known is None and member.standing == "starting":
            self.start(role, start, meets)
        elif known is None:  # it was to end before it was started
            self._tell(WorldEnded(member=member.name, serial=member.serial, code=-signal.SIGTERM))
        else:
            launcher = self._follow(member.name, member.serial, known.shown)
            if known.code is not None:
                self._ended(launcher, known)
            elif member.standing == "stopping":
                self._send(Send(name=known.name, number=signal.SIGTERM))  # the order may not have been carried out

    def follow_known(self) -> None:
        """Follow what an earlier process of this node has started."""
        followed = [(self._follow(*parsed(known.name), known.shown), known) for known in list(self._known.values())]
        for launcher, known in followed:  # all of them are known before anybody hears of an end
            if known.code is not None:
                self._ended(launcher, known)

    def now(self) -> tuple[LauncherNow, ...]:
        """Return what is known of all launchers there were."""
        return tuple(
            LauncherNow(member=member, serial=serial, code=known.code)
            for known in self._known.values()
            for member, serial in [parsed(known.name)]
        )

    def running(self) -> bool:
        """Whether a launcher runs, or is about to."""
        return bool(self._launchers)

    def lease(self, until_s: float) -> None:
        """Have launchers killed then (monotonic clock), unless this is said again."""
        self._send(Lease(until_s=until_s))

    def pids(self) -> dict[str, int]:
        """Return the launchers that run, by the name of their run directory."""
        return {known.name: known.pid for known in self._known.values() if known.code is None}

    def end_unknown(self) -> None:
        """End launchers that run and that the journal does not know: it could not be written. Nobody would follow them."""
        for known in self._known.values():
            if known.code is None and known.name not in self._launchers:
                self._say(f"{known.name} is not in the journal, which could not be written; it is ended")
                self._send(Send(name=known.name, number=signal.SIGTERM))

    def _follow(self, member: MemberName, serial: int, at: int = 0) -> MemberLauncher:
        run = os.path.join(self._folder, run_name(StartMember(member=member, serial=serial, nodes=())))
        launcher = MemberLauncher(member, serial, run, self._tell, self._show, self._shown, at)
        self._launchers[launcher.run_name] = launcher
        return launcher

    def _shown(self, name: str, offset: int) -> None:
        self._send(Shown(name=name, offset=offset))

    def _show(self, member: MemberName, line: bytes) -> None:
        with suppress(OSError):  # whoever read it has left; it is in the file
            sys.stdout.buffer.write(b"[%s]: %s\n" % (str(member).encode(), line))
            sys.stdout.buffer.flush()

    def _send(self, message: FromLeader) -> None:
        with suppress(OSError):  # the guard is gone: that is heard, and acted on, a moment later
            self._link.send(message)

    def _heard(self) -> None:
        try:
            for message in self._link.receive():
                self._take(message)
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(self._link.socket.fileno())
            self._ask_to_end(signal.SIGTERM, "the end of the job's guard")
            self._look()

    def _take(self, message: object) -> None:
        if isinstance(message, Asked):
            self._ask_to_end(message.number, "")
        elif isinstance(message, Known):
            self._known[message.name] = message
            launcher = self._launchers.get(message.name)
            if launcher is not None and message.code is not None:
                self._ended(launcher, message)

    def _ask_to_end(self, number: int, by: str) -> None:
        if self._signalled is not None:
            self._signalled(number, by)

    def _ended(self, launcher: MemberLauncher, known: Known) -> None:
        del self._launchers[launcher.run_name]
        self._stager.over(launcher.run_name)
        launcher.ended(known.code or 0, f"it cannot be started: {known.why}" if known.why else "")

    def _look(self) -> None:
        """The guard is gone, and its children end: wait for that, as far as the kernel shows it."""
        for name, launcher in list(self._launchers.items()):
            known = self._known.get(name)
            if known is None or not known.started_at or started_at(known.pid) != known.started_at:
                del self._launchers[name]
                self._stager.over(name)
                launcher.ended(-signal.SIGTERM)
        if self._launchers:
            asyncio.get_running_loop().call_later(LOOK_S, self._look)
