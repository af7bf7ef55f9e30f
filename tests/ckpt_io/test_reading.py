"""What is read is what was saved, in any pieces; and what is not what was saved is an error that names file, unit and target."""

from __future__ import annotations

import os
import shutil
import threading
from array import array
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from saved_checkpoints import MIB, Faults, Operation, content, contents, held_by, save

from robust_run.ckpt_io.errors import Damaged, ManifestRefused, NotACheckpoint, Replaced, TargetLost
from robust_run.ckpt_io.reading import Wanted, open_checkpoint
from robust_run.ckpt_io.rules.manifest import decode, encode
from robust_run.ckpt_io.saving import FilePiece, begin_save, commit, write_file
from robust_run.errors import PlatformError
from robust_run.store.engine import Hedge, Retry
from robust_run.store.errors import Stalled, StoreError, Unavailable
from robust_run.store.opening import open_store
from robust_run.store.types import Store

QUICK = Retry(attempts=3, first_wait_s=0.001, longest_wait_s=0.002)


@pytest.fixture(scope="module", params=["none", "lz4", "zstd_shuffle"])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    """A checkpoint on three targets."""
    root, held = tmp_path_factory.mktemp("saved"), contents(1)
    save(f"{root}/a/ck", held, [f"{root}/b", f"{root}/c"], codec=request.param)
    return root, held


@settings(max_examples=40)
@given(data=st.data())
def test_any_ranges_in_any_order_even_overlapping_are_read(
    saved: tuple[Path, dict[str, bytes]], data: st.DataObject
) -> None:
    root, held = saved
    names = list(held)
    ranges = data.draw(
        st.lists(
            st.tuples(st.integers(0, 1), st.integers(0, 2_500_000), st.integers(0, 1_300_000)), min_size=1, max_size=6
        )
    )
    buffers = []
    for file, begin, count in ranges:
        end = min(len(held[names[file]]), begin + count)
        buffers.append((file, begin, bytearray(max(0, end - begin))))
    done: list[int] = []
    verify = data.draw(st.sampled_from(["touched", "off", "full"]))
    with open_checkpoint(f"{root}/a/ck", verify=verify) as opened:
        opened.read([Wanted(file, begin, memoryview(buffer)) for file, begin, buffer in buffers], done.append)
    for file, begin, buffer in buffers:
        assert buffer == held[names[file]][begin : begin + len(buffer)]
    assert sum(done) == sum(len(buffer) for _, _, buffer in buffers)


def test_very_many_small_pieces_of_one_unit(saved: tuple[Path, dict[str, bytes]]) -> None:
    root, held = saved
    buffers = [bytearray(300) for _ in range(3000)]
    with open_checkpoint(f"{root}/a/ck") as opened:
        opened.read([Wanted(0, 317 * index, memoryview(buffer)) for index, buffer in enumerate(buffers)])
    whole = held["rank0.bin"]
    assert all(buffer == whole[317 * index : 317 * index + 300] for index, buffer in enumerate(buffers))


def test_buffers_of_any_format_are_filled(saved: tuple[Path, dict[str, bytes]]) -> None:
    root, held = saved
    buffer = bytearray(8000)
    with open_checkpoint(f"{root}/a/ck") as opened:
        opened.read([Wanted(0, 16, memoryview(buffer).cast("d"))])
        with pytest.raises(ValueError, match="read-only"):
            opened.read([Wanted(0, 0, memoryview(b"abc"))])
        for begin, count in ((2_500_000, 1), (0, 1 << 60), (-1, 5)):
            with pytest.raises(ValueError, match=r"logical file rank0\.bin"):
                opened.read_bytes(0, begin, count)
        opened.read([Wanted(0, 0, memoryview(array("d")))])
    assert buffer == held["rank0.bin"][16:8016]


@pytest.fixture
def fresh(tmp_path: Path) -> tuple[Path, dict[str, bytes]]:
    """A checkpoint on two targets, to be spoilt."""
    held = contents(2)
    save(f"{tmp_path}/a/ck", held, [f"{tmp_path}/b"])
    return tmp_path, held


def parts_of(root: Path) -> list[Path]:
    found = sorted(root.glob("*/ck/parts-*/*.part"))
    assert len(found) == 4
    return found


def file_and_target(part: Path) -> tuple[str, str]:
    file, target = part.stem.split("-")
    return f"rank{int(file)}.bin", f"{part.parents[3]}/{'ab'[int(target)]}/ck"


def read_all(root: Path) -> None:
    with open_checkpoint(f"{root}/a/ck") as opened:
        for index, file in enumerate(opened.manifest.files):
            opened.read_bytes(index, 0, file.size_bytes)


