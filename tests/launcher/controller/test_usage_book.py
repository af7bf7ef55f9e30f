"""A controller keeps how full and busy nodes were, whatever the disk does, and goes on where the one before it stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from robust_run.launcher.controller.usage_book import POINT_S, WRITE_EVERY, UsageBook
from robust_run.launcher.core.state import JobState
from robust_run.launcher.records.run_directory import RunDirectory
from robust_run.report.files import usage as file

SAID = (12.0, 71.0, 0.0, 0.0, 88.0, 97.0, 64.0)


class Later:
    """A clock, and a loop that calls by it."""

    def __init__(self) -> None:
        self.now_s = 1_790_000_000.0
        self.due: list[tuple[float, Callable[[], None]]] = []

    def unix_s(self) -> float:
        return self.now_s

    def monotonic_s(self) -> float:
        return self.now_s

    def __call__(self, delay_s: float, call: Callable[[], None]) -> Later:
        self.due.append((self.now_s + delay_s, call))
        return self

    def cancel(self) -> None:
        self.due.clear()

    def passes(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.due and self.due[0][0] <= until_s:
            self.now_s, call = self.due.pop(0)
            call()
        self.now_s = until_s


def book_in(folder: Path, later: Later, **more: object) -> UsageBook:
    state = JobState()
    state.places["a"] = 0
    return UsageBook(state, RunDirectory(str(folder), str(folder)), later, later, lambda _: None, **more)  # type: ignore[arg-type]


def test_what_nodes_at_work_say_is_in_the_file(tmp_path: Path) -> None:
    later = Later()
    book = book_in(tmp_path, later)
    for _ in range(WRITE_EVERY):
        book.take("a", SAID)
        book.take("standby", SAID)
        later.passes(POINT_S)
    book.end()
    points = file.read(str(tmp_path / "usage.json"))
    assert len(points) == WRITE_EVERY
    assert points[-1].spreads["gpu_memory_percent"].nodes == {"a": 88.0}


def test_a_node_that_is_silent_is_not_said_to_be_as_it_was(tmp_path: Path) -> None:
    later = Later()
    book = book_in(tmp_path, later)
    book.take("a", SAID)
    later.passes(5 * POINT_S)
    book.end()
    assert len(file.read(str(tmp_path / "usage.json"))) == 1


def test_the_next_controller_goes_on_with_what_is_there(tmp_path: Path) -> None:
    later = Later()
    for _ in range(2):
        book = book_in(tmp_path, later, ask=lambda: ("a", SAID))
        later.passes(POINT_S)
        book.end()
    assert len(file.read(str(tmp_path / "usage.json"))) == 2


def test_a_disk_that_is_gone_or_a_fault_of_ours_disturbs_nobody(tmp_path: Path) -> None:
    later, said = Later(), []
    book = book_in(tmp_path / "gone", later, ask=lambda: ("a", SAID))
    later.passes(10 * POINT_S)
    book.end()
    assert not (tmp_path / "gone").exists()

    def fails() -> tuple[str, tuple[float, ...]]:
        raise ZeroDivisionError

    book = UsageBook(JobState(), RunDirectory(str(tmp_path), str(tmp_path)), later, later, said.append, fails)  # type: ignore[arg-type]
    later.passes(3 * POINT_S)
    assert len(said) == 1
    book.end()


def test_a_temporary_run_directory_keeps_nothing(tmp_path: Path) -> None:
    later = Later()
    UsageBook(JobState(), RunDirectory(str(tmp_path), str(tmp_path), temporary=True), later, later, lambda _: None)  # type: ignore[arg-type]
    assert later.due == []
    assert not [each for each in threading.enumerate() if each.name == "usage"]
    assert msgspec.json.encode(SAID)
