"""Which controller a command speaks to, where it only begins or is gone."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from robust_run.errors import PlatformError, UserError
from robust_run.launcher.model.events import SignalReceived, Tick
from robust_run.launcher.operator.reading.client import ApiTarget, NoAnswerError
from robust_run.launcher.operator.reading.living import may_live
from robust_run.launcher.operator.reading.place import ApiEndpoint, this_boot, write_place
from robust_run.launcher.operator.reading.which import BEGIN_S, Subject, controller, patiently, subject
from robust_run.launcher.records.journal import JournalEntry
from robust_run.launcher.start.one_node import SERVE_AFTER_S, OneNode

ANSWERS = ApiTarget(socket="/run/api.sock")


class Turned:
    """A clock that stands still between naps."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return self.now_s

    def sleep(self, for_s: float) -> None:
        self.now_s += for_s


def ask_when(clock: Turned, answers_at_s: float) -> ApiTarget:
    if clock.now_s < answers_at_s:
        raise NoAnswerError("its controller is gone", refused=True)
    return ANSWERS


def test_a_job_that_has_only_just_begun_is_waited_for() -> None:
    clock = Turned()
    assert patiently(lambda: ask_when(clock, 101.0), lambda: True, clock, clock.sleep) is ANSWERS
    assert clock.now_s == pytest.approx(101.0, abs=0.1)


def test_one_that_never_answers_is_given_up() -> None:
    clock = Turned()
    with pytest.raises(NoAnswerError):
        patiently(lambda: ask_when(clock, 1e9), lambda: True, clock, clock.sleep)
    assert clock.now_s == pytest.approx(100.0 + BEGIN_S, abs=0.1)


def test_one_that_is_dead_is_not_waited_for() -> None:
    clock = Turned()
    with pytest.raises(NoAnswerError):
        patiently(lambda: ask_when(clock, 1e9), lambda: False, clock, clock.sleep)
    assert clock.now_s == 100.0


def bytes_read() -> int:
    """How much this process has read so far, as the kernel counts."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


def test_of_a_run_of_months_no_more_than_the_beginning_is_read_to_see_that_it_has_not_just_begun(
    make_controller: Callable[..., Any],
) -> None:
    path = make_controller().journal_path
    lines = [JournalEntry(at=1e9 + number, mono=float(number), event=Tick()) for number in range(100_000)]
    with open(path, "ab") as file:
        file.writelines(msgspec.json.encode(line) + b"\n" for line in lines)
    which = {"run": os.path.dirname(path), "log_dir": "", "url": "", "token_file": "", "tls_ca": ""}
    assert not subject({}, **which).is_alive  # what it needs is imported now
    before = bytes_read()
    assert not subject({}, **which).is_alive
    assert bytes_read() - before < os.path.getsize(path) // 4


def test_of_a_job_that_ends_while_it_is_asked_the_journal_tells(
    make_controller: Callable[..., Any], run_directory: Path
) -> None:
    controller = make_controller().start()
    controller.tell(SignalReceived(signal=15))
    controller.end_attempt()
    about = Subject(str(run_directory), ApiTarget(socket=str(run_directory / "gone.sock")))
    assert about.life().life == "over"
    assert not about.is_alive


# Which of several is meant by a command that names none, where some have left what says where they served


def left_behind(folder: Path, host: str = "") -> None:
    """Leave what a controller leaves that was killed; on another machine if there is a `host`."""
    socket_at = str(folder / "api.sock")
    place = ApiEndpoint(
        socket=socket_at, pid=1 << 22, host=host or socket.gethostname(), boot="" if host else this_boot()
    )
    write_place(str(folder), place)


@pytest.fixture
def runs(tmp_path: Path, make_controller: Callable[..., Any]) -> Path:
    """Two runs that are over, and one whose controller was killed; each has an `api.json`."""
    for name in ("over", "failed", "killed"):
        folder = tmp_path / "robust-runs" / name
        folder.mkdir(parents=True)
        job = make_controller(nodes=1, folder=folder).start(1)
        if name != "killed":
            job.tell(SignalReceived(signal=15, again=False))
            job.end_attempt()
        job.close()
        left_behind(folder)
    return tmp_path / "robust-runs"


def meant(runs: Path) -> str:
    """Return what is said of the run that is meant; none of them answers."""
    with pytest.raises(PlatformError) as caught:
        controller({}, run="", log_dir=str(runs), url="", token_file="", tls_ca="")
    return str(caught.value)


def test_runs_that_are_over_or_were_killed_are_not_meant_beside_one_that_may_live(
    runs: Path, make_controller: Callable[..., Any]
) -> None:
    assert may_live([str(each) for each in runs.iterdir()], {}) == []
    (runs / "elsewhere").mkdir()
    make_controller(nodes=1, folder=runs / "elsewhere").start(1).close()
    left_behind(runs / "elsewhere", host="gpu-7")
    os.utime(runs / "elsewhere" / "journal.jsonl", (500, 500))
    assert "run 'elsewhere' cannot be told anything" in meant(runs)
    assert "gpu-7" in meant(runs)


def test_of_two_that_may_live_one_is_named(runs: Path, make_controller: Callable[..., Any]) -> None:
    for name in ("here", "there"):
        (runs / name).mkdir()
        make_controller(nodes=1, folder=runs / name).start(1).close()
        left_behind(runs / name, host="gpu-7")
    with pytest.raises(UserError, match=r"several runs may be meant: (here, there|there, here); name one of them"):
        controller({}, run="", log_dir=str(runs), url="", token_file="", tls_ca="")


def test_where_none_lives_the_newest_is_said_to_be_over(runs: Path) -> None:
    os.utime(runs / "over" / "journal.jsonl", (1 << 33, 1 << 33))
    assert "run 'over' is over (stopped)" in meant(runs)


def test_a_job_that_is_over_before_it_serves_does_not_begin_to() -> None:
    """What says where it served would stay in its run directory, and the next command would ask for a name."""
    made: list[str] = []

    def make() -> Any:
        made.append("a server")

    async def job() -> None:
        link = OneNode(None)  # type: ignore[arg-type]
        link.attach(asyncio.get_running_loop())
        link.serve_people_with(make)
        await link.close()
        await asyncio.sleep(SERVE_AFTER_S + 0.1)

    asyncio.run(job())
    assert made == []
