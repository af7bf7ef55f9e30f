"""The process in which set-up commands run: it makes the overlays, runs them one by one, and ends all that they left running.

Started as `python -m robust_run.snapshot.capture.inside ORDER REPORT`; it ends all of that, too, when its parent ends (then it
also removes the folder of the order) or on SIGTERM. If it is killed itself, the kernel ends the rest, where it is allowed to
enclose them (see `enclosed`). No other process sees its mounts; they end with it. The commands' output goes to its own.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress

import msgspec

from robust_run.atomic_file import write_file
from robust_run.mounts import namespace, overlay, syscalls
from robust_run.mounts.errors import MountRefused
from robust_run.mounts.table import points_below
from robust_run.snapshot.capture import enclosed
from robust_run.snapshot.capture.types import CaptureOrder, CaptureReport
from robust_run.snapshot.errors import SnapshotError
from robust_run.snapshot.roots import is_within

_OURS = "/proc/self/fd/"
_NAMESPACE = re.compile(r"/proc/\d+/fd/\d+")


def main(order_path: str, report_path: str) -> int:
    """Carry out an order and write the report. Returns the exit code."""
    signal.signal(signal.SIGTERM, _stop)
    syscalls.die_with_parent(signal_number=signal.SIGTERM)
    syscalls.adopt_orphans()
    # The process that starts us may block signals, and children inherit that: nothing but SIGKILL would end them.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
    with open(order_path, "rb") as file:
        order = msgspec.json.decode(file.read(), type=CaptureOrder)
    if os.getppid() != order.parent:  # it ended before `die_with_parent`: its signal does not come any more
        return 1
    try:
        report = _carry_out(_open_entry(order))
    except SnapshotError as error:
        report = CaptureReport(killed=str(error))
    except SystemExit:
        _end_children()
        if os.getppid() != order.parent:
            _remove(os.path.dirname(order_path))
        raise
    write_file(report_path, msgspec.json.encode(report))
    return 0


def _carry_out(order: CaptureOrder) -> CaptureReport:
    userns = False
    watched: list[str] = []
    if order.layers:
        try:
            userns = namespace.enter_as_oneself()
            watched = _watch(order, userns)
            for layer in order.layers:
                if below := points_below(layer.target):
                    return CaptureReport(refused=f"{below[0]} is mounted below {layer.target} and would be hidden")
                overlay.mount(layer.target, [layer.target], upper=layer.upper, work=layer.work, userns=userns)
        except MountRefused as error:
            return CaptureReport(refused=str(error), userns=userns)
    began_ns = time.clock_gettime_ns(5)  # CLOCK_REALTIME_COARSE: what file systems stamp files with
    codes = enclosed.run(lambda: _run_all(order)) if order.enclose else None
    if codes is None:
        codes = _run_all(order)
    return CaptureReport(userns=userns, watched=tuple(watched), began_ns=began_ns, codes=codes)


def _run_all(order: CaptureOrder) -> tuple[int, ...]:
    """Run the commands until one fails. Returns their exit codes."""
    codes = []
    for command in order.commands:
        codes.append(_run(command, order))
        if codes[-1] != 0:
            break
    return tuple(codes)


def _watch(order: CaptureOrder, userns: bool) -> list[str]:
    """Mount an overlay over each folder to watch. A root or the working directory in one of them stays the real one."""
    seen = []
    kept = [layer.target for layer in order.layers] + [layer.upper for layer in order.layers] + [order.cwd]
    kept += [os.path.realpath(path) for path in order.private]
    for layer in order.watched:
        if points_below(layer.target) or any(is_within(path, layer.target) for path in kept):
            continue  # it would hide them
        try:
            overlay.mount(layer.target, [layer.target], upper=layer.upper, work=layer.work, userns=userns)
        except MountRefused:
            continue
        seen.append(layer.target)
    return seen


def _run(command: str, order: CaptureOrder) -> int:
    """Run one command in a session of its own, and end what it leaves behind."""
    argv, kept = _entering(order.entry)
    process = subprocess.Popen(
        [*argv, order.shell, "-c", command],
        cwd=order.cwd,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        pass_fds=kept,
    )
    try:
        return process.wait()
    finally:
        _end_group(process.pid)
        _end_children()


def _entering(entry: tuple[str, ...]) -> tuple[list[str], list[int]]:
    """Return what enters an image with the namespaces that `_open_entry` has opened, and those."""
    kept = [int(word.rpartition("/")[2]) for word in entry if word.startswith(_OURS)]
    return list(entry), kept


def _open_entry(order: CaptureOrder) -> CaptureOrder:
    """Open the namespaces of an image while they can be seen by name: not so with the /proc of a process namespace."""
    found = [
        f"{_OURS}{os.open(word, os.O_RDONLY | os.O_CLOEXEC)}" if _NAMESPACE.fullmatch(word) else word
        for word in order.entry
    ]
    return msgspec.structs.replace(order, entry=tuple(found))


def _stop(_number: int, _frame: object) -> None:
    """On SIGTERM, which also comes when the builder ends: no more commands, and nothing left of this one."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + signal.SIGTERM)


def _remove(folder: str) -> None:
    """Remove the work folder: the builder, which would have done it, is gone."""
    from robust_run.snapshot.capture.work import remove_work

    remove_work(folder)


def _end_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _end_children() -> None:
    """Kill what was adopted, until nothing is left: a daemon would keep the overlay in use and write on."""
    while children := _children():
        killed = []
        for child in children:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
                killed.append(child)
        if not killed:
            return
        for child in killed:  # not for any: those that are adopted only now are killed in the next round
            with suppress(ChildProcessError):
                os.waitpid(child, 0)


def _children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return [int(number) for number in file.read().split()]
    except OSError:
        return []


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
