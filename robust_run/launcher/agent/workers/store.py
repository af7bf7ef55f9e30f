"""The agent's side of the workers' TCPStore: a listening socket of its own for every attempt, served by a child process.

The agent binds and listens before any worker starts, so MASTER_PORT is known and connectable at once, no process races for
it, and a worker that is early waits in the backlog instead of backing off. A dead attempt's keys die with its port.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Mapping
from typing import Protocol

from robust_run.errors import PlatformError
from robust_run.own_process import boot

#: Connections that may wait before the store's process is up: far more than the ranks of a node.
BACKLOG = 4096

#: torch's own switch: "1" has rank 0 host the store, as torchrun's ranks do then. Programs without torch.distributed need none.
NO_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"

#: What is said of a process that hung up; the node, which has its exit code, may know more.
DIED = "the store's process died"

_BOOT = boot("robust_run.launcher.agent.workers.store_process", "main(int(sys.argv[1]))")


class StartsHelpers(Protocol):
    """Starts a child process of the agent that dies with it; returns its pid."""

    def __call__(self, argv: tuple[str, ...], env: Mapping[str, str], keep: tuple[int, ...]) -> int:
        """Start `argv` with the descriptors in `keep` open. Raises PlatformError."""
        ...


class Listener:
    """A listening socket, and what had to be different from what was asked for."""

    def __init__(self, sock: socket.socket, address: str, note: str = "") -> None:
        self.socket = sock
        self.address = address
        """What workers get as MASTER_ADDR."""
        self.port: int = sock.getsockname()[1]
        self.note = note


def listen(address: str, port: int | None, *, hosts: bool = True) -> Listener:
    """Listen for the workers of one attempt, on the address and port asked for if they can be had. `hosts`: see `_bound`.

    A port in use, or an address that is not of this machine, is answered by a free port on loopback, which is all that one
    node's workers need; the note says so. Raises PlatformError if not even that can be had.
    """
    trouble = ""
    for wanted_address, wanted_port in ((address, port or 0), ("127.0.0.1", 0)):
        try:
            note = (
                f"{trouble}; this attempt's store listens on {wanted_address} instead, at a free port"
                if trouble
                else ""
            )
            return Listener(_bound(wanted_address, wanted_port, hosts=hosts), wanted_address, note)
        except OSError as error:
            trouble = f"cannot listen on {wanted_address}:{wanted_port} ({error.strerror or error})"
    raise PlatformError(f"{trouble}; without a loopback port no store can be hosted")


def listen_for_others(address: str, *, hosts: bool = True) -> Listener:
    """Listen for the workers of several nodes, on this node's address and a free port. Raises PlatformError."""
    try:
        return Listener(_bound(address, 0, hosts=hosts), address)
    except OSError as error:
        raise PlatformError(
            f"cannot listen on {address} for the workers of other nodes ({error.strerror or error}); "
            "give this node's address with --local-addr"
        ) from error


def _bound(address: str, port: int, *, hosts: bool) -> socket.socket:
    """Return a socket that has the port: listening, or, where rank 0 will host the store, keeping the port free for that.

    It takes seconds until rank 0 has imported torch. Meanwhile the kernel gives a port that is bound to nobody else, neither to
    listen on nor to connect from. Who asks for it by number and says SO_REUSEADDR, as torch does, has it beside us.
    """
    # Of a str it would import what international names need, though hardly a host has one.
    host = address.encode("ascii") if address.isascii() else address
    family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(where)
        if hosts:
            sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


