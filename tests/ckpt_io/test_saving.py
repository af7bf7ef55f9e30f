"""A save is whole or it is not there; a target that fails is named, and what was there before stays."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from saved_checkpoints import MIB, Faults, OneWay, Operation, content, contents, held_by, save

from robust_run.ckpt_io.errors import ManifestRefused, NotACheckpoint, TargetLost
from robust_run.ckpt_io.reading import open_checkpoint
from robust_run.ckpt_io.rules.types import Chunk, Codec, LogicalFile, Tensor
from robust_run.ckpt_io.saving import FilePiece, abandon, begin_save, commit, open_file, write_file
from robust_run.errors import UserError
from robust_run.store.errors import NoSpace, ReadOnly, Stalled, StoreError, Unavailable

NOTHING = Faults(lambda _: None)


def things_in(*roots: Path) -> list[str]:
    return sorted(str(path) for root in roots for path in root.rglob("*"))


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd_shuffle"])
@pytest.mark.parametrize("targets", [1, 2, 5])
@pytest.mark.parametrize("way", ["anyhow", "one way", "stream", "one-way stream"])
def test_what_is_saved_is_what_is_held(tmp_path: Path, codec: Codec, targets: int, way: str) -> None:
    roots = [f"{tmp_path}/{target}" for target in range(targets)]
    held = {**contents(1, size_bytes=3_300_000), "empty": b"", "sub/small": b"x"}
    stores = (OneWay if "one" in way else Faults)(lambda _: None)
    manifest = save(f"{roots[0]}/ck", held, roots[1:], codec=codec, stores=stores, streamed="stream" in way)
    assert held_by(f"{roots[0]}/ck") == held
    stored = sum(path.stat().st_size for path in tmp_path.rglob("*.part"))
    assert stored == sum(map(len, held.values())) if codec == "none" else stored < 0.7 * sum(map(len, held.values()))
    assert len(manifest.targets) == targets
    if targets > 1:  # the first unit of each file lies on a target of its own
        assert [file.first_target for file in manifest.files] == [index % targets for index in range(4)]


@settings(max_examples=40)
@given(data=st.data())
def test_gaps_between_pieces_are_zeros(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    root = tmp_path_factory.mktemp("gaps")
    pieces, expected, at = [], bytearray(), 0
    for index, (gap, count) in enumerate(
        data.draw(st.lists(st.tuples(st.integers(0, 1_500_000), st.integers(0, 900_000)), max_size=5))
    ):
        piece = content(index, count)
        pieces.append(FilePiece(at + gap, memoryview(piece)))
        expected += bytes(gap) + piece
        at += gap + count
    size = at + data.draw(st.integers(0, 1_200_000))
    plan = begin_save(f"{root}/a/ck", [f"{root}/b"], unit_bytes=MIB)
    stores = data.draw(st.sampled_from([NOTHING, OneWay(lambda _: None)]))
    done: list[int] = []
    shuffled = data.draw(st.permutations(pieces))
    commit(plan, [write_file(plan, 0, "f", shuffled, size, stores=stores, progress=done.append)])
    assert held_by(f"{root}/a/ck") == {"f": bytes(expected) + bytes(size - at)}
    assert sum(done) == size
    shutil.rmtree(root)


@settings(max_examples=25)
@given(writes=st.lists(st.integers(0, 1_500_000), max_size=6), codec=st.sampled_from(["none", "lz4"]))
def test_a_stream_takes_writes_of_any_size(
    tmp_path_factory: pytest.TempPathFactory, writes: list[int], codec: Codec
) -> None:
    root = tmp_path_factory.mktemp("stream")
    plan = begin_save(f"{root}/a/ck", [f"{root}/b", f"{root}/c"], unit_bytes=MIB, codec=codec)
    stream, whole = open_file(plan, 0, "f"), b""
    for index, count in enumerate(writes):
        buffer = bytearray(content(index, count))
        assert stream.write(buffer) == count
        whole += buffer
        buffer[:] = bytes(count)  # it was taken when `write` returned
    commit(plan, [stream.finish()])
    assert held_by(f"{root}/a/ck") == {"f": whole}
    shutil.rmtree(root)


@pytest.mark.parametrize(
    "pieces",
    [[(0, 10), (9, 5)], [(95, 6)], [(-1, 5)], [(0, 50), (0, 50)]],
    ids=["overlap", "behind", "before", "twice"],
)
def test_pieces_that_overlap_or_lie_outside_are_refused(tmp_path: Path, pieces: list[tuple[int, int]]) -> None:
    plan = begin_save(f"{tmp_path}/ck")
    with pytest.raises(ValueError, match="piece at byte"):
        write_file(plan, 0, "f", [FilePiece(offset, memoryview(bytes(count))) for offset, count in pieces], 100)
    assert things_in(tmp_path) == []


def test_plans_that_cannot_be_are_refused(tmp_path: Path) -> None:
    for wrong in ({"unit_bytes": 5}, {"unit_bytes": 1 << 19}, {"unit_bytes": 1 << 27}, {"item_bytes": 3}):
        with pytest.raises(UserError):
            begin_save(f"{tmp_path}/ck", **wrong)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="relative path"):
        write_file(begin_save(f"{tmp_path}/ck"), 0, "../f", [], 0)


def test_saving_over_a_checkpoint_leaves_nothing_of_it(tmp_path: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    save(f"{roots[0]}/ck", contents(1), [f"{roots[1]}"])
    save(f"{roots[0]}/ck", contents(2), [f"{roots[1]}"])
    assert held_by(f"{roots[0]}/ck") == contents(2)
    assert [len(os.listdir(root / "ck")) for root in roots] == [2, 2]  # manifest or copy, and parts


def test_a_part_that_is_missing_or_short_is_not_committed(tmp_path: Path) -> None:
    save(f"{tmp_path}/a/ck", contents(1))
    plan = begin_save(f"{tmp_path}/a/ck", [f"{tmp_path}/b"], unit_bytes=MIB)
    file = write_file(plan, 0, "f", [FilePiece(0, memoryview(content(1, 3 * MIB)))], 3 * MIB)
    (part,) = (tmp_path / "b").rglob("*.part")
    os.truncate(part, 100)
    with pytest.raises(TargetLost, match=f"{tmp_path}/b/ck.*{part.name} should have 1048576 bytes and has 100"):
        commit(plan, [file])
    part.unlink()
    with pytest.raises(TargetLost, match="has none"):
        commit(plan, [file])
    assert held_by(f"{tmp_path}/a/ck") == contents(1)


def test_a_manifest_that_contradicts_itself_is_not_committed(tmp_path: Path) -> None:
    plan = begin_save(f"{tmp_path}/ck")
    file = write_file(plan, 0, "f", [], 100)
    chunk = Chunk(offsets=(0,), sizes=(26,), file=0, offset_bytes=0)
    with pytest.raises(ManifestRefused, match="are not within"):
        commit(plan, [file], tensors=[Tensor(name="w", dtype="float32", sizes=(26,), chunks=(chunk,))])
    with pytest.raises(NotACheckpoint):
        open_checkpoint(f"{tmp_path}/ck")


def test_an_abandoned_save_leaves_nothing_and_a_committed_one_is_not_abandoned(tmp_path: Path) -> None:
    save(f"{tmp_path}/a/ck", contents(1), [f"{tmp_path}/b"])
    before = things_in(tmp_path)
    plan = begin_save(f"{tmp_path}/a/ck", [f"{tmp_path}/b"])
    file = write_file(plan, 0, "f", [FilePiece(0, memoryview(b"abc"))], 3)
    abandon(plan)
    assert things_in(tmp_path) == before
    plan = begin_save(f"{tmp_path}/a/ck", [f"{tmp_path}/b"])
    file = write_file(plan, 0, "f", [FilePiece(0, memoryview(b"abc"))], 3)
    commit(plan, [file])
    abandon(plan)
    assert held_by(f"{tmp_path}/a/ck") == {"f": b"abc"}


def test_a_save_that_is_abandoned_leaves_no_folder_of_its_name(tmp_path: Path) -> None:
    for write in (True, False):
        plan = begin_save(f"{tmp_path}/a/ck", [f"{tmp_path}/b"])
        if write:
            write_file(plan, 0, "f", [FilePiece(0, memoryview(b"abc"))], 3)
        abandon(plan)
        assert not (tmp_path / "a/ck").exists() and not (tmp_path / "b/ck").exists()
    (tmp_path / "a/ck").mkdir(parents=True)
    (tmp_path / "a/ck" / "notes.txt").write_text("mine")
    plan = begin_save(f"{tmp_path}/a/ck")
    write_file(plan, 0, "f", [FilePiece(0, memoryview(b"abc"))], 3)
    abandon(plan)
    assert [path.name for path in (tmp_path / "a/ck").iterdir()] == ["notes.txt"]


# Targets that misbehave


@pytest.mark.parametrize("error", [NoSpace, ReadOnly, Stalled, StoreError])
@pytest.mark.parametrize("at", ["create", "write_at", "half written", "finish", "write_all"])
@pytest.mark.parametrize("way", ["anyhow", "one way", "stream"])
def test_a_target_that_fails_is_named_and_the_last_checkpoint_stays(
    tmp_path: Path, error: type[StoreError], at: str, way: str
) -> None:
    primary, other = tmp_path / "a", tmp_path / "b"
    save(f"{primary}/ck", contents(1), [f"{other}"])
    happened = 0

    def fault(operation: Operation) -> None:
        nonlocal happened
        if operation.url == f"{other}/ck" and operation.name == at:
            happened += 1
            raise error(operation.url, operation.path, "the disk says no")

    stores = (OneWay if way == "one way" else Faults)(fault)
    with pytest.raises(TargetLost, match=f"{other}/ck failed: .*the disk says no"):
        save(f"{primary}/ck", contents(2), [f"{other}"], stores=stores, streamed=way == "stream")
    assert happened
    assert held_by(f"{primary}/ck") == contents(1)


def test_a_one_way_target_that_is_away_for_a_moment_gets_its_part_again(tmp_path: Path) -> None:
    """As HDFS behaves for as long as the NameNode takes a dead DataNode for a live one."""
    failed = []

    def fault(operation: Operation) -> None:
        if operation.name == "half written" and operation.url.endswith("b/ck") and not failed:
            failed.append(operation)
            raise Unavailable(operation.url, operation.path, "connection refused")

    save(f"{tmp_path}/a/ck", contents(1), [f"{tmp_path}/b"], stores=OneWay(fault), codec="lz4")
    assert failed and held_by(f"{tmp_path}/a/ck") == contents(1)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 4 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)]
    if os.geteuid() or subprocess.run(command, capture_output=True, timeout=60, check=False).returncode:
        pytest.skip("mounting a file system needs root")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], timeout=60, check=True)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_disk_that_is_really_full_is_named_and_can_be_used_again(
    tmp_path: Path, small_disk: Path, streamed: bool
) -> None:
    held = contents(1, size_bytes=1_300_000)
    save(f"{tmp_path}/a/ck", held, [f"{small_disk}"])
    plan = begin_save(f"{tmp_path}/a/ck", [f"{small_disk}"], unit_bytes=MIB)
    whole = content(5, 9 * MIB)
    with pytest.raises(TargetLost, match=f"{small_disk}/ck failed: .*[Nn]o space"):
        if streamed:
            stream = open_file(plan, 0, "f")
            stream.write(whole)
            stream.finish()
        else:
            write_file(plan, 0, "f", [FilePiece(0, memoryview(whole))], len(whole))
    assert held_by(f"{tmp_path}/a/ck") == held
    abandon(plan)
    save(f"{tmp_path}/a/ck", contents(2, size_bytes=1_300_000), [f"{small_disk}"])
    assert held_by(f"{tmp_path}/a/ck") == contents(2, size_bytes=1_300_000)


def test_a_disk_that_becomes_read_only_is_named(tmp_path: Path, small_disk: Path) -> None:
    held = contents(1, size_bytes=900_000)
    save(f"{tmp_path}/a/ck", held, [f"{small_disk}"])
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], timeout=60, check=True)
    with pytest.raises(TargetLost, match=f"{small_disk}/ck failed: .*read-only"):
        save(f"{tmp_path}/a/ck", contents(2, size_bytes=900_000), [f"{small_disk}"])
    assert held_by(f"{tmp_path}/a/ck") == held


def test_a_description_of_another_file_is_found_out_at_commit(tmp_path: Path) -> None:
    plan = begin_save(f"{tmp_path}/ck", unit_bytes=MIB)
    files: list[LogicalFile] = [write_file(plan, index, f"f{index}", [], (index + 1) * 1000) for index in range(2)]
    with pytest.raises(TargetLost, match="should have"):
        commit(plan, files[::-1])
