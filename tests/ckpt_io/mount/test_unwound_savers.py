"""A file that an exception closed in the middle is not what its name stands for, where its format shows that it is not whole."""

from __future__ import annotations

import io
import os
import signal
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from forks import Forked, Forker, environment
from jobs import wait_for
from safetensors.torch import save as save_safetensors

from robust_run.ckpt_io.catalog import latest
from robust_run.ckpt_io.mount.manage import mount
from robust_run.ckpt_io.mount.types import MountOptions

from ..foreign.test_torch_records import WHOLE
from .test_ending_savers import OLD, held

SAVERS = Path(__file__).with_name("unwound_savers.py")
UNIT_BYTES = 1 << 20
Signalled = Callable[[str, Path, signal.Signals], int]
pytestmark = pytest.mark.filterwarnings("ignore")  # torch's, of what is deprecated


@pytest.fixture
def point(fuse: None, tmp_path: Path) -> Iterator[Path]:
    """A writable mount of `a` with a second target `b`, that says what it has to say to `log`."""
    options = MountOptions(
        url=str(tmp_path / "a"), point=str(tmp_path / "mnt"), also=(str(tmp_path / "b"),),
        lifeline=True, writable=True, unit_bytes=UNIT_BYTES,
    )  # fmt: skip
    with (tmp_path / "log").open("wb") as log, mount(options, lambda _: None, log=log) as made:
        yield Path(made.point)


def said(tmp_path: Path) -> list[str]:
    return [line for line in (tmp_path / "log").read_text().splitlines() if line.startswith("robust:")]


@pytest.fixture
def signalled(forker: Forker, tmp_path: Path) -> Signalled:
    """Run a saver until it waits, send it a signal, and return its exit code. It is forked: it need not import torch again."""

    def run(how: str, path: Path, number: signal.Signals) -> int:
        env = environment(ROBUST_TEST_LOCAL=str(tmp_path / "local"))
        saver = Forked(forker, (str(SAVERS), how, str(path)), tmp_path, env)
        try:
            assert saver.stdout.readline() == "ready\n"
            os.kill(saver.pid, number)
        finally:
            code = saver.wait()
        return code

    return run


def aside(root: Path) -> list[Path]:
    return list(root.glob("*.unfinished"))


KEPT = (
    "torch_save_is_left",
    "torch_save_is_left_while_it_pickles",
    "torch_save_to_a_file_is_left",
    "numpy_save_is_left",
    "a_copy_is_left",
    "safetensors_are_left",
)


@pytest.mark.parametrize(
    ("how", "number"),
    [
        *((how, signal.SIGTERM) for how in (*KEPT, "is_left_before_the_first_byte")),
        ("torch_save_is_left", signal.SIGINT),
        ("numpy_save_is_left", signal.SIGINT),
    ],
)
def test_what_an_exception_closed_in_the_middle_changes_nothing(
    point: Path, tmp_path: Path, signalled: Signalled, how: str, number: signal.Signals
) -> None:
    (point / "step-1.pt").write_bytes(OLD)
    names = ("step-1.pt", "step-2.pt") if how in KEPT else ("step-1.pt",)
    for count, name in enumerate(names, 1):
        assert signalled(how, point / name, number) != 0
        assert held(tmp_path / "a" / "step-1.pt") == OLD
        assert held(tmp_path / "a" / "step-2.pt") is None
        newest = latest(str(tmp_path / "a"))
        assert newest is not None and newest.name == "step-1.pt"
        wait_for(
            lambda name=name: [line for line in said(tmp_path) if f"{name}: not saved: it was closed" in line], "a line"
        )
        assert len(said(tmp_path)) == count
        assert len(aside(tmp_path / "a")) == (count if how in KEPT else 0)


@pytest.mark.parametrize(
    "how", ["saves_in_its_handler", "saves_the_same_name_in_its_handler_while_it_saves", "goes_on_after_its_handler"]
)
def test_what_is_saved_in_good_order_after_a_signal_is_saved(
    point: Path, tmp_path: Path, signalled: Signalled, how: str
) -> None:
    (point / "x.pt").write_bytes(OLD)
    signalled(how, point / "x.pt", signal.SIGTERM)
    data = held(tmp_path / "a" / "x.pt")
    assert data is not None
    assert torch.equal(torch.load(io.BytesIO(data))["last"], torch.ones(200_000))


def test_a_process_that_lives_is_told_and_what_was_kept_can_be_renamed(point: Path, tmp_path: Path) -> None:
    data = whole_state()
    with pytest.raises(OSError, match="Input/output"):
        (point / "x").write_bytes(data[:-1])
    assert os.listdir(point) == [each.name for each in aside(tmp_path / "a")]
    (line,) = said(tmp_path)
    assert "x: not saved: it was closed after" in line and f"It is kept as {aside(tmp_path / 'a')[0].name}" in line
    (kept,) = aside(point)
    kept.rename(point / "y")
    assert held(tmp_path / "a" / "y") == data[:-1]
    assert os.listdir(point) == ["y"]


