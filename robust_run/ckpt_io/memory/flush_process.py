"""The keeper's end of a process that writes a generation to storage (`robust_run.checkpoint.flush`)."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from robust_run.ckpt_io.memory.flush_words import AnyOrder, FlushAnswer, FlushDone

#: How long one that is told to end may take to remove what it has written.
ENDS_WITHIN_S = 5.0
_LOOK_S = 1.0
_BOOT = "import sys; del sys.path[0]; from robust_run.checkpoint.flush.process import main; main(int(sys.argv[1]))"
_decoder: msgspec.json.Decoder[FlushAnswer] = msgspec.json.Decoder(FlushAnswer)


class FlushProcess:
    """One. Started and told to end by the keeper's thread, waited for by another."""

    def __init__(self, order: AnyOrder, descriptors: Sequence[int], until_s: float | None) -> None:
        """`until_s`: on the monotonic clock, when it is ended. Raises OSError: it cannot be started."""
        self.until_s = until_s
        command = (sys.executable, "-c", _BOOT, str(os.getpid()))
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=tuple(descriptors), close_fds=True
        )
        self.pid = self._process.pid
        self._came = b""
        self._told_to_end_s: float | None = None
        assert self._process.stdin is not None
        with suppress(OSError), self._process.stdin as pipe:  # one that died at once says so by its end
            pipe.write(msgspec.json.encode(order) + b"\n")

    def stop(self) -> None:
        """Have it end."""
        with suppress(OSError):
            self._process.terminate()
        if self._told_to_end_s is None:
            self._told_to_end_s = time.monotonic()

    def next(self) -> FlushAnswer:
        """Wait for what it says next; after `FlushDone`, which every process comes to, it has ended."""
        while True:
            line, newline, rest = self._came.partition(b"\n")
            if newline:
                self._came = rest
                return self._said(line)
            if not self._read():
                return self._ended("ended without a word")

    def _said(self, line: bytes) -> FlushAnswer:
        try:
            said = _decoder.decode(line)
        except msgspec.MsgspecError:
            return self._ended("says what is not understood")
        if isinstance(said, FlushDone):
            self._wait()
        return said

    def _read(self) -> bool:
        """Read what there is; false: nothing comes any more. One that is late is told to end, and then killed."""
        assert self._process.stdout is not None
        now_s = time.monotonic()
        if self.until_s is not None and now_s > self.until_s and self._told_to_end_s is None:
            self.stop()
        if self._told_to_end_s is not None and now_s > self._told_to_end_s + ENDS_WITHIN_S:
            self._process.kill()
        if select.select([self._process.stdout], [], [], _LOOK_S)[0]:
            content = os.read(self._process.stdout.fileno(), 1 << 16)
            self._came += content
            return bool(content)
        return True

    def _ended(self, what: str) -> FlushDone:
        self._process.kill()
        code = self._wait()
        how = f"was killed by signal {-code}" if code < 0 else what
        return FlushDone(text=f"the process that writes a step from memory to storage {how}", is_left=True)

    def _wait(self) -> int:
        assert self._process.stdout is not None
        self._process.stdout.close()
        return self._process.wait()
