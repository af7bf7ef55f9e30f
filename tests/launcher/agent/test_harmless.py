"""What a job can do without is switched off by its first fault, which is said once and on one line."""

from __future__ import annotations

import asyncio
import errno
import os
import re

import pytest

from robust_run.harmless import Harmless, cut


def breaks() -> None:
    raise KeyError("two\nlines")


def test_a_fault_switches_it_off_and_is_said_once() -> None:
    said: list[str] = []
    calls: list[int] = []
    harmless = Harmless("looking", said.append)
    assert harmless.run(lambda: calls.append(1))
    assert not harmless.run(breaks)
    assert not harmless.run(lambda: calls.append(2))
    harmless.failed(ValueError("another"))
    assert calls == [1]
    (line,) = said
    assert line.startswith(
        "looking is off for the rest of this job, by a fault of robust-run (test_harmless.py:16): KeyError"
    )
    assert "\n" not in line


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (
            errno.EMFILE,
            r"watching is off for the rest of this job: too many open files \(`ulimit -n` is \d+\); raise the limit",
        ),
        (errno.ENOSPC, "watching is off for the rest of this job: no space left on device for '/runs/a'"),
        (errno.ENOMEM, "watching is off for the rest of this job: cannot allocate memory for '/runs/a'"),
    ],
)
def test_what_the_machine_lacks_is_no_fault_of_ours(number: int, said: str) -> None:
    lines: list[str] = []

    def fails() -> None:
        raise OSError(number, os.strerror(number), None if number == errno.EMFILE else "/runs/a")

    assert not Harmless("watching", lines.append).run(fails)
    assert len(lines) == 1
    assert re.fullmatch(said, lines[0]), lines


class Closed(asyncio.Transport):
    """A TLS transport of Python 3.11.2 that was closed by us, and then by the other end."""

    def abort(self) -> None:
        raise AttributeError("'NoneType' object has no attribute '_abort'")


def test_a_connection_that_is_over_can_be_cut_off_again() -> None:
    cut(Closed())
