"""The warm process: imports what workers will import, and forks standby workers from it. Runs as a child of the agent.

It is a worker's own interpreter that stops before the user's program begins (see `start_up`): `main` is called there, and
returns only in a standby worker that has been promoted, which then goes on to run the program.
It never computes anything: one parallel region here would leave every child without the threads it believes to have. It
has one thread whenever it forks, and asks `preflight` before each fork. After the imports a canary is forked that does
compute; only if that one lives are standby workers made.
"""

from __future__ import annotations

import gc
import importlib
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping

import msgspec

from robust_run.forking import preflight
from robust_run.forking.canary import compute, try_child, without_cuda
from robust_run.launcher.agent.warm.known import LATE, batches
from robust_run.launcher.agent.warm.messages import (
    LARGEST_BYTES,
    MakeStandby,
    Preload,
    Preloaded,
    ToWarm,
    WarmStartRefused,
    send,
)
from robust_run.launcher.agent.warm.standby import stand_by
from robust_run.launcher.agent.workers.helper_signals import leave_the_end_to_the_agent
from robust_run.tracer.arm.startup import fewer_collections

#: The importing thread gives way to the workers of the running attempt.
IMPORT_NICENESS = 10

#: Made now: msgspec looks at the module of each Struct, and that is gone in a process which has us from elsewhere.
_DECODER = msgspec.json.Decoder(ToWarm)


class WarmProcess:
    """Imports, checks itself, and forks on demand."""

    def __init__(self, control: socket.socket, agent_pid: int, niceness: int = IMPORT_NICENESS) -> None:
        """`niceness`: of what imports."""
        self._control = control
        self._niceness = niceness
        self._agent_pid = agent_pid
        self._skipped: list[str] = []

    def serve(self, modules: tuple[str, ...]) -> None:
        """Import the modules, then obey. Returns in promoted standby workers only."""
        self.preload(modules)
        self.obey()

    def obey(self) -> None:
        """Do as the agent says until it hangs up. Returns in promoted standby workers only."""
        while True:
            data, descriptors, _, _ = socket.recv_fds(self._control, LARGEST_BYTES, 1)
            if not data:
                os._exit(0)
            match _DECODER.decode(data):
                case MakeStandby():
                    if self._make_standby(socket.socket(fileno=descriptors[0])):
                        return
                case Preload(modules=more):
                    self.preload(more)

    def preload(self, modules: tuple[str, ...]) -> None:
        """Import modules and report; a module that makes this process unfit to be forked ends it."""
        began_s = time.monotonic()
        collect_as_ever = fewer_collections.begin()
        with without_cuda():
            for names in batches(modules):
                self._import(names)
        collect_as_ever()
        gc.collect()
        gc.freeze()  # what is here now will never be garbage; untouched pages stay shared with every child
        self._refuse_if(try_child(compute, "at its first parallel computation") or self._unfit())
        imported = tuple(name for name in modules if name in sys.modules)
        took_s = time.monotonic() - began_s
        send(self._control, Preloaded(modules=imported, took_s=took_s, skipped=tuple(self._skipped)))

    def _import(self, names: tuple[str, ...]) -> None:
        """Import the modules of one batch, and look at once what they did: it must be named if it made us unfit."""
        before = dict(os.environ)
        for name in names:
            if error := run_gently(lambda: importlib.import_module(name), self._niceness):  # noqa: B023 - it runs before the next round
                self._skipped.append(f"{name} ({type(error).__name__}: {error})")
        if names[0] in LATE:  # a program sees what they set once it imports them itself, if it does
            put_back(before)
        self._refuse_if(try_child(lambda: None, "at its start") or self._unfit(), names)

    def _unfit(self) -> str:
        return preflight.unfit({self._control.fileno()})

    def _refuse_if(self, reason: str, modules: tuple[str, ...] = ()) -> None:
        if reason:
            send(self._control, WarmStartRefused(reason, modules))
            os._exit(0)

    def _make_standby(self, gate: socket.socket) -> bool:
        """Fork a standby worker. Returns False here, and True in the child once it has become a worker."""
        self._refuse_if(preflight.unfit({self._control.fileno(), gate.fileno()}))
        between = os.fork()
        if between == 0:
            if os.fork() != 0:
                os._exit(0)  # its child is adopted by the agent, a subreaper, which then sees its end itself
            self._control.close()
            stand_by(gate, self._agent_pid)
            return True
        os.waitpid(between, 0)
        gate.close()
        return False


def put_back(env: Mapping[str, str]) -> None:
    """Make the environment this one again."""
    for name in os.environ.keys() - env.keys():
        del os.environ[name]
    for name, value in env.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def run_gently(work: Callable[[], object], niceness: int) -> Exception | None:
    """Run something in a thread of that priority, usually a lower one, and return its exception, if it raised one.

    A process without privileges cannot raise its priority again and would pass it on to every child, but priorities are per
    thread. The thread is a bare one and is gone when this returns, so that the names of the user's threads count from 1.
    """
    import _thread

    raised: list[Exception] = []
    idents: list[tuple[int, int]] = []
    done = _thread.allocate_lock()
    done.acquire()

    def run() -> None:
        try:
            idents.append((_thread.get_ident(), _thread.get_native_id()))
            os.setpriority(os.PRIO_PROCESS, idents[0][1], max(niceness, os.getpriority(os.PRIO_PROCESS, 0)))
            work()
        except Exception as error:
            raised.append(error)
        finally:
            done.release()

    _thread.start_new_thread(run, ())
    done.acquire()
    ident, task = idents[0]
    while os.path.exists(f"/proc/self/task/{task}"):
        time.sleep(0.0005)  # it is past its last line and about to end
    threading = sys.modules.get("threading")
    if threading is not None:
        getattr(threading, "_active", {}).pop(ident, None)  # a stand-in that asking for the current thread makes
    return raised[0] if raised else None


def main(descriptor: str, agent_pid: str, modules: str = "") -> None:
    """Serve on an inherited descriptor; `modules` are separated by commas. Called by `start/sitecustomize.py`."""
    leave_the_end_to_the_agent()
    control = socket.socket(fileno=int(descriptor))
    os.set_inheritable(control.fileno(), False)
    WarmProcess(control, int(agent_pid)).serve(tuple(filter(None, modules.split(","))))
