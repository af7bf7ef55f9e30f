"""Readers take what was fetched ahead; where it is gone, wrong, stuck or of another checkpoint, they read the store."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest
from ahead_ground import CONTENT, TOTAL, UNIT, Ground
from made_checkpoints import make_checkpoint

from robust_run.ckpt_io.ahead.area import ABSENT, HERE, OFF, OpenArea, counter, hand_out
from robust_run.ckpt_io.ahead.taking import VARIABLE, Fetched
from robust_run.ckpt_io.errors import Damaged


def test_what_is_there_is_not_read_from_the_store_again(ground: Ground) -> None:
    ground.fetcher(ground.area()).run(4)
    assert ground.sent_bytes == TOTAL
    manifest = len(ground.found.data)
    for _reader in range(3):
        assert ground.taken() == CONTENT
    assert ground.sent_bytes == TOTAL + 3 * manifest, "each reader opens the checkpoint, and reads nothing more"


def test_a_reader_waits_for_what_is_coming_and_has_it_fetched_first(ground: Ground) -> None:
    area = ground.area()
    fetcher = ground.fetcher(area)
    last = ground.table.number(0, 6)
    found: list[bool] = []
    buffer = bytearray(5)

    def read() -> None:
        fetched = Fetched(lambda: OpenArea(ground.path, ground.table, ground.found.header))
        found.append(fetched.take(0, 6, [memoryview(buffer)], None))
        fetched.close()

    reader = threading.Thread(target=read)
    reader.start()
    while not area.wants[last]:
        pass
    assert fetcher._next() == last, "before all others"
    fetcher.fetch(last, 0)
    reader.join(60)
    assert found == [True] and bytes(buffer) == CONTENT["x"][-5:]
    assert area.wants[last] == 0 and area.states[0] == ABSENT


def test_what_there_is_no_room_for_is_read_from_the_store(ground: Ground) -> None:
    area = ground.area()
    ground.fetcher(area, room_bytes=4 * UNIT).run(2)
    assert [*area.states].count(HERE) == 4 and [*area.states].count(OFF) == ground.table.units - 4
    assert ground.taken() == CONTENT
    assert ground.sent_bytes == TOTAL + len(ground.found.data)


def test_who_fetches_is_gone_and_what_came_is_used(ground: Ground) -> None:
    area = ground.area()
    fetcher = ground.fetcher(area)
    for number in range(3):
        fetcher.fetch(number, 0)
    fcntl.flock(ground.memory, fcntl.LOCK_UN)  # as when its process ends
    assert ground.taken() == CONTENT
    assert ground.sent_bytes == TOTAL + len(ground.found.data)


def test_who_fetches_died_before_it_said_what(ground: Ground) -> None:
    fcntl.flock(ground.memory, fcntl.LOCK_UN)
    assert ground.taken() == CONTENT


def test_one_that_is_stuck_is_not_waited_for_long(ground: Ground) -> None:
    ground.area()
    at_s = iter(range(1000))
    fetched = Fetched(
        lambda: OpenArea(ground.path, ground.table, ground.found.header), clock=lambda: float(next(at_s)), stall_s=5
    )
    assert not fetched.take(0, 0, [memoryview(bytearray(UNIT))], None)
    assert not fetched.take(0, 1, [memoryview(bytearray(UNIT))], None), "nor asked again"
    fetched.close()
    assert not fetched.take(0, 2, [memoryview(bytearray(UNIT))], None)


def test_memory_that_is_wrong_is_not_used_and_is_no_damage_of_the_checkpoint(ground: Ground) -> None:
    area = ground.area()
    ground.fetcher(area).run(4)
    area.data(2)[7] ^= 1
    assert ground.taken() == CONTENT
    assert ground.sent_bytes == TOTAL + len(ground.found.data) + (UNIT), "one unit was read again"


def test_a_unit_that_is_wrong_in_the_store_is_left_to_the_reader_who_says_so(ground: Ground) -> None:
    part = next(ground.folder.rglob("00000-0.part"))
    data = bytearray(part.read_bytes())
    data[3 * UNIT] ^= 1
    part.write_bytes(data)
    area = ground.area()
    fetcher = ground.fetcher(area)
    fetcher.run(4)
    assert area.states[3] == OFF and "digest" in fetcher.trouble
    with pytest.raises(Damaged):
        ground.taken()


def test_memory_of_another_checkpoint_is_left_alone(ground: Ground, tmp_path: Path) -> None:
    ground.fetcher(ground.area()).run(4)
    make_checkpoint([tmp_path / "step-8"], {"x": b"other"}, step=8)
    ground.url = ground.url.replace("step-7", "step-8")
    assert ground.taken() == {"x": b"other"}


@pytest.mark.parametrize("path", ["/proc/1/fd/99999", "/nowhere", "/dev/null", "rubbish"])
def test_a_place_that_is_none_is_no_error(ground: Ground, path: str) -> None:
    assert ground.read({VARIABLE: path}) == CONTENT


def test_given_back_memory_is_not_waited_for(ground: Ground) -> None:
    area = ground.area()
    ground.fetcher(area).run(4)
    area.drop()
    assert os.fstat(ground.memory).st_blocks * 512 <= ground.table.data_at
    assert ground.taken() == CONTENT


def test_who_may_not_look_into_the_process_gets_the_memory_from_a_socket(ground: Ground, tmp_path: Path) -> None:
    ground.fetcher(ground.area()).run(4)
    place = str(tmp_path / "ahead.sock")
    hand_out(counter(place), ground.memory)
    for _reader in range(2):
        assert ground.read({VARIABLE: place}) == CONTENT
    assert ground.sent_bytes == TOTAL + 2 * len(ground.found.data)
    area = OpenArea(place, ground.table, ground.found.header)
    assert area.is_alive(), "its lock is seen, though it is the same file"
    fcntl.flock(ground.memory, fcntl.LOCK_UN)
    assert not area.is_alive()
    area.close()
