"""A file counts when who wrote it ended in good order: closed it, synced it, or ended with exit code 0. Else nothing changes."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from jobs import wait_for

from robust_run.ckpt_io.catalog import latest
from robust_run.ckpt_io.reading import open_checkpoint

from .conftest import Mount

SAVERS = Path(__file__).with_name("ending_savers.py")
DATA = b"new!" * (3 << 18)
"""What they write."""

OLD = b"old" * 800_000  # more than a unit: a part on each target
KILLED_IN_THE_MIDDLE = (
    "waits",
    "waits_with_threads",
    "waits_without_its_first_thread",
    "waits_before_the_first_byte",
    "waits_with_a_child_that_goes_on",
    "waits_after_a_copy_was_closed",
    "waits_after_a_child_closed_its_copy",
    "waits_while_a_thread_of_it_writes",
    "waits_after_renaming_it_half_written",
)
ENDS_IN_THE_MIDDLE = (
    "aborts",
    "ends_with_1",
    "ends_with_3_from_a_thread",
    "executes_another_program",
    "executes_while_a_thread_writes",
)
WHOLE = (
    "closes",
    "ends_with_0",
    "ends_with_0_and_threads",
    "ends_with_0_from_a_thread",
    "is_killed_after_closing",
    "is_killed_after_syncing",
    "has_a_child_that_is_killed_with_a_copy",
    "closes_copies_in_the_middle",
    "hands_it_to_another_process",
    "has_children_that_write",
    "renames_it_while_it_is_open",
)


@pytest.fixture
def point(mounted: Mount, tmp_path: Path) -> Path:
    """A writable mount of `a`, with a second target `b`."""
    return Path(mounted(tmp_path / "a", also=(str(tmp_path / "b"),), writable=True, unit_bytes=1 << 20).point)


def started(how: str, path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, str(SAVERS), how, str(path)], stdout=subprocess.PIPE, text=True)


def killed(how: str, path: Path, number: signal.Signals = signal.SIGKILL) -> None:
    """Run a saver until it waits, and kill it."""
    with started(how, path) as saver:
        assert saver.stdout is not None
        assert saver.stdout.readline() == "ready\n"
        saver.send_signal(number)


def run(how: str, path: Path) -> None:
    with started(how, path) as saver:
        saver.communicate(timeout=120)


def held(folder: Path) -> bytes | None:
    """Return what a name stands for, not through the mount; all of it is verified."""
    if not (folder / "MANIFEST").exists():
        return None
    with open_checkpoint(str(folder)) as checkpoint:
        assert checkpoint.check() == []
        return checkpoint.read_bytes(0, 0, checkpoint.manifest.files[0].size_bytes)


def assert_nothing_changed(point: Path, root: Path) -> None:
    """The old one is whole, and nothing of another save is left once the last descriptor is gone."""
    assert held(root / "x") == OLD
    assert (point / "x").read_bytes() == OLD
    assert held(root / "new") is None
    wait_for(lambda: os.listdir(point) == ["x"], "the name to be free")
    for folder in (root, root.with_name("b")):
        wait_for(lambda folder=folder: len(list(folder.rglob("*.part"))) == 1, f"no parts of dead saves in {folder}")


@pytest.mark.parametrize("how", KILLED_IN_THE_MIDDLE)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_who_is_killed_in_the_middle_changed_nothing(
    point: Path, tmp_path: Path, how: str, number: signal.Signals
) -> None:
    (point / "x").write_bytes(OLD)
    killed(how, point / "x", number)
    killed(how, point / "new", number)
    assert_nothing_changed(point, tmp_path / "a")


@pytest.mark.parametrize("how", ENDS_IN_THE_MIDDLE)
def test_who_fails_in_the_middle_changed_nothing(point: Path, tmp_path: Path, how: str) -> None:
    (point / "x").write_bytes(OLD)
    run(how, point / "x")
    run(how, point / "new")
    assert_nothing_changed(point, tmp_path / "a")


@pytest.mark.parametrize("how", WHOLE)
def test_who_ended_it_in_good_order_has_saved_it(point: Path, tmp_path: Path, how: str) -> None:
    (point / "x").write_bytes(OLD)
    for name in ("x", "new"):
        run(how, point / name)
        assert held(tmp_path / "a" / name) == DATA
    assert sorted(os.listdir(point)) == ["new", "x"]


def test_what_was_synced_stays_and_what_came_after_it_is_dropped(point: Path, tmp_path: Path) -> None:
    (point / "x").write_bytes(OLD)
    killed("waits_after_a_sync_and_more", point / "x")
    assert held(tmp_path / "a" / "x") == DATA
    wait_for(lambda: len(list((tmp_path / "a").rglob("*.part"))) == 1, "no parts of the second save")


def test_a_child_that_is_killed_when_its_parent_has_closed_the_file_changed_nothing(
    point: Path, tmp_path: Path
) -> None:
    (point / "x").write_bytes(OLD)
    killed("waits_as_a_child_whose_parent_closed", point / "x", signal.SIGTERM)
    assert_nothing_changed(point, tmp_path / "a")


def test_a_file_that_was_to_be_renamed_is_no_checkpoint_when_its_writer_is_killed(point: Path, tmp_path: Path) -> None:
    (point / "step-2.pt").write_bytes(OLD)
    killed("waits", point / "step-3.pt.tmp")
    (point / "step-4.pt.tmp").write_bytes(DATA)  # closed, but not renamed: who wrote it was killed before that
    found = latest(str(tmp_path / "a"))
    assert found is not None and found.name == "step-2.pt"


def test_tools_that_write_files_are_believed(point: Path, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(DATA)
    for name, script in {
        "cp": 'cp "$1" "$2"',
        "cat": 'cat "$1" > "$2"',
        "dd": 'dd if="$1" of="$2" bs=64k',
        "group": '(head -c 100 "$1"; tail -c +101 "$1") > "$2"',
        "exec": 'exec cat "$1" > "$2"',
        "pipe": 'cat "$1" | tee "$2" > /dev/null',
        "python": f'{sys.executable} -c "import os, sys; os.write(1, open(sys.argv[1], \'rb\').read())" "$1" > "$2"',
        "grep": '{ cat "$1"; grep -q nothing "$1"; } > "$2"',
    }.items():
        for shell in ("sh", "bash"):
            path = point / f"{name}-{shell}"
            subprocess.run([shell, "-c", script, shell, tmp_path / "data", path], check=False, capture_output=True)
            assert held(tmp_path / "a" / path.name) == DATA, path.name


def test_two_who_write_one_name(point: Path, tmp_path: Path) -> None:
    """Each writes a file of its own, whatever the other one does; the one that ends last has the name."""
    (point / "x").write_bytes(OLD)
    first = os.open(point / "x", os.O_WRONLY | os.O_TRUNC)
    os.write(first, b"1" * (2 << 20))
    second = os.open(point / "x", os.O_WRONLY | os.O_TRUNC)
    os.write(second, b"2" * (2 << 20))
    os.write(first, b"1" * 1000)
    assert held(tmp_path / "a" / "x") == OLD
    os.close(second)
    assert held(tmp_path / "a" / "x") == b"2" * (2 << 20)
    assert (point / "x").stat().st_size == (2 << 20) + 1000
    os.write(first, b"1")
    os.close(first)
    assert held(tmp_path / "a" / "x") == (point / "x").read_bytes() == b"1" * ((2 << 20) + 1001)
    wait_for(lambda: len(list((tmp_path / "a").rglob("*.part"))) == 1, "no parts of the other one")


def test_two_who_write_one_name_and_one_is_killed_or_refused(point: Path, tmp_path: Path) -> None:
    with (point / "x").open("wb", buffering=0) as file:
        file.write(b"1" * (2 << 20))
        killed("waits", point / "x")
        other = os.open(point / "x", os.O_WRONLY | os.O_TRUNC)
        with pytest.raises(OSError, match="Illegal seek"):
            os.pwrite(other, b"2", 10)
        with pytest.raises(OSError, match="Input/output"):
            os.close(other)
        file.write(b"1" * 1000)
        assert held(tmp_path / "a" / "x") is None
    assert held(tmp_path / "a" / "x") == b"1" * ((2 << 20) + 1000)


def test_who_renames_what_another_one_writes_too_has_saved_its_own(point: Path, tmp_path: Path) -> None:
    """As ranks do that all write x.tmp and rename it."""
    (point / "x").write_bytes(OLD)
    first, second = (os.open(point / "x.tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for _ in range(2))
    os.write(first, b"1" * 1000)
    os.write(second, b"2" * 1000)
    os.close(first)
    os.rename(point / "x.tmp", point / "x")
    assert held(tmp_path / "a" / "x") == b"1" * 1000
    os.write(second, b"2")
    os.close(second)
    assert held(tmp_path / "a" / "x") == b"2" * 1001
    assert os.listdir(point) == ["x"]


def test_ranks_that_save_one_name_at_once(point: Path, tmp_path: Path) -> None:
    with started("ranks_that_torch_save_one_name", point / "x.pt") as saver:
        saver.communicate(timeout=240)
    assert saver.returncode == 0
    data = held(tmp_path / "a" / "x.pt")
    assert data is not None
    assert torch.equal(torch.load(io.BytesIO(data))["w"], torch.arange(2_000_000))
    wait_for(lambda: len(list((tmp_path / "a" / "x.pt").glob("parts-*"))) == 1, "no parts of the others")


def test_who_had_synced_it_adds_nothing_to_what_another_one_wrote_since(point: Path, tmp_path: Path) -> None:
    first = os.open(point / "x", os.O_WRONLY | os.O_CREAT)
    os.write(first, b"1" * 1000)
    os.fsync(first)
    (point / "x").write_bytes(b"2" * 1000)
    with pytest.raises(OSError, match="Input/output"):
        os.write(first, b"1" * 1000)
    with pytest.raises(OSError, match="Input/output"):
        os.close(first)
    assert held(tmp_path / "a" / "x") == b"2" * 1000


def test_who_renamed_it_after_a_sync_writes_on_under_the_new_name(point: Path, tmp_path: Path) -> None:
    descriptor = os.open(point / "x.tmp", os.O_WRONLY | os.O_CREAT)
    os.write(descriptor, b"1" * 1000)
    os.fsync(descriptor)
    os.rename(point / "x.tmp", point / "x")
    assert held(tmp_path / "a" / "x") == b"1" * 1000
    os.write(descriptor, b"2" * 1000)
    os.close(descriptor)
    assert held(tmp_path / "a" / "x") == b"1" * 1000 + b"2" * 1000
    assert os.listdir(point) == ["x"]


def test_a_file_of_that_name_elsewhere_is_another_file(point: Path, tmp_path: Path) -> None:
    """Programs that write to two places close one before the other: it is there when `close` returns."""
    (tmp_path / "elsewhere").mkdir()
    with (tmp_path / "elsewhere" / "x").open("wb") as other:
        (point / "x").write_bytes(DATA)
        assert held(tmp_path / "a" / "x") == DATA
        other.write(DATA)


def test_who_cuts_a_file_by_its_name_is_no_author_of_it(point: Path, tmp_path: Path) -> None:
    with (point / "x").open("wb", buffering=0) as file:
        file.write(b"1" * 1000)
        subprocess.run(
            [sys.executable, "-c", "import os, sys; os.truncate(sys.argv[1], 2000)", point / "x"], check=True
        )
    assert held(tmp_path / "a" / "x") == b"1" * 1000 + bytes(1000)


def test_what_is_removed_while_it_is_written_does_not_come_back(point: Path, tmp_path: Path) -> None:
    descriptor = os.open(point / "x", os.O_WRONLY | os.O_CREAT)
    os.write(descriptor, b"1" * 1000)
    os.unlink(point / "x")
    os.write(descriptor, b"1" * 1000)
    os.close(descriptor)
    assert os.listdir(point) == []
    assert held(tmp_path / "a" / "x") is None


def test_the_log_says_what_was_not_saved_and_why(mounted: Mount, tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        from robust_run.ckpt_io.mount.manage import mount
        from robust_run.ckpt_io.mount.types import MountOptions

        options = MountOptions(url=str(tmp_path / "a"), point=str(tmp_path / "mnt"), lifeline=True, writable=True)
        with mount(options, lambda _: None, log=log) as made:
            killed("waits", Path(made.point) / "x")
            run("ends_with_1", Path(made.point) / "y")
    said = (tmp_path / "log").read_text()
    assert "robust: x: not saved: process" in said
    assert f"was killed by SIGKILL after {len(DATA)} bytes. What the name stood for before stays as it was\n" in said
    assert "robust: y: not saved: process" in said and "ended with exit code 1 and did not close it" in said
