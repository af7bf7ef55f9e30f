"""What reaches storage, when, and in which order; what is seen meanwhile."""

from __future__ import annotations

import errno
import io
import os
import zipfile
from pathlib import Path

import pytest
from made_memory_folders import NO_SPACE, READ_ONLY, MadeFolder, tree_of

from robust_run.ckpt_io.memory.budget import MemoryFacts
from robust_run.ckpt_io.memory_dir.layers import SETTLE_S, SETTLE_TEMPORARY_S
from robust_run.ckpt_io.mount.callers import Caller

MIB = 1 << 20


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    return tmp_path / "storage"


@pytest.fixture
def made(storage: Path) -> MadeFolder:
    return MadeFolder(storage)


def test_the_newest_goes_first(made: MadeFolder, storage: Path) -> None:
    for step in (1, 2, 3):
        made.write(f"step-{step}.pt", b"%d" % step)
    made.step()
    assert tree_of(storage) == {"step-3.pt": b"3"}
    made.flush()
    assert tree_of(storage) == made.tree() == {"step-1.pt": b"1", "step-2.pt": b"2", "step-3.pt": b"3"}


def test_what_was_replaced_before_it_was_flushed_is_never_copied(made: MadeFolder, storage: Path) -> None:
    for step in range(5):
        made.write("last.pt", bytes([step]) * MIB)
    made.flush()
    assert tree_of(storage) == {"last.pt": bytes([4]) * MIB}
    assert made.flusher.done_bytes == MIB


def test_one_that_is_replaced_or_removed_while_it_is_copied_gets_there_all_the_same(
    made: MadeFolder, storage: Path
) -> None:
    made.write("last.pt", b"one")
    made.flusher.meanwhile = lambda: made.write("last.pt", b"two")
    made.step()
    assert tree_of(storage) == {"last.pt": b"one"}, "else nothing would reach a storage that is slower than the program"
    made.flusher.meanwhile = lambda: made.operations.unlink("/last.pt")
    made.step()
    assert made.tree() == {}
    assert tree_of(storage) == {"last.pt": b"two"}
    made.flush()
    assert tree_of(storage) == {}


def test_storage_is_never_left_with_nothing_while_a_program_keeps_its_last_two(made: MadeFolder, storage: Path) -> None:
    for step in range(1, 40):
        made.write(f"step-{step}", b"%d" % step)
        if step > 2:
            made.operations.unlink(f"/step-{step - 2}")
        if step % 5 == 0:  # storage is slower
            made.flusher.meanwhile = lambda step=step: made.write(f"step-{step}.more", b"")
            made.step()
            made.flusher.meanwhile = None
        assert step < 5 or tree_of(storage), step
    made.flush()
    assert tree_of(storage) == made.tree()


def test_a_removal_waits_for_what_was_written_before_it(made: MadeFolder, storage: Path) -> None:
    made.write("old", b"1")
    made.flush()
    made.write("new", b"2")
    made.operations.unlink("/old")
    assert made.storage is not None
    made.storage.error = NO_SPACE
    made.step()
    made.storage.error = 0
    assert tree_of(storage) == {"old": b"1"}
    made.now_s += 100.0
    made.flush()
    assert tree_of(storage) == {"new": b"2"}


def test_a_folder_that_is_new_appears_at_once_with_all_its_files(made: MadeFolder, storage: Path) -> None:
    made.operations.mkdir("/step-1", 0o755)
    for name in ("a", "b"):
        made.write(f"step-1/{name}", name.encode())
    made.flusher.meanwhile = lambda: (tree_of(storage) == {}) or pytest.fail("half of it is there")
    made.now_s += 10.0
    made.step(is_last=False)
    assert tree_of(storage) == {"step-1": None, "step-1/a": b"a", "step-1/b": b"b"}
    made.write("step-1/c", b"c")
    made.flush()
    assert tree_of(storage) == made.tree()


