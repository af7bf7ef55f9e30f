"""One process that imports torch for all check programs of a node's runner, and forks them. Started by `forked.Nursery`.

A check program needs torch, whose import costs more than many a check; with a program for each device and step it is imported
dozens of times. This process never computes and never initialises CUDA, has one thread whenever it forks, and asks `preflight`
before each fork. After the imports a canary is forked that computes: were that to hang, each check would, and the node be blamed.
Whatever is not as it should be ends it without a word; the runner then starts programs from nothing.

What stays different from a program that was started: all programs of a runner share the seed of `hash(str)`, and modules are
there before they are imported.
"""

from __future__ import annotations

import fcntl
import importlib
import os
import random
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

import msgspec

from robust_run.forking import command_line, preflight
from robust_run.forking.canary import compute, try_child, without_cuda
from robust_run.health.checks.types import CHECKS, CheckName
from robust_run.health.diagnostics import devices, program
from robust_run.own_process import collect_as_ever, collect_seldom

#: What it says once it can be asked, a fork once it waits, and the runner to a fork that is to begin.
READY, GO = b"ready", b"go"
#: Checks whose programs need torch. The others are started from nothing in no time.
WITH_TORCH: frozenset[CheckName] = frozenset(CHECKS) - {"disk"}
#: As others see it of a program that was started, whatever it sets later.
AT_START = dict(os.environ)


class ForkOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Fork a program. With it come its gate, its stdin, stdout, stderr, and what listens for its peers."""

    check: CheckName
    listen_fd: int = -1
    """The number by which the program knows what listens; -1: nothing does."""


def main() -> NoReturn:
    """Import, then fork on demand until the runner hangs up. The argument is a socket."""
    program.die_with_parent()
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    import_all()
    if try_child(compute, "at its first computation") or preflight.unfit({control.fileno()}):
        os._exit(1)
    control.send(READY)
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, 4096, 5)
        if not data or preflight.unfit({control.fileno(), *descriptors}):
            os._exit(0)
        _fork(control, msgspec.json.decode(data, type=ForkOrder), descriptors)
        for each in descriptors:
            os.close(each)


def import_all() -> None:
    """Import what checks need, set up as they would do it."""
    devices.prepare(os.environ)  # each of them does so anyway
    collect_seldom()
    with without_cuda():
        for check in WITH_TORCH:
            importlib.import_module(module_of(check))
        importlib.import_module("torch.distributed")  # torch does so anyway
    collect_as_ever()


def module_of(check: str) -> str:
    """Return the module that is a check's program."""
    return f"robust_run.health.diagnostics.{check}"


def _fork(control: socket.socket, order: ForkOrder, descriptors: Sequence[int]) -> None:
    between = os.fork()
    if between == 0:
        between = os.getpid()
        if os.fork() != 0:
            os._exit(0)  # its child is adopted by the runner, a subreaper, which then sees its end itself
        control.close()
        _be_program(order, descriptors, between)
    os.waitpid(between, 0)


def _be_program(order: ForkOrder, descriptors: Sequence[int], between: int) -> NoReturn:
    """Become a program, and run it once the runner says so. All that may fail comes before, and fails without a word."""
    try:
        os.setsid()
        while os.getppid() == between:
            time.sleep(0.0002)
        if os.getppid() != int(os.environ[program.PARENT]):
            os._exit(1)
        gate = socket.socket(fileno=_take_places(descriptors, order.listen_fd))
        _be_fresh(order.check)
        gate.send(str(os.getpid()).encode())
        if gate.recv(len(GO)) != GO:
            os._exit(1)
        gate.close()
    except BaseException:
        os._exit(1)
    with suppress(BaseException):
        try:
            program.main(order.check, sys.modules[module_of(order.check)].measure)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
    os._exit(1)


def _take_places(descriptors: Sequence[int], listen_fd: int) -> int:
    """Move the descriptors to where the program expects them; return the gate. Raises OSError where a library has one there."""
    places = [0, 1, 2, *([listen_fd] if listen_fd >= 0 else [])]
    above = max(places) + 1
    gate, *moved = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, above) for each in descriptors]
    for each in descriptors:
        os.close(each)
    if listen_fd >= 0 and os.path.lexists(f"/proc/self/fd/{listen_fd}"):
        raise OSError(f"descriptor {listen_fd} is taken")
    for each, place in zip(moved, places, strict=True):
        os.dup2(each, place)
        os.close(each)
    return gate


def _be_fresh(check: CheckName) -> None:
    """Have what a process has of its own from its start. Generators of torch, too, begin with a seed by chance."""
    module = sys.modules[module_of(check)]
    sys.argv = [str(module.__file__)]
    sys.orig_argv = [sys.executable, "-m", module_of(check)]
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc] # noqa: SIM115 - it remembers what kind of file it was
    command_line.show(sys.orig_argv, AT_START)
    random.seed()
    sys.modules["torch"].default_generator.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


if __name__ == "__main__":
    main()
