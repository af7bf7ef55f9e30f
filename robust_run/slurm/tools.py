"""Slurm's commands, as a part of the world that tests replace."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

MOST_OUTPUT_BYTES = 4 << 20
"""More than any command that we use says; the rest is not read."""

END_S = 5.0
"""What a command may take to end when it is asked to."""


class CommandResult(msgspec.Struct, frozen=True):
    """How a command ended, and what it said."""

    code: int
    out: str = ""
    err: str = ""

    @property
    def sentence(self) -> str:
        """What it complained of, in one printable line."""
        text = " ".join((self.err or self.out).split())
        return "".join(each if each.isprintable() else "?" for each in text)[:500]


class Tools(Protocol):
    """Finds and runs commands."""

    def find(self, name: str) -> str | None:
        """Return where a command is; None if it is not in PATH."""

    def run(self, argv: Sequence[str], env: Mapping[str, str], timeout_s: float) -> CommandResult:
        """Run a command to its end; one that takes longer is killed and has code 124, one that cannot be started 127."""


class SystemTools:
    """Those of this machine."""

    def find(self, name: str) -> str | None:
        """Return where a command is."""
        import shutil

        return shutil.which(name)

    def run(self, argv: Sequence[str], env: Mapping[str, str], timeout_s: float) -> CommandResult:
        """Run a command without input."""
        pipe = subprocess.PIPE
        # What ends this process between the start of another one and the care for it would leave that behind.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
        try:
            process = subprocess.Popen(
                list(argv),
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=pipe,
                stderr=pipe,
                start_new_session=True,
                preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, mask),  # noqa: PLW1509 - a command of one thread
            )
        except OSError as error:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            return CommandResult(127, "", f"{argv[0]}: {error.strerror}")
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            out = _end(process)  # some of the nodes of a step may have answered
            return CommandResult(124, _text(out), f"{argv[0]}: no answer within {timeout_s:g} s")
        except BaseException:  # Ctrl-C reaches us alone: it has a session of its own
            _end(process)
            raise
        return CommandResult(process.returncode, _text(out), _text(err))


def _end(process: subprocess.Popen[bytes]) -> bytes:
    """End a command with all it has started; an srun that is asked to end takes its job out of the queue before.

    Return what it had said.
    """
    from contextlib import suppress

    from robust_run.launcher.agent.workers.process_tree import end_group

    with suppress(OSError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        out, _ = process.communicate(timeout=END_S)
    except subprocess.TimeoutExpired as late:
        out = late.stdout or b""
    finally:
        end_group(process)
    return out


def _text(output: bytes) -> str:
    return output[:MOST_OUTPUT_BYTES].decode(errors="replace")
