"""The checkpoints of a job's URL as plain files, for its workers: --ckpt-mount.

    agent ── placing ──► mounts, where workers run, and ends            (its descriptors: FUSE, namespaces)
      └───── held ─────► answers the kernel, outside                    ends when the agent does

The mount is in the namespaces of the workers' image or set-up, or in one of its own that they enter. Nothing else sees it, so
it is gone with the last of them, also where all of ours was killed. (Where there can be none, it is unmounted with the run's
folder in memory: by the guard, or by the next launcher.) A server that dies is said, is the reason of ranks whose
reading failed of it, and is replaced at once. Imported where a job has one.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec

from robust_run.ckpt_io.mount import held, placing
from robust_run.ckpt_io.mount.held_types import (
    TOLD,
    WAYS,
    AttemptTold,
    HeldOptions,
    HeldServing,
    HeldTrouble,
    Placed,
    PlacingOrder,
    Way,
)
from robust_run.clock import Clock
from robust_run.errors import PlatformError, RobustRunError
from robust_run.health.types import Finding
from robust_run.launcher.agent.checkpoint.mount_server import END_S, LIMIT_S, MountServer, end, reap, source_of, widen
from robust_run.launcher.agent.places.troubles import PlaceTroubles
from robust_run.launcher.agent.thread_messages import ThreadMessages
from robust_run.prefetch.inside.handle import entering
from robust_run.signals import describe_exit

#: Of the processes that were started last, so many may still run.
_MOST_STARTED = 8
_LARGEST_BYTES = 1 << 16
#: The job's secret, and what is said to workers.
_NOT_ITS_BUSINESS = frozenset(("ROBUST_TOKEN", "ROBUST_NOTIFY", "ROBUST_CKPT_MEMORY", "ROBUST_CKPT_MOUNTED", *TOLD))


class CheckpointMount:
    """One node's. Used by the agent's thread."""

    def __init__(
        self,
        url: str,
        folder: str,
        env: Mapping[str, str],
        clock: Clock,
        say: Callable[[str], None],
        theirs: Callable[[], Sequence[int]],
        log: str = os.devnull,
        ways: tuple[Way, ...] = WAYS,
    ) -> None:
        """`folder`: where it is seen. `theirs` returns descriptors of the namespaces in which workers are; empty: in ours. `log`:
        file for what libraries of the server have to say.

        Raises PlatformError: there can be none on this node.
        """
        self.url, self.folder = url, folder
        self._env = {name: value for name, value in env.items() if name not in _NOT_ITS_BUSINESS}
        self._theirs, self._log, self._ways = theirs, log, ways
        self._say = ThreadMessages(say)
        self._troubles = PlaceTroubles("mount of the checkpoints", clock)
        self._started: deque[subprocess.Popen[bytes]] = deque(maxlen=_MOST_STARTED)
        self._own: tuple[int, ...] = ()
        """Descriptors of namespaces that were made for it."""
        self._anew: threading.Thread | None = None
        self._told: AttemptTold | None = None
        self._device = ""
        self._why_not = ""
        self._is_stopping = False
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
        except OSError as error:
            raise PlatformError(f"--ckpt-mount: {folder}: {error.strerror}") from error
        self._server = self._made()

    # --- what workers get

    def enter(self, argv: Sequence[str]) -> tuple[str, ...]:
        """Return the command line that runs a program where it is seen; as it is where all workers are there."""
        return tuple(argv) if not self._own else tuple(entering(self._own, argv, os.getcwd()))

    def is_ready(self) -> bool:
        """Whether an attempt may begin. False: it is being made anew, ask again soon; the agent's heartbeats go on meanwhile."""
        if self._anew is not None and self._anew.is_alive():
            return False
        if self._server.has_ended and not self._why_not:
            self.look()
            return False
        return True

    def begin(self, told: Mapping[str, str]) -> None:
        """An attempt is about to start, see `is_ready`. `told`: variables of its first rank here.

        Raises PlatformError: it is not to be had.
        """
        self._told = AttemptTold(env={name: told[name] for name in TOLD if told.get(name)})
        why_not, self._why_not, self._anew = self._why_not, "", None
        if self._server.has_ended:
            raise PlatformError(why_not or "--ckpt-mount: the mount was lost just now")
        if self._server.namespaces != self._now():
            self._replace(self._made())
        self._tell()

    def _now(self) -> tuple[int, ...]:
        return tuple(self._theirs()) or self._own

    def _tell(self) -> None:
        if self._told is not None:
            with suppress(OSError):  # it has ended, which is seen
                self._server.channel.sendall(msgspec.json.encode(self._told) + b"\n")
            widen(self._device)

    # --- while they run

    def pids(self) -> list[int]:
        """Return what is not of an attempt: also what is just being started, by the thread that makes it anew."""
        return [each.pid for each in tuple(self._started) if each.poll() is None]

    def look(self) -> None:
        """Call now and then."""
        self._hear()
        self._say.flush()
        if self._server.has_ended and self._anew is None and not self._is_stopping:
            self._lost()
            self._anew = threading.Thread(target=self._make_anew, name="checkpoints-mount", daemon=True)
            self._anew.start()
        elif self._anew is not None and not self._anew.is_alive():
            self._anew = None if not self._why_not else self._anew

    def _hear(self) -> None:
        """Take in why readers got errors."""
        with suppress(OSError, ValueError):  # it was replaced meanwhile
            while select.select([self._server.channel], [], [], 0)[0]:
                content = self._server.channel.recv(_LARGEST_BYTES)
                if not content:
                    return
                for line in content.splitlines():
                    with suppress(msgspec.MsgspecError):
                        said = msgspec.json.decode(line, type=HeldServing | HeldTrouble)
                        self._trouble(said.sentence if isinstance(said, HeldTrouble) else said.failed)

    def _trouble(self, sentence: str) -> None:
        self._troubles.add(sentence)
        self._say(f"mount of the checkpoints: {sentence}")

    def _lost(self) -> None:
        process = self._server.process
        self._trouble(
            f"the process that served it (pid {process.pid}) {describe_exit(process.returncode)}: who was reading gets errors"
        )

    def _make_anew(self) -> None:
        try:
            self._replace(self._made())
            self._why_not = ""
        except RobustRunError as error:  # the next attempt tries again, and fails of it
            self._why_not = str(error)
            self._say(f"{error}; the next attempt tries again")

    def _replace(self, server: MountServer) -> None:
        old, self._server = self._server, server
        end(old)
        self._tell()

    def blame(self, finding: Finding | None, exit_code: int | None) -> Finding | None:
        """Return what a rank shows, with the mount's trouble as the reason if it died of an input error after one."""
        if exit_code in (0, None):
            return finding
        self.look()
        return self._troubles.blame(finding, exit_code)

    # --- the end

    def stop(self) -> None:
        """Let it go, after the workers have ended. Never raises."""
        self._is_stopping = True
        if self._anew is not None:
            self._anew.join(END_S)
        self._hear()
        self._say.flush()
        end(self._server)
        if not self._server.namespaces:  # fusermount3 made it, in the open
            from robust_run.launcher.records.memory_folders import unmount_files

            unmount_files(self.folder)
        for descriptor in self._own:
            os.close(descriptor)
        self._own = ()

    # --- making it

    def _made(self) -> MountServer:
        """Mount, and have it served. Raises PlatformError."""
        until_s = time.monotonic() + LIMIT_S
        namespaces = self._now()
        fuse = -1
        try:
            placed, descriptors = self._placed(namespaces, until_s)
            if placed.failed:
                raise PlatformError(f"--ckpt-mount: {self.url} cannot be shown as files here: {placed.failed}")
            fuse, *made = descriptors
            if made:
                namespaces = self._own = tuple(made)
            self._device = placed.device
            return self._served(fuse, namespaces, until_s)
        except OSError as error:
            raise PlatformError(f"--ckpt-mount: the mount cannot be made: {error}") from error
        finally:
            if fuse >= 0:  # the server's alone: it is an error for readers when that ends
                os.close(fuse)

    def _placed(self, namespaces: tuple[int, ...], until_s: float) -> tuple[Placed, list[int]]:
        files = tuple(f"/proc/{os.getpid()}/fd/{each}" for each in namespaces)
        order = PlacingOrder(point=self.folder, source=source_of(self.url), namespaces=files, ways=self._ways)
        process, channel = self._start(placing.command(order))
        try:
            channel.settimeout(max(0.0, until_s - time.monotonic()))
            line, descriptors, _, _ = socket.recv_fds(channel, _LARGEST_BYTES, 3, socket.MSG_CMSG_CLOEXEC)
            if not line:
                return Placed(failed=f"the process that mounts {describe_exit(process.wait(END_S))}"), []
            return msgspec.json.decode(line, type=Placed), descriptors
        finally:
            channel.close()
            reap(process)

    def _served(self, fuse: int, namespaces: tuple[int, ...], until_s: float) -> MountServer:
        process, channel = self._start(held.command(fuse, HeldOptions(url=self.url)), fuse)
        server = MountServer(process, channel, namespaces)
        try:
            channel.settimeout(max(0.0, until_s - time.monotonic()))
            line = channel.recv(_LARGEST_BYTES).partition(b"\n")[0]
            channel.settimeout(None)
            said = (
                msgspec.json.decode(line, type=HeldServing) if line else HeldServing(failed="it ended without a word")
            )
        except OSError:
            said = HeldServing(failed=f"it did not serve within {LIMIT_S:g} s")
        if said.failed:
            end(server)
            raise PlatformError(f"--ckpt-mount: {self.url} cannot be shown as files here: {said.failed}")
        return server

    def _start(self, argv: tuple[str, ...], *keep: int) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = socket.socketpair()
        log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            process = subprocess.Popen(
                argv,
                stdin=theirs.fileno(),
                stdout=log,
                stderr=log,
                cwd="/",
                env=self._env,
                pass_fds=keep,
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            os.close(log)
            theirs.close()
        self._started.append(process)
        return process, ours
