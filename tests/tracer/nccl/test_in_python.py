"""The plugin inside Python, which has handlers of its own: whoever comes first or last, training does not die of a lost file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from robust_run.tracer.plugin import layout

#: Has the plugin loaded as NCCL does, then does what the test says.
PROGRAM = """
import ctypes, faulthandler, mmap, os, signal, sys

class Table(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("name", "init", "start", "stop", "state", "finalize")]

plugin = ctypes.CDLL(sys.argv[1])
path = os.environ["ROBUST_NCCL_TRACE"]
init = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint64, ctypes.POINTER(ctypes.c_int), ctypes.c_char_p,
    ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p,
)(Table.in_dll(plugin, "ncclProfiler_v6").init)

def use():
    context, mask = ctypes.c_void_p(), ctypes.c_int()
    assert init(ctypes.byref(context), 7, ctypes.byref(mask), b"dp_0", 1, 2, 0, None) == 0
    return mask.value

def touch_another_file_that_was_cut():
    with open(path + ".other", "w+b") as file:
        file.truncate(4096)
        other = mmap.mmap(file.fileno(), 4096)
        file.truncate(0)
        other[0] = 1

steps = {
    "enable": faulthandler.enable,
    "disable": faulthandler.disable,
    "use": lambda: print(use()),
    "cut": lambda: os.truncate(path, 0),
    "other": touch_another_file_that_was_cut,
    "raise": lambda: signal.raise_signal(signal.SIGBUS),
    "kill": lambda: os.kill(os.getpid(), signal.SIGBUS),
    "own": lambda: signal.signal(signal.SIGBUS, lambda *_: print("handled")),
    "ignore": lambda: signal.signal(signal.SIGBUS, signal.SIG_IGN),
    "say": lambda: print("alive"),
    "register": lambda: faulthandler.register(61, file=open(path + ".stacks", "w"), all_threads=True, chain=False),
    "signal": lambda: signal.raise_signal(61),
}
for step in sys.argv[2:]:
    steps[step]()
    sys.stdout.flush()
"""

BUS = -7
TRACED, NOT_TRACED = "30", "0"


def play(plugin: str, path: Path, *steps: str) -> tuple[int, list[str], str]:
    layout.create(str(path))
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, plugin, *steps],
        env={**os.environ, layout.PATH_VARIABLE: str(path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return result.returncode, result.stdout.split(), result.stderr


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.nccl"


@pytest.mark.parametrize(
    "order",
    [
        ("use",),
        ("enable", "use"),
        ("use", "enable"),
        ("enable", "use", "enable"),
    ],
    ids="-".join,
)
def test_a_file_that_is_cut_short_ends_the_tracing_and_not_the_program(
    plugin: str, path: Path, order: tuple[str, ...]
) -> None:
    """Only `faulthandler.disable()` after an `enable()` from before NCCL takes our handler away with its own."""
    code, said, errors = play(plugin, path, *order, "cut", "use", "use", "say")
    assert (code, said) == (0, [TRACED, NOT_TRACED, NOT_TRACED, "alive"]), errors


@pytest.mark.parametrize("order", [("use",), ("enable", "use"), ("use", "enable")], ids="-".join)
@pytest.mark.parametrize("end", ["other", "raise", "kill"])
def test_a_bus_error_of_the_program_s_own_ends_it_as_ever(
    plugin: str, path: Path, order: tuple[str, ...], end: str
) -> None:
    code, said, errors = play(plugin, path, *order, end, "say")
    assert (code, said) == (BUS, [TRACED]), errors
    assert ("Fatal Python error: Bus error" in errors) == ("enable" in order)


def test_a_program_that_ignores_the_signal_lives_on(plugin: str, path: Path) -> None:
    assert play(plugin, path, "ignore", "use", "kill", "say")[:2] == (0, [TRACED, "alive"])
    assert play(plugin, path, "ignore", "use", "other", "say")[0] == BUS, "an access that failed cannot be ignored"


def test_a_bus_error_of_the_program_after_the_file_was_lost(plugin: str, path: Path) -> None:
    assert play(plugin, path, "use", "enable", "cut", "use", "raise", "say")[0] == BUS


def test_a_handler_of_the_program_is_left_in_place(plugin: str, path: Path) -> None:
    assert play(plugin, path, "own", "use", "raise", "say")[:2] == (0, [TRACED, "handled", "alive"])


@pytest.mark.parametrize(
    "order", [("register", "use"), ("use", "register"), ("register", "use", "enable")], ids="-".join
)
def test_stacks_are_shown_by_signal_as_without_it(plugin: str, path: Path, order: tuple[str, ...]) -> None:
    code, said, errors = play(plugin, path, *order, "signal", "cut", "use", "signal", "say")
    assert (code, said) == (0, [TRACED, NOT_TRACED, "alive"]), errors
    assert Path(f"{path}.stacks").read_text().count("most recent call first") == 2


def test_all_room_is_had_before_the_first_use(plugin: str, path: Path) -> None:
    """A file system that fills up later cannot take it back."""
    layout.create(str(path))
    before = path.stat().st_blocks * 512
    play(plugin, path, "use")
    assert before < layout.FILE_BYTES <= path.stat().st_blocks * 512
