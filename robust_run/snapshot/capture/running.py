"""Starting the process inside, and passing on what the commands write."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress

import msgspec

from robust_run.snapshot.capture.types import CaptureOrder, CaptureReport
from robust_run.snapshot.errors import CaptureRefused, SetupFailed, SnapshotError
from robust_run.snapshot.rules.key import blanked

_LINES_KEPT = 30
_STOP_S = 10.0
_LINE_BYTES = 64 << 10
#: In the environment of all that the commands start: the folder of their order, by which they are known.
MARK = "_ROBUST_SETUP_WORK"
#: How often the listener of the output is asked meanwhile whether to go on.
_TICK_S = 0.2
_REPORT_BYTES = 1 << 20
#: Rounds of killing, 10 ms apart: 2 s for what is killed to leave the kernel.
_LOOKS = 200
_START = "import json,sys; sys.path[:]=json.loads(sys.argv[1]); from robust_run.snapshot.capture import inside; "


def run_inside(
    order: CaptureOrder, folder: str, environment: Mapping[str, str], on_output: Callable[[bytes], None]
) -> tuple[CaptureReport, list[str]]:
    """Run the order's commands, giving their output line by line. Returns the report and the last lines.

    The calling thread must live until then: the commands are killed when it ends. Raises `SnapshotError` if the process that
    runs them is killed, `CaptureRefused` if it ends without a report otherwise.
    """
    order_path, report_path = os.path.join(folder, "order.json"), os.path.join(folder, "report.json")
    with open(order_path, "wb") as file:
        file.write(msgspec.json.encode(order))
    here = [path for path in sys.path if path and os.path.isabs(path)]
    code = _START + "sys.exit(inside.main(sys.argv[2], sys.argv[3]))"
    argv = [sys.executable, "-I", "-S", "-c", code, msgspec.json.encode(here).decode(), order_path, report_path]
    last: deque[bytes] = deque(maxlen=_LINES_KEPT)
    process = subprocess.Popen(
        argv,
        cwd="/",
        env={**environment, MARK: folder},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        _pass_on(process.stdout.fileno(), last, on_output, lambda: process.poll() is not None)
        process.wait()
    finally:
        if process.poll() is None:
            _stop(process)
        if process.returncode < 0:
            _end_marked(folder)
        if process.stdout is not None:
            process.stdout.close()
    return _report(report_path, process.returncode, last), [_plain(line) for line in last]


class Heard:
    """An `on_output` that is also asked while nothing is written: what `check` raises ends the commands."""

    def __init__(self, on_line: Callable[[bytes], None], check: Callable[[], None]) -> None:
        self._on_line = on_line
        self.check = check

    def __call__(self, line: bytes) -> None:
        """Take a line of the output."""
        self._on_line(line)


def _nothing() -> None:
    pass


def _pass_on(
    descriptor: int, last: deque[bytes], on_output: Callable[[bytes], None], is_over: Callable[[], bool]
) -> None:
    """Give what is written line by line, until the end. What `on_output` raises ends the commands.

    `is_over`: whether the process that runs them has ended; those that it left may have the descriptor for long.
    """
    check = on_output.check if isinstance(on_output, Heard) else _nothing
    rest = b""
    while True:
        if not select.select([descriptor], [], [], _TICK_S)[0]:
            check()
            if is_over():
                return
            continue
        data = os.read(descriptor, _LINE_BYTES)
        *lines, rest = (rest + data).splitlines(keepends=True) or [b""]
        if rest.endswith(b"\n") or len(rest) >= _LINE_BYTES or not data:
            lines, rest = [*lines, rest], b""
        for line in filter(None, lines):
            last.append(line)
            on_output(line)
        if not data:
            return


def _end_marked(folder: str) -> None:
    """Kill what was started by the commands of a folder, which no other process does where they were not enclosed."""
    mark = f"{MARK}={folder}".encode()
    for _ in range(_LOOKS):  # one that is killed may be long in leaving the kernel
        found = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _has_mark(pid, mark)]
        if not found:
            return
        for pid in found:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _has_mark(pid: int, mark: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # nothing is read of one that has ended
            return mark in file.read(4 << 20).split(b"\0")
    except OSError:
        return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Have it end all that it runs, and itself."""
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _report(path: str, code: int, last: deque[bytes]) -> CaptureReport:
    try:
        with open(path, "rb") as file:
            found = msgspec.json.decode(file.read(_REPORT_BYTES), type=CaptureReport)
    except (OSError, msgspec.MsgspecError) as error:
        line = f": {blanked(_plain(last[-1]))[:500]}" if last else ""
        what = "the process that runs the set-up commands"
        if code < 0:
            raise SnapshotError(f"{what} was killed by signal {-code}: see dmesg (out of memory?){line}") from error
        raise CaptureRefused(f"{what} ended with {code} and no report{line}") from error
    if found.killed:
        raise SnapshotError(found.killed)
    return found


def check_codes(order: CaptureOrder, report: CaptureReport, last: list[str]) -> None:
    """Raise `SetupFailed` if a command failed, with the last line that says something."""
    for command, code in zip(order.commands, report.codes, strict=False):
        if code != 0:
            said = next((line for line in reversed(last) if line.strip()), "it wrote nothing")
            how = f"ended with {code}" if code > 0 else f"was killed by signal {-code}"
            raise SetupFailed(f"set-up command {blanked(command)[:200]!r} {how}: {blanked(said)[:500]}")


def _plain(line: bytes) -> str:
    text = line.decode("utf-8", "replace").rstrip()
    return "".join(character for character in text if character.isprintable())