def test_a_folder_in_which_a_file_is_being_written_waits(made: MadeFolder, storage: Path) -> None:
    made.operations.mkdir("/step-1", 0o755)
    made.write("step-1/a", b"a")
    handle = made.operations.create("/step-1/b", 0o644)
    made.now_s += 100.0
    assert not made.step(is_last=False)
    made.operations.flush("", handle)
    made.operations.release("", handle)
    made.now_s += 100.0
    made.step(is_last=False)
    assert tree_of(storage) == {"step-1": None, "step-1/a": b"a", "step-1/b": b""}


def test_a_folder_that_is_written_to_all_the_time_is_one_of_checkpoints(made: MadeFolder, storage: Path) -> None:
    made.operations.mkdir("/run", 0o755)
    for step in range(200):
        made.operations.mkdir(f"/run/step-{step}", 0o755)
        made.write(f"run/step-{step}/a", b"%d" % step)
        made.now_s += 1.0
        while made.step(is_last=False):
            pass
    assert {f"run/step-{step}/a" for step in range(197)} <= tree_of(storage).keys()
    made.flush()
    assert tree_of(storage) == made.tree()


def test_a_temporary_name_waits_to_be_renamed(made: MadeFolder, storage: Path) -> None:
    made.write("step-1.pt.tmp", b"1")
    made.now_s += SETTLE_S
    assert not made.step(is_last=False)
    made.operations.rename("/step-1.pt.tmp", "/step-1.pt")
    made.now_s += SETTLE_S
    made.step(is_last=False)
    assert tree_of(storage) == {"step-1.pt": b"1"}
    made.write("b.tmp", b"2")
    made.now_s += SETTLE_TEMPORARY_S
    while made.step(is_last=False):
        pass
    assert tree_of(storage) == made.tree()


def test_what_storage_has_is_renamed_there_and_not_copied_again(made: MadeFolder, storage: Path) -> None:
    made.write("now.pt", bytes(MIB))
    made.flush()
    made.operations.rename("/now.pt", "/best.pt")
    made.flush()
    assert tree_of(storage) == {"best.pt": bytes(MIB)}
    assert made.flusher.done_bytes == MIB


def test_what_lies_in_storage_alone_is_seen_read_renamed_and_removed(storage: Path) -> None:
    (storage / "step-1").mkdir(parents=True)
    (storage / "step-1" / "a").write_bytes(b"a")
    (storage / "b").write_bytes(b"b")
    made = MadeFolder(storage)
    assert made.tree() == {"step-1": None, "step-1/a": b"a", "b": b"b"}
    made.operations.rename("/step-1", "/step-2")
    made.operations.rename("/b", "/step-2/b")
    assert made.tree() == {"step-2": None, "step-2/a": b"a", "step-2/b": b"b"}
    made.operations.unlink("/step-2/a")
    made.flush()
    assert tree_of(storage) == made.tree() == {"step-2": None, "step-2/b": b"b"}


def test_a_reader_keeps_what_it_opened_whatever_becomes_of_the_name(made: MadeFolder, storage: Path) -> None:
    made.write("a", b"one")
    handle = made.operations.open("/a", os.O_RDONLY)
    made.flush()
    assert made.layers.drop_oldest()
    made.write("a", b"three")
    assert made.read_open(handle) == b"one"
    assert made.read("a") == b"three"
    made.operations.unlink("/a")
    assert made.read_open(handle) == b"one"


def test_a_file_is_changed_in_place_in_a_copy_that_is_seen_when_it_is_closed(made: MadeFolder) -> None:
    made.write("a", b"hello")
    handle = made.operations.open("/a", os.O_RDWR)
    made.operations.write_from(memoryview(b"J"), 0, handle)
    made.operations.truncate(None, 4, handle)
    assert made.read("a") == b"hello"
    made.operations.flush("", handle)
    made.operations.release("", handle)
    assert made.read("a") == b"Jell"


