"""Event files of TensorBoard and wandb, read while they grow."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sensor_ground import Watched

from robust_run.health.metrics import tensorboard, wandb_files, watching
from robust_run.health.metrics.reporting import Reporter
from robust_run.health.metrics.reports import create, file_of
from robust_run.health.metrics.tensorboard import masked_crc
from robust_run.health.metrics.watching import FRESH_S, Watcher
from robust_run.health.metrics.wire import fields
from robust_run.health.sensors.settings import TrainingSettings
from robust_run.health.sensors.types import World


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def piece(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def scalar(tag: str, step: int, value: float) -> bytes:
    """An Event of TensorFlow with one scalar."""
    summary = piece(1, piece(1, tag.encode()) + b"\x15" + struct.pack("<f", value))
    return b"\x09" + struct.pack("<d", 1000.0 + step) + b"\x10" + varint(step) + piece(5, summary)


def tensor(tag: str, step: int, value: float) -> bytes:
    """The same as TensorFlow 2 writes it."""
    inner = b"\x08\x01" + piece(4, struct.pack("<f", value))
    return b"\x10" + varint(step) + piece(5, piece(1, piece(1, tag.encode()) + piece(8, inner)))


def record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc(length)) + data + b"crc?"


def item(name: str, value: object) -> bytes:
    return piece(1, piece(1, name.encode()) + piece(16, json.dumps(value).encode()))


def history(step: int, **values: object) -> bytes:
    items = b"".join(item(name, value) for name, value in {**values, "_step": step, "_timestamp": 5.0}.items())
    return piece(2, items)


def logged(*records: bytes) -> bytes:
    """A file as wandb writes it: pieces in blocks of 32 KiB."""
    out = b":W&B\xe1\xbe\x00"
    for data in records:
        left, first = data, True
        while left or first:
            room = wandb_files.BLOCK_BYTES - len(out) % wandb_files.BLOCK_BYTES
            if room < 7:
                out += bytes(room)
                continue
            part, left = left[: room - 7], left[room - 7 :]
            kind = (1 if not left else 2) if first else (4 if not left else 3)
            out += struct.pack("<IHB", 0, len(part), kind) + part
            first = False
    return out


def test_the_crc_is_that_of_the_published_example() -> None:
    """CRC-32C of 32 zero bytes is 8a9136aa (RFC 3720, B.4); TFRecords rotate and shift it."""
    crc = 0x8A9136AA
    assert masked_crc(bytes(32)) == (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


@pytest.mark.parametrize("form", [scalar, tensor], ids=["simple value", "tensor"])
def test_scalars_are_read_with_their_steps(form: Callable[[str, int, float], bytes]) -> None:
    chunk = tensorboard.parse(record(form("train/loss", 3, 2.5)) + record(form("train/loss", -1, math.nan)))
    assert [point.step for point in chunk.points] == [3, -1]
    assert chunk.points[0].values == {"train/loss": 2.5}
    assert math.isnan(chunk.points[1].values["train/loss"])


def test_a_record_that_is_still_being_written_is_left_for_the_next_time() -> None:
    whole, next_ = record(scalar("loss", 1, 1.0)), record(scalar("loss", 2, 2.0))
    for cut in range(len(next_)):
        chunk = tensorboard.parse(whole + next_[:cut])
        assert (len(chunk.points), chunk.used_bytes, chunk.damaged) == (1, len(whole), False)


def test_pictures_are_passed_over_without_being_held() -> None:
    big = record(bytes(tensorboard.MOST_RECORD_BYTES + 1))
    chunk = tensorboard.parse(big[:100])
    assert chunk.used_bytes == len(big)
    assert len(tensorboard.parse(big + record(scalar("loss", 1, 1.0))).points) == 1


def test_a_damaged_file_is_given_up_at_the_damage() -> None:
    good = record(scalar("loss", 1, 1.0))
    chunk = tensorboard.parse(good + b"\0" * 40)
    assert (len(chunk.points), chunk.used_bytes, chunk.damaged) == (1, len(good), True)


def test_numbers_of_wandb_are_read_across_blocks_and_nan_among_them() -> None:
    content = logged(history(0, loss=2.5, text="x" * 90_000), history(1, loss=math.nan, grad_norm="Infinity"))
    chunk = wandb_files.parse(content, 0)
    assert [(point.step, point.at_s) for point in chunk.points] == [(0, 5.0), (1, 5.0)]
    assert chunk.points[0].values == {"loss": 2.5}
    assert math.isnan(chunk.points[1].values["loss"])
    assert chunk.points[1].values["grad_norm"] == math.inf
    assert chunk.used_bytes == len(content)


def test_a_wandb_file_is_read_on_from_any_record() -> None:
    first, both = logged(history(0, loss=1.0)), logged(history(0, loss=1.0), history(1, loss=2.0))
    for cut in range(len(first), len(both)):
        chunk = wandb_files.parse(both[:cut], 0)
        assert (len(chunk.points), chunk.used_bytes) == (1, len(first))
    rest = wandb_files.parse(both[len(first) :], len(first))
    assert [point.step for point in rest.points] == [1]


def test_what_is_no_file_of_wandb_is_given_up() -> None:
    assert wandb_files.parse(b"something else", 0).damaged


@given(st.binary(max_size=300), st.integers(0, 1 << 40))
def test_any_bytes_can_be_parsed(content: bytes, offset: int) -> None:
    list(fields(content))
    tensorboard.parse(content)
    tensorboard.parse(record(content))
    wandb_files.parse(content, offset)
    wandb_files.parse(b":W&B\xe1\xbe\x00" + content, 0)
    wandb_files.parse(logged(content), 0)


def world_of(*folders: Path) -> World:
    return World(event_folders=lambda: tuple(map(str, folders)))


def test_a_file_that_grows_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "events.out.tfevents.1.host"
    path.parent.mkdir()
    path.write_bytes(record(scalar("loss", 1, 1.0)))
    watcher = Watcher()
    assert len(watcher(world_of(tmp_path))[str(path)].points) == 1
    with open(path, "ab") as file:
        file.write(record(scalar("loss", 2, 1.0)))
    assert [point.step for point in watcher(world_of(tmp_path))[str(path)].points] == [2]
    assert watcher(world_of(tmp_path))[str(path)].points == ()


def test_the_past_of_another_run_is_not_judged(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1.host"
    path.write_bytes(record(scalar("loss", 1, math.nan)))
    os.utime(path, (1.0, 1.0))
    watcher = Watcher(lambda: 1.0 + 2 * FRESH_S)
    assert watcher(world_of(tmp_path))[str(path)].points == ()
    with open(path, "ab") as file:
        file.write(record(scalar("loss", 2, 1.0)))
    assert [point.step for point in watcher(world_of(tmp_path))[str(path)].points] == [2]


def test_links_and_damaged_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "events.out.tfevents.2").symlink_to("/dev/zero")
    (tmp_path / "run-x.wandb").write_bytes(b"rubbish that is no log")
    watcher = Watcher()
    assert all(not said.points for said in watcher(world_of(tmp_path)).values())
    assert str(tmp_path / "run-x.wandb") not in watcher(world_of(tmp_path))


def test_a_loss_that_is_nan_is_noticed_in_a_report_and_in_an_event_file(
    tmp_path: Path, watch: Callable[..., Watched]
) -> None:
    create(file_of(str(tmp_path), 3))
    Reporter(file_of(str(tmp_path), 3)).write(7, {"loss": math.nan})
    folder = str(tmp_path)
    reported = watch(World(reports=lambda: (folder,)), watching.sensor(TrainingSettings(interval_s=0.05)))
    event = reported.wait_for("training.nan")
    assert (event.subject, event.detail) == ("rank 3", "loss is nan at step 7")
    (tmp_path / "events.out.tfevents.3").write_bytes(record(scalar("train/loss", 8, math.nan)))
    seen = watch(world_of(tmp_path), watching.sensor(TrainingSettings(interval_s=0.05)))
    assert seen.wait_for("training.nan").detail == "train/loss is nan at step 8"
