"""Keeping a server alive: a thread that starts it, asks now and then whether it lives, replaces it, and at last gives it up."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import IO, Literal

import msgspec

import robust_run
from robust_run.decoders import json_decoder
from robust_run.prefetch.errors import ControlFailed, ServerFailed
from robust_run.prefetch.rules.guard import restart_after_s
from robust_run.prefetch.rules.types import Status
from robust_run.prefetch.server import control, mounting
from robust_run.prefetch.server.config import Lost, Noted, ServerConfig, ServerReady

State = Literal["serving", "restarting", "left", "failed"]
#: For starting Python, on top of what the image may take. Long: a server that says too late that it serves is never heard.
_START_S = 60.0
_LARGEST_READY_BYTES = 64 << 10


class Keeper:
    """Holds one image's server, over all its incarnations."""

    def __init__(
        self,
        config: ServerConfig,
        log_path: str,
        control_name: int,
        let_go: Callable[[], None],
        on_problem: Callable[[str], None],
        on_lost: Callable[[str], None],
        on_note: Callable[[str], None],
    ) -> None:
        """`log_path`: for what it writes to standard error; `control_name`: see `control.hold`.

        `let_go` closes what the keeper holds, once. See `handle.start`.
        """
        self._config, self._log_path, self._let_go = config, log_path, let_go
        self._control_name = control_name
        self._on_problem, self._on_lost, self._on_note = on_problem, on_lost, on_note
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._deaths_s: list[float] = []
        self._stopping = threading.Event()
        self._over = threading.Event()
        self._control_path = log_path.removesuffix(".log")
        self.state: State = "serving"
        self.reason = ""
        self.restarts = 0

    def start(self) -> None:
        """Start the first server, and the thread that keeps it, once it can serve. Raises `ServerFailed`."""
        try:
            process = self._spawn()
            reason = self._reason_not_ready(process, self._config.options.start_limit_s + _START_S)
        except OSError as error:
            self._end("failed")
            raise ServerFailed(f"{self._config.image_url}: the block server cannot be started: {error}") from error
        except BaseException:
            self._end("failed")
            raise
        if reason:
            _kill(process)
            said = self._last_words()
            self._end("failed")
            raise ServerFailed(
                f"{self._config.image_url}: the block server {reason}{said}" if reason == _SILENT else reason
            )
        threading.Thread(target=self._keep, daemon=True).start()

    def stop(self, limit_s: float) -> None:
        """Take the mount away, which ends the server, and let go of everything. Never raises."""
        self._stopping.set()
        if not mounting.abort(self._config.mount_folder, self._config.mounted) and not self._over.is_set():
            with contextlib.suppress(ControlFailed):  # the server is in the mount's namespace, if we are not
                self._ask(control.AskStop(), control.Done, min(limit_s, 2.0))
        if not self._over.wait(limit_s) and self._process is not None:
            self._process.kill()  # no more: the thread that keeps it may be reading what it says
            self._over.wait(limit_s)

    def _spawn(self) -> subprocess.Popen[bytes]:
        config = self._config
        descriptors = (config.device, config.shared, config.control, config.peer_socket)
        root = os.path.dirname(os.path.dirname(os.path.abspath(robust_run.__file__)))
        paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        folder_is_there = os.path.isdir(os.path.dirname(self._log_path))
        with open(self._log_path if folder_is_there else os.devnull, "ab", opener=_open_log) as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "robust_run.prefetch.server"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                pass_fds=tuple(each for each in descriptors if each >= 0),
                cwd="/",
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                start_new_session=True,
            )
        self._process = process
        try:
            stdin = _open(process.stdin)
            stdin.write(msgspec.json.encode(config) + b"\n")
            stdin.flush()
        except BrokenPipeError:
            pass  # it died: that shows in a moment
        return process

    def _keep(self) -> None:
        while True:
            process = self._process
            assert process is not None
            code = self._wait(process)
            _close_pipes(process)
            if code == 0 or self._stopping.is_set():
                self._end("left")
                return
            now_s = time.monotonic()
            self._deaths_s = [*self._deaths_s[-16:], now_s]
            delay_s = restart_after_s(self._deaths_s, now_s)
            died = f"the block server of {self._config.image_url} {_how(code)}{self._last_words()}"
            if delay_s is None:
                self._give_up(f"{died}; it was given up after {len(self._deaths_s)} deaths, reads of the image fail")
                return
            self.state, self.reason = "restarting", died
            self._on_problem(f"{died}; a new one takes over")
            if self._stopping.wait(delay_s):
                self._end("left")
                return
            try:
                process = self._spawn()
                self.restarts += 1
                if not self._reason_not_ready(process, _START_S):
                    self.state = "serving"
            except OSError as error:
                self._give_up(f"{died}; it cannot be started again: {error}; reads of the image fail")
                return

    def _reason_not_ready(self, process: subprocess.Popen[bytes], limit_s: float) -> str:
        """Wait for a server to say that it serves, and listen to it from then on. Return "" then, and else why not."""
        reason, rest = _first_line(process, limit_s)
        if not reason:
            listening = os.dup(_open(process.stdout).fileno())  # its own: the pipe is closed by who waits for the end
            threading.Thread(target=self._listen, args=(listening, rest), daemon=True).start()
        return reason

    def _listen(self, descriptor: int, rest: bytes) -> None:
        """Pass on what it says, until the server ends."""
        with open(descriptor, "rb", buffering=0) as pipe:
            while True:
                *lines, rest = rest.split(b"\n")
                for line in lines:
                    with contextlib.suppress(msgspec.MsgspecError):
                        self._pass_on(json_decoder(Lost | Noted).decode(line))
                data = pipe.read(4096)
                if not data:
                    return
                rest = rest[-_LARGEST_READY_BYTES:] + data

    def _pass_on(self, said: Lost | Noted) -> None:
        if isinstance(said, Noted):
            self._on_note(said.sentence)
        else:
            (self._on_problem if said.they_wait else self._on_lost)(said.sentence)

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for its end and return the exit code. One that does not answer is killed."""
        while True:
            try:
                return process.wait(self._config.options.alive_every_s)
            except subprocess.TimeoutExpired:
                pass
            try:
                self._ask(control.AskStatus(), Status, self._config.options.alive_limit_s)
            except ControlFailed:
                if process.poll() is None and not self._stopping.is_set():
                    process.kill()

    def _ask(self, request: control.Request, kind: type[control._Reply], limit_s: float) -> None:
        """Ask it by the socket and not by its name: that is gone where the cache was cleared away, and the server is well."""
        control.ask(self._control_path, request, kind, limit_s, held=self._control_name)

    def _give_up(self, reason: str) -> None:
        self.reason = reason
        mounting.abort(self._config.mount_folder, self._config.mounted)
        self._end("failed")
        self._on_problem(reason)

    def _end(self, state: State) -> None:
        """Let go of everything: with the last descriptor of the device the kernel fails all reads that wait."""
        self.state = state
        if self._process is not None:
            _kill(self._process)
        mounting.abort(self._config.mount_folder, self._config.mounted)
        with self._lock:
            let_go, self._let_go = self._let_go, lambda: None
        let_go()
        self._over.set()

    def _last_words(self) -> str:
        """Return the last line of its log, as a clause."""
        try:
            with open(self._log_path, "rb") as file:
                file.seek(max(0, file.seek(0, 2) - 2048))
                lines = file.read().decode("utf-8", "replace").split("\n")
        except OSError:
            return ""
        said = [line.strip() for line in lines if line.strip()]
        return f": {said[-1][:300]}" if said else ""


_SILENT = "did not say within its time that it can serve"


def _first_line(process: subprocess.Popen[bytes], limit_s: float) -> tuple[str, bytes]:
    """Wait for what a server says first. Return why it cannot serve, "" where it can, and what it has said since."""
    stdout = _open(process.stdout)
    poll = select.poll()
    poll.register(stdout, select.POLLIN)
    deadline_s = time.monotonic() + limit_s
    line = b""
    while b"\n" not in line and len(line) < _LARGEST_READY_BYTES:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0 or not poll.poll(left_s * 1e3):
            return _SILENT, b""
        data = os.read(stdout.fileno(), 4096)
        if not data:
            return _SILENT, b""
        line += data
    line, _end, rest = line.partition(b"\n")
    try:
        return json_decoder(ServerReady).decode(line).reason, rest
    except msgspec.MsgspecError:
        return _SILENT, b""


def _how(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()
    _close_pipes(process)


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:
                continue  # what was not written is of no use any more


def _open(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def _open_log(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
