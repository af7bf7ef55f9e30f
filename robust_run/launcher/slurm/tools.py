"""Slurm's commands, as a part of the world that tests replace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

MOST_OUTPUT_BYTES = 4 << 20
"""More than any command that we use says; the rest is not read."""


class Ran(msgspec.Struct, frozen=True):
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

    def run(self, argv: Sequence[str], env: Mapping[str, str], timeout_s: float) -> Ran:
        """Run a command to its end; one that takes longer is killed and has code 124, one that cannot be started 127."""


class SystemTools:
    """Those of this machine."""

    def find(self, name: str) -> str | None:
        """Return where a command is."""
        import shutil

        return shutil.which(name)

    def run(self, argv: Sequence[str], env: Mapping[str, str], timeout_s: float) -> Ran:
        """Run a command without input."""
        import subprocess

        from robust_run.launcher.slurm.scontrol import end_group

        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen(
                list(argv), env=dict(env), stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True
            )
        except OSError as error:
            return Ran(127, "", f"{argv[0]}: {error.strerror}")
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            end_group(process)
            return Ran(124, "", f"{argv[0]}: no answer within {timeout_s:g} s")
        except BaseException:  # Ctrl-C reaches us alone: it has a session of its own
            end_group(process)
            raise
        return Ran(process.returncode, _text(out), _text(err))


def _text(output: bytes) -> str:
    return output[:MOST_OUTPUT_BYTES].decode(errors="replace")
