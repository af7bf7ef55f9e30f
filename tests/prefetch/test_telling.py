"""What a block server tells its keeper."""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec
import pytest

from robust_run.prefetch.server.config import ServerReady
from robust_run.prefetch.server.telling import QUIET_S, Telling


class Ear:
    """A pipe, and a clock that stands."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        self.now_s = 1000.0
        self.telling = Telling(self.write_end, lambda: self.now_s)

    def heard(self) -> list[str]:
        try:
            return os.read(self.read_end, 1 << 20).decode().splitlines()
        except BlockingIOError:
            return []

    def close(self) -> None:
        os.close(self.read_end)
        os.close(self.write_end)


@pytest.fixture(name="ear")
def _ear() -> Iterator[Ear]:
    ear = Ear()
    yield ear
    ear.close()


def test_before_it_serves_only_one_line_is_said(ear: Ear) -> None:
    ear.telling.trouble("block 3", "the origin is gone")
    ear.telling.ready(ServerReady("the origin is gone"))
    ear.telling.ready(ServerReady())
    assert ear.heard() == ['{"reason":"the origin is gone"}']


def test_the_same_reason_is_told_once_in_a_while_and_another_at_once(ear: Ear) -> None:
    ear.telling.ready(ServerReady())
    for block in range(5):
        ear.telling.trouble(f"block {block}", "gone")
    ear.telling.trouble("block 7", "wrong")
    ear.now_s += QUIET_S
    ear.telling.trouble("block 9", "gone")
    _ready, *lost = ear.heard()
    assert [msgspec.json.decode(line)["sentence"] for line in lost] == ["block 0", "block 7", "block 9"]


def test_a_keeper_that_does_not_listen_holds_nobody_up(ear: Ear) -> None:
    ear.telling.ready(ServerReady())
    for number in range(5000):
        ear.telling.trouble("x" * 100, f"reason {number}")
    assert 100 < len(ear.heard()) < 5000


def test_what_is_worth_knowing_is_told_each_time_and_what_came_too_early_after_the_first_line(ear: Ear) -> None:
    ear.telling.note("early")
    assert ear.heard() == []
    ear.telling.ready(ServerReady())
    ear.telling.note("damaged")
    ear.telling.note("damaged")
    _ready, *noted = [msgspec.json.decode(line) for line in ear.heard()]
    assert noted == [{"type": "noted", "sentence": sentence} for sentence in ("early", "damaged", "damaged")]