@pytest.fixture(scope="module", params=["none", "zstd_shuffle"])
def spoilt(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose bits are flipped and flipped back."""
    root = tmp_path_factory.mktemp("spoilt")
    save(f"{root}/a/ck", contents(3), [f"{root}/b"], codec=request.param)
    return root


@settings(max_examples=60)
@given(data=st.data())
def test_every_flipped_bit_is_found_and_named(spoilt: Path, data: st.DataObject) -> None:
    part = data.draw(st.sampled_from(parts_of(spoilt)))
    at, bit = data.draw(st.integers(0, part.stat().st_size - 1)), data.draw(st.integers(0, 7))
    with open_checkpoint(f"{spoilt}/a/ck") as opened:
        file, target = (int(number) for number in part.stem.split("-"))
        layout = opened.layouts[file]
        unit = next(u for u in reversed(layout.units_on(target)) if layout.place(u).offset_bytes <= at)
    descriptor = os.open(part, os.O_RDWR)
    try:
        (byte,) = os.pread(descriptor, 1, at)
        os.pwrite(descriptor, bytes([byte ^ 1 << bit]), at)
        with open_checkpoint(f"{spoilt}/a/ck") as opened:
            name, folder = file_and_target(part)
            with pytest.raises(Damaged) as damaged:
                opened.read_bytes(file, unit * MIB, 1)  # one byte is enough: the whole unit is verified
            error = damaged.value
            assert (error.file, error.unit, error.target) == (name, unit, folder)
            assert name in str(error) and f"unit {unit}," in str(error) and folder in str(error)
            assert [(fault.file, fault.unit) for fault in opened.check()] == [(name, unit)]
        with pytest.raises(Damaged):
            open_checkpoint(f"{spoilt}/a/ck", verify="full")
        with open_checkpoint(f"{spoilt}/a/ck", verify="off") as opened:
            assert [(fault.file, fault.unit) for fault in opened.check()] == [(name, unit)]
    finally:
        os.pwrite(descriptor, bytes([byte]), at)
        os.close(descriptor)


@pytest.mark.parametrize("length", [0, 1, MIB - 1, -1])
def test_a_truncated_part_is_found_and_named(fresh: tuple[Path, dict[str, bytes]], length: int) -> None:
    for part in parts_of(fresh[0]):
        whole = part.read_bytes()
        os.truncate(part, length if length >= 0 else len(whole) - 1)
        with pytest.raises(Damaged) as damaged:
            read_all(fresh[0])
        assert (damaged.value.file, damaged.value.target) == file_and_target(part)
        assert "truncated" in str(damaged.value)
        part.write_bytes(whole)
    assert held_by(f"{fresh[0]}/a/ck") == fresh[1]


def test_a_missing_part_is_found_and_named(fresh: tuple[Path, dict[str, bytes]]) -> None:
    for part in parts_of(fresh[0]):
        part.rename(part.with_suffix(".away"))
        with pytest.raises(Damaged, match="no such file") as damaged:
            read_all(fresh[0])
        assert (damaged.value.file, damaged.value.target) == file_and_target(part)
        part.with_suffix(".away").rename(part)


def test_swapped_parts_are_found_and_named(fresh: tuple[Path, dict[str, bytes]]) -> None:
    parts = parts_of(fresh[0])
    for one in parts:
        for other in parts:
            if one < other:
                swap(one, other)
                with open_checkpoint(f"{fresh[0]}/a/ck") as opened:
                    found = {(fault.file, fault.target) for fault in opened.check()}
                assert {file_and_target(one), file_and_target(other)} <= found
                swap(one, other)


def swap(one: Path, other: Path) -> None:
    between = one.with_suffix(".between")
    one.rename(between)
    other.rename(one)
    between.rename(other)


def test_a_part_of_another_save_is_found(fresh: tuple[Path, dict[str, bytes]]) -> None:
    root = fresh[0]
    save(f"{root}/x/ck", contents(9), [f"{root}/y"])
    mine, theirs = root / "b/ck", root / "y/ck"
    shutil.copytree(next(theirs.glob("parts-*")), next(mine.glob("parts-*")), dirs_exist_ok=True)
    with pytest.raises(Damaged) as damaged:
        read_all(root)
    assert damaged.value.target == str(mine)


def test_a_lost_folder_of_a_target_is_named(fresh: tuple[Path, dict[str, bytes]]) -> None:
    shutil.rmtree(fresh[0] / "b")
    with pytest.raises(TargetLost, match=f"{fresh[0]}/b/ck"):
        read_all(fresh[0])
    with open_checkpoint(f"{fresh[0]}/a/ck") as opened:
        assert {fault.target for fault in opened.check()} == {f"{fresh[0]}/b/ck"}


def test_another_checkpoints_folder_in_place_of_a_target_is_refused(fresh: tuple[Path, dict[str, bytes]]) -> None:
    root = fresh[0]
    shutil.rmtree(root / "b")
    save(f"{root}/x/ck", contents(9), [f"{root}/b"])
    with pytest.raises(TargetLost, match="does not hold this checkpoint"):
        read_all(root)


def test_a_manifest_does_not_lead_to_another_host(tmp_path: Path) -> None:
    opened_urls: list[str] = []
    plan = begin_save(f"{tmp_path}/a/ck", [f"{tmp_path}/b"], unit_bytes=MIB)
    file = write_file(plan, 0, "f", [FilePiece(0, memoryview(content(1, 3 * MIB)))], 3 * MIB)
    commit(plan, [file])
    manifest = tmp_path / "a/ck/MANIFEST"
    before = decode(manifest.read_bytes())
    manifest.write_bytes(encode(msgspec.structs.replace(before, targets=(".", "https://10.0.0.1/secret"))))

    def stores(url: str) -> Store:
        opened_urls.append(url)
        return open_store(url)

    with (
        open_checkpoint(f"{tmp_path}/a/ck", stores=stores) as opened,
        pytest.raises(TargetLost, match="not on the host"),
    ):
        opened.read_bytes(0, 0, 3 * MIB)
    assert opened_urls == [f"{tmp_path}/a/ck"]


def test_a_manifest_leads_to_another_folder_only_if_that_has_a_copy(tmp_path: Path) -> None:
    """Of a folder that a crafted manifest names, one thing is looked at: whether it has a copy of that very manifest."""
    save(f"{tmp_path}/a/ck", {"f": content(1, 3 * MIB)}, [f"{tmp_path}/b"])
    place = tmp_path / "a/ck/MANIFEST"
    crafted = msgspec.structs.replace(decode(place.read_bytes()), targets=(".", f"{tmp_path}/secret"))
    place.write_bytes(encode(crafted))
    shutil.copytree(tmp_path / "b/ck", tmp_path / "secret")
    asked = Faults(lambda _: None)
    with open_checkpoint(f"{tmp_path}/a/ck", stores=asked) as opened:
        with pytest.raises(TargetLost, match=r"does not hold this checkpoint|not a copy"):
            opened.read_bytes(0, 0, 3 * MIB)
        assert len(opened.check()) >= 2
    there = {(operation.name, operation.path) for operation in asked.operations if "secret" in operation.url}
    assert there == {("read_into", f"MANIFEST-{crafted.uuid}")}


def test_moved_targets_are_found_where_the_caller_says(fresh: tuple[Path, dict[str, bytes]]) -> None:
    root, held = fresh
    (root / "a").rename(root / "a2")
    (root / "b").rename(root / "b2")
    with pytest.raises(TargetLost):
        held_by_all = open_checkpoint(f"{root}/a2/ck")
        held_by_all.read_bytes(0, 0, len(held["rank0.bin"]))
    assert held_by(f"{root}/a2/ck", [f"{root}/b2"]) == held
    assert held_by(f"rrck://{root}/a2/ck?also={root}/b2") == held


def test_a_damaged_or_lost_manifest_is_taken_from_a_copy(fresh: tuple[Path, dict[str, bytes]]) -> None:
    root, held = fresh
    manifest = root / "a/ck/MANIFEST"
    spoilt_bytes = bytearray(manifest.read_bytes())
    spoilt_bytes[100] ^= 1
    manifest.write_bytes(spoilt_bytes)
    with pytest.raises(ManifestRefused, match=str(manifest)):
        open_checkpoint(f"{root}/a/ck")
    for _ in range(2):
        with open_checkpoint(f"{root}/a/ck", also=[f"{root}/b"]) as opened:
            assert opened.read_bytes(0, 0, len(held["rank0.bin"])) == held["rank0.bin"]
            assert [fault.part for fault in opened.check()] == ["manifest"]
        manifest.unlink(missing_ok=True)
    with pytest.raises(NotACheckpoint):
        open_checkpoint(f"{root}/a/ck")


@pytest.mark.parametrize("url", ["{}/nothing", "{}/a", "{}/a/ck/MANIFEST"])
def test_what_is_no_checkpoint_says_so(fresh: tuple[Path, dict[str, bytes]], url: str) -> None:
    with pytest.raises(NotACheckpoint, match="robust ckpt list"):
        open_checkpoint(url.format(fresh[0]))


def test_a_checkpoint_saved_anew_while_it_is_read_says_so(fresh: tuple[Path, dict[str, bytes]]) -> None:
    root = fresh[0]
    with open_checkpoint(f"{root}/a/ck") as opened:
        save(f"{root}/a/ck", contents(5), [f"{root}/b"])
        with pytest.raises(Replaced):
            opened.read_bytes(0, 0, 10)


# Targets that misbehave


def test_a_target_that_is_away_for_a_moment_is_asked_again(fresh: tuple[Path, dict[str, bytes]]) -> None:
    failed: set[tuple[str, str]] = set()

    def fault(operation: Operation) -> None:
        key = operation.url, operation.path
        if operation.name.startswith("read") and key not in failed:
            failed.add(key)
            raise Unavailable(operation.url, operation.path, "connection reset")

    with open_checkpoint(f"{fresh[0]}/a/ck", stores=Faults(fault), retry=QUICK, threads=1) as opened:
        assert opened.read_bytes(1, 0, 2_500_001) == fresh[1]["rank1.bin"]
    assert len(failed) >= 4


@pytest.mark.parametrize("error", [Stalled, Unavailable, StoreError])
def test_a_target_that_dies_midway_is_named(fresh: tuple[Path, dict[str, bytes]], error: type[StoreError]) -> None:
    reads = 0

    def fault(operation: Operation) -> None:
        nonlocal reads
        if operation.url.endswith("b/ck") and operation.path.endswith(".part"):
            reads += 1
            if reads > 1:
                raise error(operation.url, operation.path, "no byte for 10 s")

    with open_checkpoint(f"{fresh[0]}/a/ck", stores=Faults(fault), retry=QUICK) as opened:
        with pytest.raises(TargetLost, match=r"b/ck.*no byte for 10 s"):
            for file in (0, 1):
                opened.read_bytes(file, 0, 2_500_000)
        assert {fault.target for fault in opened.check()} == {f"{fresh[0]}/b/ck"}


def test_a_unit_that_does_not_come_is_read_a_second_time(fresh: tuple[Path, dict[str, bytes]]) -> None:
    """The first read of one unit is silent until it is called off."""
    hangs = threading.Semaphore(1)
    released = threading.Event()

    class Silent(Faults):
        def __call__(self, url: str):  # type: ignore[no-untyped-def]
            store = super().__call__(url)
            inner = store.read_into

            def read_into(path, offset_bytes, buffers, cancel=None):  # type: ignore[no-untyped-def]
                if path.endswith(".part") and hangs.acquire(blocking=False):
                    with cancel.calling(released.set):
                        assert released.wait(60)
                    raise Stalled(url, path, "called off")
                inner(path, offset_bytes, buffers, cancel)

            store.read_into = read_into  # type: ignore[method-assign]
            return store

    hedge = Hedge(after_s=0.01, slower=1.0)
    with open_checkpoint(f"{fresh[0]}/a/ck", stores=Silent(lambda _: None), threads=2, hedge=hedge) as opened:
        assert opened.read_bytes(0, 0, 2_500_000) == fresh[1]["rank0.bin"]
    assert released.is_set()


def test_a_wrong_digest_is_read_once_more(fresh: tuple[Path, dict[str, bytes]]) -> None:
    class OnceWrong(Faults):
        reads = 0

        def __call__(self, url: str):  # type: ignore[no-untyped-def]
            store = super().__call__(url)
            inner = store.read_into

            def read_into(path, offset_bytes, buffers, cancel=None):  # type: ignore[no-untyped-def]
                inner(path, offset_bytes, buffers, cancel)
                if path.endswith(".part"):
                    OnceWrong.reads += 1
                    if OnceWrong.reads == 1:
                        buffers[0][0] ^= 1

            store.read_into = read_into  # type: ignore[method-assign]
            return store

    with open_checkpoint(f"{fresh[0]}/a/ck", stores=OnceWrong(lambda _: None), threads=1) as opened:
        assert opened.read_bytes(0, 0, 100) == fresh[1]["rank0.bin"][:100]
    assert OnceWrong.reads == 2


@settings(max_examples=60)
@given(data=st.data())
def test_nothing_found_on_disk_raises_anything_but_our_errors(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    root = tmp_path_factory.mktemp("mangled")
    save(f"{root}/a/ck", {"f": content(1, 1_200_000)}, [f"{root}/b"])
    things = sorted(path for path in root.rglob("*") if path.name != "ck")
    victim = data.draw(st.sampled_from(things))
    if not victim.exists():
        return
    shutil.rmtree(victim) if victim.is_dir() else victim.unlink()
    how = data.draw(st.sampled_from(["gone", "folder", "fifo", "dangling", "loop", "empty", "garbage"]))
    if how == "folder":
        victim.mkdir()
    elif how == "fifo":
        os.mkfifo(victim)
    elif how == "dangling":
        victim.symlink_to("/nowhere/at/all")
    elif how == "loop":
        victim.symlink_to(victim)
    elif how in ("empty", "garbage"):
        victim.write_bytes(b"" if how == "empty" else os.urandom(500))
    with pytest.raises(PlatformError), open_checkpoint(f"{root}/a/ck") as opened:
        if faults := opened.check():
            raise faults[0]