@pytest.mark.parametrize("error", [NO_SPACE, READ_ONLY])
def test_storage_that_takes_nothing_is_said_once_and_tried_again(made: MadeFolder, storage: Path, error: int) -> None:
    assert made.storage is not None
    made.storage.error = error
    for step in (1, 2, 3):
        made.write("last.pt", b"%d" % step)
        made.now_s += 100.0
        made.step(is_last=False)
    assert made.read("last.pt") == b"3"
    assert len(made.said) == 1 and os.strerror(error) in made.said[0] and "stays in memory" in made.said[0]
    made.storage.error = 0
    made.now_s += 100.0
    made.step(is_last=False)
    assert tree_of(storage) == {"last.pt": b"3"}
    assert made.said[1:] == [f"files are written to {storage} again"]


def test_the_end_says_what_was_written_and_what_could_not_be(made: MadeFolder, storage: Path) -> None:
    made.write("a", b"1" * 100)
    made.flusher.start()
    written = made.flusher.finish(None, lambda done, of: None, 1.0)
    assert (written.files, written.bytes, written.lost_files) == (1, 100, 0)
    other = MadeFolder(storage)
    assert other.storage is not None
    other.storage.error = NO_SPACE
    other.write("b", b"2")
    other.flusher.start()
    written = other.flusher.finish(20.0, lambda done, of: None, 1.0)
    assert (written.files, written.lost, written.why) == (0, ("b",), os.strerror(NO_SPACE))
    assert tree_of(storage) == {"a": b"1" * 100}


# --- memory


def test_without_room_a_write_fails_and_what_was_there_stays(tmp_path: Path) -> None:
    made = MadeFolder(None, limit_bytes=4 * MIB)
    made.write("a", bytes(3 * MIB))
    with pytest.raises(OSError, match="No space") as failed:
        made.write("b", bytes(2 * MIB))
    assert failed.value.errno == errno.ENOSPC
    assert made.names() == ["a"]
    assert len(made.said) == 1 and "--ckpt-memory allows 4.0 MiB" in made.said[0]
    made.operations.unlink("/a")
    made.write("b", bytes(3 * MIB))


def test_what_storage_has_makes_room_and_the_rest_goes_there_directly(storage: Path) -> None:
    made = MadeFolder(storage, limit_bytes=4 * MIB)
    made.write("a", b"a" * (3 * MIB))
    made.write("b", b"b" * (3 * MIB))
    assert len(made.said) == 1 and f"goes to {storage} directly" in made.said[0]
    assert made.tree() == {"a": b"a" * (3 * MIB), "b": b"b" * (3 * MIB)}
    assert tree_of(storage) == {}, "no name is there before it is whole"
    made.flush()
    assert tree_of(storage) == made.tree()
    made.write("c", b"c" * (3 * MIB))
    assert tree_of(storage) == {"a": b"a" * (3 * MIB), "b": b"b" * (3 * MIB)}
    made.flush()
    assert tree_of(storage) == made.tree()
    assert len(made.said) == 1


def test_memory_that_the_node_does_not_have_is_not_taken() -> None:
    made = MadeFolder(None, facts=MemoryFacts(total_bytes=8 << 30, available_bytes=2 * MIB))
    with pytest.raises(OSError, match="No space"):
        made.write("a", bytes(2 * MIB))


# --- writers that do not end in good order


def test_a_writer_that_was_killed_changes_nothing(made: MadeFolder) -> None:
    made.write("last.pt", b"whole")
    handle = made.operations.create("/last.pt", 0o644)
    made.operations.write_from(memoryview(b"ha"), 0, handle)
    made.callers.ending = Caller(1, "killed", "process 1 was killed by SIGKILL")
    made.operations.flush("", handle)
    made.operations.release("", handle)
    assert made.tree() == {"last.pt": b"whole"}
    assert "process 1 was killed by SIGKILL after 2 bytes" in made.said[0]


def test_a_zip_archive_that_is_cut_off_is_not_saved(made: MadeFolder) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a", b"a" * 1000)
    made.write("a.pt", archive.getvalue())
    with pytest.raises(OSError, match="without its directory"):
        made.write("a.pt", archive.getvalue()[:500])
    assert made.read("a.pt") == archive.getvalue()


def test_closing_with_nothing_written_replaces_no_file(made: MadeFolder) -> None:
    made.write("a", b"bytes")
    made.write("a", b"")
    assert made.tree() == {"a": b"bytes"}
