"""The keeper's end of a process that writes a generation to storage, or removes older ones (`robust_run.checkpoint.flush`)."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from robust_run.ckpt_io.memory.flushing.words import AnyOrder, FlushAnswer, FlushDone, FlushOrder, FlushSilent
from robust_run.own_process import boot

#: How long one that was killed may take to be gone: one that waits for a storage that hangs cannot be.
KILLED_WITHIN_S = 2.0


class FlushLimits(NamedTuple):
    """How long a process may take for what."""

    ends_within_s: float = 5.0
    """One that is told to end, to remove what it has written."""
    silent_s: float = 120.0
    """Nothing is written: then people hear of it."""
    stall_s: float = 900.0
    """Nothing is written: then it is ended. A disk may take minutes to have what it was given."""


_LOOK_S = 1.0
_BOOT = boot("robust_run.checkpoint.flush.process", "main(int(sys.argv[1]))")
_decoder: msgspec.json.Decoder[FlushAnswer] = msgspec.json.Decoder(FlushAnswer)


class FlushProcess:
    """One. Started and told to end by the keeper's thread, waited for by another."""

    def __init__(
        self,
        order: AnyOrder,
        descriptors: Sequence[int],
        until_s: float | None,
        limits: FlushLimits = FlushLimits(),  # noqa: B008 - it cannot be changed
    ) -> None:
        """`until_s`: on the monotonic clock, when it is ended. Raises OSError: it cannot be started."""
        self.until_s = until_s
        self._limits = limits
        does = "writes a step from memory to storage" if isinstance(order, FlushOrder) else "removes older checkpoints"
        self._name = f"the process that {does}"
        command = (sys.executable, "-c", _BOOT, str(os.getpid()))
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=tuple(descriptors), close_fds=True
        )
        self.pid = self._process.pid
        self._came = b""
        self._told_to_end_s: float | None = None
        self._killed_s: float | None = None
        self._heard_s, self._is_silence_told = time.monotonic(), False
        self._is_given_up = False
        """It stood still."""
        assert self._process.stdin is not None
        with suppress(OSError), self._process.stdin as pipe:  # one that died at once says so by its end
            pipe.write(msgspec.json.encode(order) + b"\n")

    def stop(self) -> None:
        """Have it end."""
        with suppress(OSError):
            self._process.terminate()
        if self._told_to_end_s is None:
            self._told_to_end_s = time.monotonic()

    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def next(self) -> FlushAnswer | FlushSilent:
        """Wait for what it says next; after `FlushDone`, which every process comes to, it has ended, or nobody can end it."""
        while True:
            line, newline, rest = self._came.partition(b"\n")
            if newline:
                self._came = rest
                return self._said(line)
            now_s = time.monotonic()
            if self._is_past_killing(now_s):
                assert self._process.stdout is not None
                self._process.stdout.close()
                return FlushDone(text=f"{self._name} cannot be ended: storage hangs", is_left=True)
            silent_s = now_s - self._heard_s
            if silent_s > self._limits.silent_s and not self._is_silence_told:
                self._is_silence_told = True
                return FlushSilent(silent_s=silent_s)
            if not self._read():
                return self._ended("ended without a word")

    def _said(self, line: bytes) -> FlushAnswer:
        self._heard_s, self._is_silence_told = time.monotonic(), False
        try:
            said = _decoder.decode(line)
        except msgspec.MsgspecError:
            return self._ended("sent a message that cannot be read")
        if isinstance(said, FlushDone):
            self._wait()
            if self._is_given_up and not said.is_stored:
                return msgspec.structs.replace(said, text=self._gave_up())
        return said

    def _is_past_killing(self, now_s: float) -> bool:
        """Tell one that is late to end, and kill it if it does not; whether it is there all the same: in a call that hangs."""
        is_late = self.until_s is not None and now_s > self.until_s
        if self._told_to_end_s is None and (is_late or now_s - self._heard_s > self._limits.stall_s):
            self._is_given_up = not is_late
            self.stop()
        if self._told_to_end_s is None or now_s <= self._told_to_end_s + self._limits.ends_within_s:
            return False
        if self._killed_s is None:
            self._killed_s = now_s
            self._process.kill()
        return now_s > self._killed_s + KILLED_WITHIN_S

    def _read(self) -> bool:
        """Read what there is; false: nothing comes any more."""
        assert self._process.stdout is not None
        if select.select([self._process.stdout], [], [], _LOOK_S)[0]:
            content = os.read(self._process.stdout.fileno(), 1 << 16)
            self._came += content
            return bool(content)
        return True

    def _ended(self, what: str) -> FlushDone:
        self._process.kill()
        code = self._wait()
        if self._is_given_up:
            return FlushDone(text=self._gave_up(), is_left=True)
        how = f"was killed by signal {-code}" if code < 0 else what
        return FlushDone(text=f"{self._name} {how}", is_left=True)

    def _gave_up(self) -> str:
        return f"{self._name} stood still for {self._limits.stall_s:.0f} s and was ended"

    def _wait(self) -> int:
        assert self._process.stdout is not None
        self._process.stdout.close()
        return self._process.wait()
