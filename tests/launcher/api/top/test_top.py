"""`robust top` and the colours of `robust status`, as a user types them: piped, and on a real terminal with keys."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from robust_run.launcher.model.events import SignalReceived

MAIN = "from robust_run.robust_cli import main; main()"


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, descriptor: int, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.shown = b""
        self._descriptor = descriptor

    def press(self, keys: bytes) -> None:
        os.write(self._descriptor, keys)

    def wait_for(self, text: bytes) -> None:
        """Wait until something was drawn after the last time."""
        seen = self._read_until(lambda data: text in data)
        assert text in seen, seen[-2000:]

    def wait_for_end(self) -> int:
        """Return the exit code, once all that was drawn has been read."""
        self._read_until(lambda _: False)
        return self.process.wait(60)

    def _read_until(self, is_there: Callable[[bytes], bool]) -> bytes:
        seen, give_up_at_s = b"", time.monotonic() + 60
        poller = select.poll()
        poller.register(self._descriptor, select.POLLIN)
        while not is_there(seen) and time.monotonic() < give_up_at_s:
            if not poller.poll(100):
                continue
            try:
                data = os.read(self._descriptor, 65536)
            except OSError:  # the other end is closed
                break
            seen += data
        self.shown += seen
        return seen


@contextmanager
def on_terminal(cwd: Path, *words: str, env: dict[str, str] | None = None) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    settings = {**os.environ, "TERM": "xterm-256color", **(env or {})}
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        if name not in (env or {}):
            settings.pop(name, None)
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, *words], cwd=cwd, stdin=theirs, stdout=theirs, stderr=theirs, env=settings
    )
    os.close(theirs)
    try:
        yield Terminal(ours, process)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_keys_scroll_show_incidents_and_quit(serve: Callable[..., Any], tmp_path: Path) -> None:
    served = serve()
    served.on_loop(lambda: served.controller.lose(3))
    with on_terminal(tmp_path, "top") as terminal:
        terminal.wait_for(b"waiting for nodes")
        terminal.press(b"i")
        terminal.wait_for(b"node_lost")
        terminal.press(b"?")
        terminal.wait_for(b"page up/down")
        terminal.press(b"n\x1b[B\x1b[6~")
        terminal.wait_for(b"Nodes")
        terminal.press(b"q")
        assert terminal.wait_for_end() == 0
    assert b"\x1b[?1049h" in terminal.shown, "on a screen of its own"
    assert b"\x1b[?1049l" in terminal.shown, "which is gone afterwards"


def test_it_goes_on_when_the_job_is_over(serve: Callable[..., Any], tmp_path: Path) -> None:
    served = serve()
    with on_terminal(tmp_path, "top") as terminal:
        terminal.wait_for(b"running: attempt 0")
        served.on_loop(lambda: served.controller.tell(SignalReceived(signal=15, by="ann")))
        served.on_loop(served.controller.end_attempt)
        served.end()
        terminal.wait_for(b"stopped with exit code 143")
        terminal.press(b"q")
        assert terminal.wait_for_end() == 0


def test_piped_it_prints_one_plain_screen_and_ends(serve: Callable[..., Any], robust: Callable[..., Any]) -> None:
    serve()
    done = robust("top")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("running: attempt 0 on 4 nodes (32 ranks)")
    assert "gpu-4" in done.stdout
    assert "\x1b" not in done.stdout
    narrow = robust("top", env={"COLUMNS": "60"})
    assert max(map(len, narrow.stdout.splitlines())) <= 60


def test_a_dead_job_is_shown_too(make_controller: Callable[..., Any], robust: Callable[..., Any]) -> None:
    make_controller().start().lose(2)
    done = robust("top")
    assert "last known: waiting for nodes" in " ".join(done.stdout.split())
    assert json.loads(robust("top", "--json").stdout)["nodes_total"] == 4


@pytest.mark.parametrize(
    ("env", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False), ({"NO_COLOR": ""}, True)]
)
def test_status_has_colours_on_a_terminal_that_wants_them(
    serve: Callable[..., Any], tmp_path: Path, env: dict[str, str], coloured: bool
) -> None:
    serve()
    with on_terminal(tmp_path, "status", env=env) as terminal:
        assert terminal.wait_for_end() == 0
    assert b"running: attempt 0" in terminal.shown
    assert (b"\x1b[" in terminal.shown) == coloured


def test_status_has_none_in_a_pipe(serve: Callable[..., Any], robust: Callable[..., Any]) -> None:
    serve()
    assert "\x1b" not in robust("status", env={"TERM": "xterm-256color", "FORCE_COLOR": "1"}).stdout