class StoreHost:
    """Starts the store's process with the first attempt and hands it a listening socket per attempt.

    `on_lost(attempt, detail)` is called once if the process fails or dies while it serves an attempt; one that no attempt needs
    is replaced in silence when the next store is asked for.
    """

    def __init__(
        self, start: StartsHelpers, python: str, env: Mapping[str, str], on_lost: Callable[[int, str], None]
    ) -> None:
        self._start = start
        self._python = python
        self._env = env
        self._on_lost = on_lost
        self._control: socket.socket | None = None
        self._attempt: int | None = None
        self._listener: Listener | None = None
        self.pid: int | None = None

    def open(self, address: str, port: int | None, *, for_others: bool, hosts: bool = True) -> Listener:
        """Listen for the workers of an attempt; `for_others`: also for those of other nodes, at a free port.

        `hosts`: whether the agent hosts the store; else rank 0 will, and the port is kept for it. Raises PlatformError.
        """
        self.give_up()
        self._listener = listen_for_others(address, hosts=hosts) if for_others else listen(address, port, hosts=hosts)
        return self._listener

    def give_up(self) -> None:
        """Give up a socket that no worker was told of, or that kept a port for an attempt which is over."""
        if self._listener is not None:
            self._listener.socket.close()
            self._listener = None

    def serve_opened(self, attempt: int, *, hosts: bool) -> None:
        """Hand the listening socket to the store's process, after the workers, who need longer than it. Raises PlatformError.

        `hosts`: whether the agent hosts the store; else rank 0 will, and its port is kept until the next attempt's is opened.
        """
        if hosts and self._listener is not None:
            listener, self._listener = self._listener, None
            self.serve(attempt, listener)

    def serve(self, attempt: int, listener: Listener) -> None:
        """Have the store of this attempt served on the listener, which is closed here. Raises PlatformError."""
        self._attempt = attempt
        if self._control is None:
            self._launch()
        control = self._control
        if control is None:
            raise PlatformError("the store's process has no control socket; please report this")
        try:
            message = f"serve {attempt} {listener.address} {listener.port}\n"
            socket.send_fds(control, [message.encode()], [listener.socket.fileno()])
        except OSError as error:
            self._lose(f"the store's process is gone ({error})")
        finally:
            listener.socket.close()

    def retire(self, newest: int) -> None:
        """Note which attempt is the newest: what becomes of the store of an earlier one is not reported."""
        if self._attempt is not None and self._attempt < newest:
            self._attempt = None

    def prepare(self) -> None:
        """Start the process now, so that it has loaded what it needs when a store is asked for. Raises PlatformError."""
        if self._control is None:
            self._launch()

    def adopt(self, pid: int, control: socket.socket) -> None:
        """Take over a process that was not started by us; the end of its control socket comes along, not blocking."""
        self.pid, self._control = pid, control

    def _launch(self) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            argv = (self._python, "-c", _BOOT, str(theirs.fileno()))
            self.pid = self._start(argv, self._env, (theirs.fileno(),))
            self._control = ours
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()

    def fileno(self) -> int | None:
        """Return the descriptor to watch for `read`, None while no process runs."""
        return self._control.fileno() if self._control is not None else None

    def read(self) -> None:
        """Take in what the process says; call when the descriptor is readable."""
        if self._control is None:
            return
        try:
            text = self._control.recv(4096).decode(errors="replace")
        except BlockingIOError:
            return
        except OSError:
            text = ""
        if not text:
            self._lose(DIED)
        for line in text.splitlines():
            if line.startswith("failed"):
                self._lose(f"the store's process cannot serve: {line.split(' ', 2)[-1]}")

    def _lose(self, detail: str) -> None:
        self.close()
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            self._on_lost(attempt, detail)

    def close(self) -> None:
        """End the process's life by hanging up; its parent waits for it."""
        if self._control is not None:
            self._control.close()
            self._control = None


def torch_is_installed() -> bool:
    """Whether this interpreter can find torch, without importing it (nor `importlib.util`, which nothing else here needs)."""
    return any(finder.find_spec("torch", None) is not None for finder in sys.meta_path)


def with_last_line(detail: str, path: str) -> str:
    """Add the last line the store's process printed, which usually says why, unless it is a mere warning."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read()[-4096:].strip().splitlines()
    except OSError:
        return detail
    telling = [line for line in lines if not line.startswith("[W") and "Warning" not in line]
    return f"{detail}: {telling[-1]}" if telling else detail


def own_python() -> str:
    """Return the interpreter for helpers of ours. Raises PlatformError."""
    import sys

    if not sys.executable:
        raise PlatformError(
            "this Python does not know its own path (sys.executable is empty), so no store can be started"
        )
    return sys.executable
