"""To whom a signal may be sent: to a process or a group that has a number, and never to everybody."""

from __future__ import annotations

import os

import pytest

from robust_run.launcher.agent.workers.process_tree import send, send_group

NOTHING = 0
"""A signal that only asks whether one could be sent."""


def test_a_process_that_is_there_gets_it() -> None:
    assert send(os.getpid(), NOTHING)
    assert send_group(os.getpgid(0), NOTHING)


@pytest.mark.parametrize("no_number", [0, -1, -4_000_000])
def test_what_stands_in_for_a_number_is_nobody(no_number: int) -> None:
    """To the kernel 0 is the own group, -1 everybody, and what is less a group."""
    assert not send(no_number, NOTHING)


@pytest.mark.parametrize("no_number", [0, 1, -1])
def test_what_stands_in_for_the_number_of_a_group_is_nobody(no_number: int) -> None:
    assert not send_group(no_number, NOTHING)


def test_nor_is_a_group_where_a_process_is_meant() -> None:
    assert not send(-os.getpgid(0), NOTHING)
