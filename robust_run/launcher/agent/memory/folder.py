"""The agent's side of --ckpt-memory-dir: a folder whose files are in memory (`robust_run.ckpt_io.memory_dir`).

It is there before the first workers, and outlives them and their attempts. If its process dies, another takes its place, and
shows what was in storage by then. Imported where a job has such a folder.
"""

from __future__ import annotations

import os
import select
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

import msgspec

from robust_run.ckpt_io.memory.budget import gib
from robust_run.ckpt_io.memory_dir import mounting
from robust_run.ckpt_io.memory_dir.types import DirNote, FinishWithin, FromDir, MemoryDirOptions, Progress, Written
from robust_run.decoders import json_decoder
from robust_run.errors import RobustRunError
from robust_run.launcher.model.job import JobSpec
from robust_run.launcher.records.run_directory import RunDirectory

#: A job that was told to end has others waiting: its files are written for so long.
STOPPED_LIMIT_S = 20.0
#: So often another process takes the place of one that died.
MOST_STARTS = 5
#: A process that says nothing for so long when it is to finish is given up: it says how far it is every 2 s.
SILENT_S = 90.0
_NOT_ITS_BUSINESS = frozenset(("ROBUST_TOKEN", "ROBUST_NOTIFY"))
_MOST_NAMED = 3


def options_of(spec: JobSpec) -> MemoryDirOptions:
    """Return what the folder's process is told."""
    assert spec.ckpt_memory_dir is not None
    return MemoryDirOptions(
        point=os.path.realpath(spec.ckpt_memory_dir),
        storage=spec.ckpt_dir or "",
        limit_bytes=spec.ckpt_memory_bytes,
    )


def opened_for(spec: JobSpec, env: Mapping[str, str], run: RunDirectory, say: Callable[[str], None]) -> MemoryDir:
    """Return the folder of a job of one node. Raises RobustRunError; then nothing was started, and nothing is left of the run."""
    made = MemoryDir(options_of(spec), env, say)
    try:
        made.open()
    except RobustRunError:
        run.remove_unused()
        raise
    return made


def take_away(path: str) -> None:
    """Take away the mount of a folder whose process was killed, if there is one. Never raises."""
    folder, name = os.path.split(path)  # the mount itself cannot be looked at
    mounting.take_away(os.path.join(os.path.realpath(folder), name))


class MemoryDir:
    """One node's."""

    def __init__(self, options: MemoryDirOptions, env: Mapping[str, str], say: Callable[[str], None]) -> None:
        self._options, self._say = options, say
        self._env = {name: value for name, value in env.items() if name not in _NOT_ITS_BUSINESS}
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closing = False
        self._heard = threading.Condition()
        self._heard_at_s = 0.0
        self._written: Written | None = None
        self._starts = 0

    def open(self) -> None:
        """Mount it. Raises UserError, PlatformError."""
        mounting.check(self._options, self._say)
        self._start()
        if not self._options.storage:
            self._say(
                f"what is saved in {self._options.point} ends with this job; --ckpt-dir FOLDER has it written there"
            )

    def pids(self) -> list[int]:
        """Return its process, which outlives attempts."""
        return [self._process.pid] if self._process is not None else []

    def _start(self) -> None:
        self._starts += 1
        process = mounting.start(self._options, self._env)
        self._process = process
        threading.Thread(target=self._listen, args=(process,), name="memory-dir", daemon=True).start()

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        """Hear what the process says, to its end; then see to another."""
        assert process.stdout is not None
        with suppress(OSError, ValueError, msgspec.MsgspecError), process.stdout:
            for line in process.stdout:
                self._take(json_decoder(FromDir).decode(line))
        with self._heard:
            self._heard_at_s = float("-inf")
            self._heard.notify_all()
            if self._is_closing or process is not self._process:
                return
            self._process = None
        self._replace(process)

    def _take(self, message: FromDir) -> None:
        with self._heard:
            self._heard_at_s = time.monotonic()
            if isinstance(message, Written):
                self._written = message
            self._heard.notify_all()
        if isinstance(message, DirNote):
            self._say(message.text if message.text.isprintable() else repr(message.text))
        elif isinstance(message, Progress):
            of = f"{gib(message.done_bytes)} of {gib(message.all_bytes)}"
            self._say(f"writing what is in memory to {self._options.storage}: {of}")

    def _replace(self, dead: subprocess.Popen[bytes]) -> None:
        point, storage = self._options.point, self._options.storage
        mounting.stop(dead, point)
        lost = f"what was not in {storage} yet is lost" if storage else "what was saved there is lost"
        self._say(f"{point}: its process {dead.pid} has ended, and {lost}")
        if self._starts >= MOST_STARTS:
            self._say(f"{point}: its process has ended {self._starts} times, so it stays away: saves there fail")
            return
        try:
            self._start()
        except RobustRunError as error:
            self._say(f"{error}: saves to {point} fail")
            return
        with self._heard:
            is_late, late = self._is_closing, self._process
        if is_late and late is not None:  # closed meanwhile, which could not end what was about to be started
            mounting.stop(late, point)

    def finish(self, limit_s: float | None, is_hurried: Callable[[], bool]) -> None:
        """Have storage get what it has not, now that no worker runs, and say what it got.

        `is_hurried`: whether the job is told to end meanwhile; then it may take as long as one that was told so before.
        """
        process = self._process
        if process is None or not self._options.storage or process.stdin is None:
            return
        began_s = self._heard_at_s = time.monotonic()
        try:
            process.stdin.write(msgspec.json.encode(FinishWithin(limit_s=limit_s)) + b"\n")
            process.stdin.flush()
        except OSError:
            return
        with self._heard:
            until_s = float("inf")
            while self._written is None and time.monotonic() < min(until_s, self._heard_at_s + SILENT_S):
                self._heard.wait(0.2)
                if limit_s is None and until_s == float("inf") and is_hurried():
                    until_s = time.monotonic() + STOPPED_LIMIT_S
        if self._written is None:
            self._say(f"not all that is in memory could be written to {self._options.storage}: the rest is lost")
        else:
            for line in words(self._written, self._options.storage, time.monotonic() - began_s):
                self._say(line)

    def close(self) -> None:
        """Unmount, and let go of what is in memory."""
        with self._heard:
            self._is_closing = True
            process, self._process = self._process, None
        if process is not None:
            mounting.stop(process, self._options.point)


def words(written: Written, storage: str, took_s: float) -> list[str]:
    """Say for people what was written at the end of a job; nothing if nothing was left to write. Pure."""
    lines = []
    if written.files:
        were = f"{'were' if written.files > 1 else 'was'} written from memory to {storage} in {took_s:.1f} s"
        lines.append(f"{_files(written.files)}, {gib(written.bytes)}, {were}")
    if written.lost_files:
        some = ", ".join(written.lost[-_MOST_NAMED:])
        more = ", ..." if written.lost_files > _MOST_NAMED else ""
        lines.append(
            f"{_files(written.lost_files)} could not be written to {storage} ({written.why}), lost: {some}{more}"
        )
    return lines


def _files(count: int) -> str:
    return f"{count} files" if count != 1 else "1 file"


def is_told_more(lifeline: int) -> bool:
    """Whether the guard has a signal to pass on, or is gone."""
    poll = select.poll()
    poll.register(lifeline, select.POLLIN)
    return bool(poll.poll(0))