def test_what_is_not_whole_gets_no_other_name(point: Path, tmp_path: Path) -> None:
    (point / "x").write_bytes(OLD)
    descriptor = os.open(point / "x.tmp", os.O_WRONLY | os.O_CREAT)
    os.write(descriptor, whole_state()[:-1])
    os.rename(point / "x.tmp", point / "x")
    with pytest.raises(OSError, match="Input/output"):
        os.close(descriptor)
    assert held(tmp_path / "a" / "x") == OLD


def whole_state() -> bytes:
    buffer = io.BytesIO()
    torch.save({f"layer{number}": torch.ones(70_000) for number in range(10)}, buffer)
    return buffer.getvalue()


def many_names() -> bytes:
    """The directory of it is longer than what is held of it while it is written."""
    buffer = io.BytesIO()
    torch.save({f"layer.{number}.weight": torch.ones(1) for number in range(3000)}, buffer)
    return buffer.getvalue()


def arrays(*all_of_them: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    for array in all_of_them:
        np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def zip64() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("x", bytes(1000))
        archive.filelist += archive.filelist * 66_000
    return buffer.getvalue()


COMMITTED: dict[str, Callable[[], bytes]] = WHOLE | {
    "many names": many_names,
    "several units": whole_state,
    "more behind it": lambda: whole_state() + os.urandom(3 * UNIT_BYTES),
    "one behind the other": lambda: whole_state() + many_names(),
    "zip64": zip64,
    "safetensors": lambda: save_safetensors({"a": torch.ones(9000), "e": torch.empty(0)}, {"format": "pt"}),
    "safetensors and more": lambda: save_safetensors({"a": torch.ones(9000)}) + b"more",
    "no safetensors": lambda: (5).to_bytes(8, "little") + b"{'a'}" + bytes(1000),
    "numbers": lambda: arrays(np.arange(400_000)),
    "objects": lambda: arrays(np.array([{}, "x"], dtype=object)),
    "two arrays": lambda: arrays(np.arange(10), np.arange(3)),
    "text": lambda: b"PK and so on",
    "one byte": lambda: b"P",
    "the start of a name": lambda: b"\x93NUMPX",
}


def test_whole_files_of_all_kinds_are_saved(point: Path, tmp_path: Path) -> None:
    for kind, make in COMMITTED.items():
        if kind == "an empty zip archive":  # which begins with its end
            continue
        data = make()
        for _ in range(2):
            (point / "x").write_bytes(data)
            assert held(tmp_path / "a" / "x") == data, kind
    assert said(tmp_path) == []


@pytest.mark.parametrize("kind", ["several units", "many names", "safetensors", "numbers"])
def test_a_sync_in_the_middle_waits_for_the_end(point: Path, tmp_path: Path, kind: str) -> None:
    (point / "x").write_bytes(OLD)
    data = COMMITTED[kind]()
    with (point / "x").open("wb", buffering=0) as file:
        for at in range(0, len(data), 1 << 18):
            assert held(tmp_path / "a" / "x") == OLD
            file.write(data[at : at + (1 << 18)])
            os.fsync(file.fileno())
        assert held(tmp_path / "a" / "x") == data
    assert held(tmp_path / "a" / "x") == data


def test_an_empty_file_replaces_nothing_unless_it_is_synced(point: Path, tmp_path: Path) -> None:
    (point / "x").write_bytes(OLD)
    (point / "x").open("wb").close()
    wait_for(lambda: said(tmp_path), "a line")
    assert held(tmp_path / "a" / "x") == (point / "x").read_bytes() == OLD
    (line,) = said(tmp_path)
    assert "x: not saved: it was closed and nothing was written to it" in line
    with (point / "x").open("wb") as file:
        os.fsync(file.fileno())
    assert held(tmp_path / "a" / "x") == b""
    for name in ("x", "new"):
        (point / name).open("wb").close()
        assert (point / name).read_bytes() == b""
        wait_for(lambda name=name: held(tmp_path / "a" / name) == b"", "an empty file")
    assert len(said(tmp_path)) == 1


def test_an_empty_file_in_the_place_of_one_that_was_removed_is_one(point: Path, tmp_path: Path) -> None:
    (point / "x").write_bytes(OLD)
    (point / "x").unlink()
    (point / "x").open("wb").close()
    wait_for(lambda: held(tmp_path / "a" / "x") == b"", "an empty file")
