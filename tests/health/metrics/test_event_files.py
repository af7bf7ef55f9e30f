"""Event files of TensorBoard and wandb, read while they grow."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from event_files import history, logged, record, scalar, tensor
from hypothesis import given
from hypothesis import strategies as st
from sensor_ground import Watched

from robust_run.health.metrics import tensorboard, wandb_files, watching
from robust_run.health.metrics.reporting import Reporter
from robust_run.health.metrics.reports import file_of
from robust_run.health.metrics.tensorboard import masked_crc
from robust_run.health.metrics.watching import FRESH_S, MetricsWatcher
from robust_run.health.metrics.wire import fields
from robust_run.health.sensors.settings import TrainingSettings
from robust_run.health.sensors.types import SensorWorld


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
        assert (len(chunk.points), chunk.used_bytes, chunk.damaged_at) == (1, len(whole), None)


def test_pictures_are_passed_over_without_being_held() -> None:
    big = record(bytes(tensorboard.MOST_RECORD_BYTES + 1))
    chunk = tensorboard.parse(big[:100])
    assert chunk.used_bytes == len(big)
    assert len(tensorboard.parse(big + record(scalar("loss", 1, 1.0))).points) == 1


@pytest.mark.parametrize(
    "damage",
    [bytes(5000), b"\xff" * 12, b"\x01" + bytes(7), record(scalar("loss", 5, 5.0))[7:], bytes(range(256)) * 9],
    ids=["a hole", "rubbish", "half a head", "half a record", "all bytes"],
)
def test_after_damage_the_next_whole_record_is_found(damage: bytes) -> None:
    good, after = record(scalar("loss", 1, 1.0)), record(scalar("loss", 300, 2.0))
    chunk = tensorboard.parse(good + damage + after + after)
    assert [point.step for point in chunk.points] == [1, 300, 300]
    assert (chunk.damaged_at, chunk.is_lost) == (len(good), False)
    assert chunk.used_bytes == len(good + damage + after + after)


@given(st.binary(max_size=200), st.integers(0, 400))
def test_wherever_a_reading_ends_within_damage_the_next_one_goes_on(damage: bytes, cut: int) -> None:
    good, after = record(scalar("loss", 1, 1.0)), record(scalar("loss", 2, 2.0))
    content = good + b"\xff" * 12 + damage + after + after
    first = tensorboard.parse(content[:cut])
    rest = tensorboard.parse(content[first.used_bytes :])
    assert (first.points + rest.points)[-1].values == {"loss": 2.0}


def test_a_record_without_end_is_damage() -> None:
    length = struct.pack("<Q", 1 << 60)
    chunk = tensorboard.parse(length + struct.pack("<I", masked_crc(length)) + record(scalar("loss", 1, 1.0)))
    assert (chunk.damaged_at, len(chunk.points)) == (0, 1)


def test_a_loss_that_is_nan_by_a_flipped_bit_is_no_loss() -> None:
    """1.9921875 is 3fff0000, and 7fff0000 is no number."""
    right = record(scalar("loss", 1, 1.9921875))
    at = right.index(b"\0\0\xff\x3f") + 3
    chunk = tensorboard.parse(right[:at] + b"\x7f" + right[at + 1 :])
    assert (chunk.points, chunk.damaged_at, chunk.is_lost) == ((), 0, False)


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


def test_after_damage_a_wandb_file_is_read_on_from_the_next_block() -> None:
    records = [history(step, loss=1.0, text="x" * 5000) for step in range(20)]
    content, at = logged(*records), len(logged(records[0]))
    chunk = wandb_files.parse(content[:at] + b"\xff" * 9 + content[at + 9 :], 0)
    steps = [point.step for point in chunk.points]
    assert (steps[0], steps[-1]) == (0, 19)
    assert 12 <= len(steps) < 20
    assert (chunk.damaged_at, chunk.is_lost) == (at, False)
    assert wandb_files.parse(b":W&B\xe1\xbe\x00" + b"\xff" * 9, 0).is_lost, "until the next block is there"


def test_a_picture_of_wandb_is_passed_over_however_large_it_is() -> None:
    content = logged(history(0, text="x" * (5 << 20)), history(1, loss=1.0))
    first = wandb_files.parse(content[: watching.CHUNK_BYTES], 0)
    assert first.used_bytes > watching.CHUNK_BYTES // 2
    rest = wandb_files.parse(content[first.used_bytes :], first.used_bytes)
    assert [point.step for point in rest.points] == [1]


def test_what_is_no_file_of_wandb_is_given_up() -> None:
    chunk = wandb_files.parse(b"something else", 0)
    assert (chunk.is_lost, chunk.used_bytes) == (True, 0)


@given(st.binary(max_size=300), st.integers(0, 1 << 40))
def test_any_bytes_can_be_parsed(content: bytes, offset: int) -> None:
    list(fields(content))
    tensorboard.parse(content)
    tensorboard.parse(record(content))
    wandb_files.parse(content, offset)
    wandb_files.parse(b":W&B\xe1\xbe\x00" + content, 0)
    wandb_files.parse(logged(content), 0)


def world_of(*folders: Path) -> SensorWorld:
    return SensorWorld(event_folders=lambda: tuple(map(str, folders)))


def test_a_file_that_grows_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "events.out.tfevents.1.host"
    path.parent.mkdir()
    path.write_bytes(record(scalar("loss", 1, 1.0)))
    watcher = MetricsWatcher()
    assert len(watcher(world_of(tmp_path))[str(path)].points) == 1
    with open(path, "ab") as file:
        file.write(record(scalar("loss", 2, 1.0)))
    assert [point.step for point in watcher(world_of(tmp_path))[str(path)].points] == [2]
    assert watcher(world_of(tmp_path))[str(path)].points == ()


def test_the_past_of_another_run_is_not_judged(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1.host"
    path.write_bytes(record(scalar("loss", 1, math.nan)))
    os.utime(path, (1.0, 1.0))
    watcher = MetricsWatcher(lambda: 1.0 + 2 * FRESH_S)
    assert watcher(world_of(tmp_path))[str(path)].points == ()
    with open(path, "ab") as file:
        file.write(record(scalar("loss", 2, 1.0)))
    assert [point.step for point in watcher(world_of(tmp_path))[str(path)].points] == [2]


def test_what_an_attempt_before_wrote_is_not_held_against_this_one(tmp_path: Path) -> None:
    """A node may see what another has written to a shared folder long after that."""
    (tmp_path / "events.out.tfevents.1").write_bytes(
        record(scalar("loss", 7, math.nan, at_s=999.0)) + record(scalar("loss", 1, 2.0, at_s=1001.0))
    )
    world = SensorWorld(event_folders=lambda: (str(tmp_path),), began_unix_s=lambda: 1000.0)
    (said,) = MetricsWatcher()(world).values()
    assert [point.step for point in said.points] == [1]


def damage_said(watcher: MetricsWatcher, folder: Path) -> list[tuple[str, str]]:
    """Return kind and sentence of what one turn says of damage."""
    _, events = watching.judge_all(TrainingSettings(), {}, watcher(world_of(folder)), 0.0)
    return [(event.kind, event.detail) for event in events if event.name == "training.damaged"]


def test_a_file_that_cannot_be_read_on_is_told_once_and_that_it_can_be_again(tmp_path: Path) -> None:
    path, good = tmp_path / "events.out.tfevents.2", record(scalar("loss", 1, 1.0))
    path.write_bytes(good + b"\xff" * 40)
    watcher = MetricsWatcher()
    assert damage_said(watcher, tmp_path) == [("note", f"it cannot be read from byte {len(good)} on")]
    assert damage_said(watcher, tmp_path) == []
    with open(path, "ab") as file:
        file.write(b"\xff" * 40 + good)
    ((kind, detail),) = damage_said(watcher, tmp_path)
    assert (kind, detail) == ("clear", f"it can be read again before byte {2 * len(good) + 80}")


def test_damage_that_was_passed_over_is_told_once(tmp_path: Path) -> None:
    path, good = tmp_path / "events.out.tfevents.2", record(scalar("loss", 1, 1.0))
    watcher, told = MetricsWatcher(), []
    for _ in range(3):
        with open(path, "ab") as file:
            file.write(good + b"\xff" * 40 + good)
        told += damage_said(watcher, tmp_path)
    assert told == [("clear", f"it is damaged at byte {len(good)}; it is read on from the next whole record")]


def test_links_and_what_is_no_log_are_left_alone_and_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "events.out.tfevents.2").symlink_to("/dev/zero")
    (tmp_path / "run-x.wandb").write_bytes(b"rubbish that is no log")
    watcher = MetricsWatcher()
    assert sorted(detail for _, detail in damage_said(watcher, tmp_path)) == [
        "it cannot be read from byte 0 on",
        "it cannot be read: Too many levels of symbolic links",
    ]
    assert damage_said(watcher, tmp_path) == []
    assert not any(said.points for said in watcher(world_of(tmp_path)).values())
    (tmp_path / "events.out.tfevents.2").unlink()
    (tmp_path / "events.out.tfevents.2").write_bytes(record(scalar("loss", 1, 1.0)))
    assert damage_said(watcher, tmp_path) == [("clear", "it can be read again")]


def test_a_loss_that_is_nan_is_noticed_in_a_report_and_in_an_event_file(
    tmp_path: Path, watch: Callable[..., Watched]
) -> None:
    Reporter(file_of(str(tmp_path), 3)).write(7, {"loss": math.nan})
    folder = str(tmp_path)
    reported = watch(SensorWorld(reports=lambda: (folder,)), watching.sensor(TrainingSettings(interval_s=0.05)))
    event = reported.wait_for("training.nan")
    assert (event.subject, event.detail) == ("rank 3", "loss is nan at step 7")
    (tmp_path / "events.out.tfevents.3").write_bytes(record(scalar("train/loss", 8, math.nan)))
    seen = watch(world_of(tmp_path), watching.sensor(TrainingSettings(interval_s=0.05)))
    assert seen.wait_for("training.nan").detail == "train/loss is nan at step 8"
