"""Processes whose system calls the kernel does not show us: it is said why, and nothing else follows."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tracer.sight.unseen import UNDUMPABLE, unprivileged

from robust_run.tracer.sight.wake.access import why_hidden
from robust_run.tracer.sight.wake.reading import read

Text = Callable[[str], str]


def proc(files: dict[str, str | type[OSError]]) -> Text:
    """A /proc of which each file has a text or an error."""

    def text(path: str) -> str:
        found = files.get(path.removeprefix("/proc/"), FileNotFoundError)
        if isinstance(found, str):
            return found
        raise found

    return text


STATUS = "Name:\tpython\nUid:\t1000\t1000\t1000\t1000\n"
STORIES: dict[str, tuple[dict[str, str | type[OSError]], bool, str]] = {
    "it is ours to see": ({"7/syscall": "230 0x0"}, True, ""),
    "it is gone": ({}, False, ""),
    "hidepid": ({}, True, "/proc is mounted with hidepid"),
    "no such file in this kernel": ({"7/stat": "7 (python) S"}, True, "this kernel does not tell"),
    "undumpable": (
        {"7/syscall": PermissionError, "7/status": STATUS, "7/io": PermissionError},
        True,
        "is undumpable",
    ),
    "of another user": (
        {"7/syscall": PermissionError, "7/status": STATUS.replace("1000", "0"), "7/io": PermissionError},
        True,
        "it runs as user 0, robust-run as user 1000",
    ),
    "yama": (
        {"7/syscall": PermissionError, "7/status": STATUS, "7/io": "rchar: 1", "sys/kernel/yama/ptrace_scope": "2\n"},
        True,
        "kernel.yama.ptrace_scope is 2",
    ),
    "yama, not below us": (
        {"7/syscall": PermissionError, "7/status": STATUS, "7/io": "rchar: 1", "sys/kernel/yama/ptrace_scope": "1\n"},
        True,
        "kernel.yama.ptrace_scope is 1",
    ),
    "something else": (
        {"7/syscall": PermissionError, "7/status": STATUS, "7/io": "rchar: 1", "sys/kernel/yama/ptrace_scope": "0\n"},
        True,
        "to trace is not allowed here",
    ),
    "nothing can be read": ({"7/syscall": PermissionError}, True, "to trace is not allowed here"),
    "garbage": ({"7/syscall": PermissionError, "7/status": "Uid:\n\0\xff"}, True, "to trace is not allowed here"),
}


@pytest.mark.parametrize("story", STORIES)
def test_what_hides_a_process_is_named(story: str) -> None:
    files, lives, wanted = STORIES[story]
    found = why_hidden(7, text=proc(files), lives=lambda _: lives, user=lambda: 1000)
    assert wanted in found and bool(wanted) == bool(found)


def test_this_process_is_not_hidden_from_itself() -> None:
    assert why_hidden(os.getpid()) == ""


def test_a_program_that_made_itself_undumpable_is_hidden_from_whoever_may_not_trace(tmp_path: Path) -> None:
    asks = f"""
import subprocess, sys
from robust_run.tracer.sight.wake.access import why_hidden
from robust_run.tracer.sight.wake.reading import read
child = subprocess.Popen([sys.executable, "-c", {UNDUMPABLE + "import sys; print(flush=True); sys.stdin.read()"!r}],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print(why_hidden(child.pid))
reading = read(child.pid)
while reading.processes[0].threads[0].state == "R":
    reading = read(child.pid)
print(reading.unread, [thread.call for one in reading.processes for thread in one.threads])
child.communicate()
"""
    prefix = unprivileged()
    done = subprocess.run(
        [*prefix, sys.executable, "-c", asks], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    why, reading = done.stdout.splitlines()
    assert "undumpable" in why
    assert "not ours to read" in reading and "[None]" in reading
    assert read(os.getpid()).pid == os.getpid()
