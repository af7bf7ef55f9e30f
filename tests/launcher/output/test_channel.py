"""One console for many workers: lines of two of them never merge."""

from __future__ import annotations

import pytest

from robust_run.launcher.agent.output.channel import Channel, FilteredLog, SharedStream
from robust_run.launcher.agent.output.lines import OutputTail


class Screen:
    """Collects what is shown; can refuse."""

    def __init__(self) -> None:
        self.shown = b""
        self.is_full = False

    def offer(self, data: bytes) -> bool:
        if self.is_full:
            return False
        self.shown += data
        return True


class Log:
    """A log file in memory."""

    def __init__(self) -> None:
        self.data = b""

    def __call__(self, data: bytes) -> bool:
        self.data += data
        return True


@pytest.fixture
def screen() -> Screen:
    return Screen()


@pytest.fixture
def console(screen: Screen) -> SharedStream:
    return SharedStream(screen)


def test_an_unfinished_line_of_another_is_ended_first(screen: Screen, console: SharedStream) -> None:
    console.put("a", b"  50%")
    console.put("a", b" 60%")
    console.put("b", b"hello\n")
    console.put("a", b" 70%\n")
    console.put("b", b"bye\n")
    assert screen.shown == b"  50% 60%\nhello\n 70%\nbye\n"


def test_prefixes_follow_the_lines_as_they_are_shown(screen: Screen, console: SharedStream) -> None:
    console.put("a", b"one", b"A:")
    console.put("a", b" two", b"A:")
    console.put("b", b"hello\n", b"B:")
    console.put("a", b" three\n", b"A:")
    assert screen.shown == b"A:one two\nB:hello\nA: three\n"


def test_a_bar_that_returns_at_its_end_keeps_its_prefix(screen: Screen, console: SharedStream) -> None:
    for part in (b"10%\r", b"20%\r", b"\n", b"done\n"):
        console.put("a", part, b"A:")
    assert screen.shown == b"A:10%\rA:20%\r\nA:done\n"


def test_a_bar_that_returns_first_keeps_its_prefix(screen: Screen, console: SharedStream) -> None:
    for part in (b"\r10%", b"\r20%", b"\r99%\n"):
        console.put("a", part, b"A:")
    assert screen.shown == b"\rA:10%\rA:20%\rA:99%\n"


def test_the_launcher_speaks_on_lines_of_its_own(screen: Screen, console: SharedStream) -> None:
    console.put_raw("a", b"\x1b[A 50%")
    console.say(b"robust-run: hello")
    console.say(b"robust-run: again\n")
    assert screen.shown == b"\x1b[A 50%\nrobust-run: hello\nrobust-run: again\n"


def test_terminal_programs_are_passed_on_unchanged(screen: Screen, console: SharedStream) -> None:
    for owner, chunk in (("a", b"\x1b[A"), ("b", b"x\r"), ("a", b"y")):
        console.put_raw(owner, chunk)
    assert screen.shown == b"\x1b[Ax\ry"


def test_after_a_gap_no_line_is_taken_for_unfinished(screen: Screen, console: SharedStream) -> None:
    console.put("a", b"half")
    screen.is_full = True
    console.put("a", b" lost")
    screen.is_full = False
    console.put("b", b"new\n")
    assert screen.shown == b"halfnew\n", "the writer's own notice stands in between and ends the line"


def test_a_stream_goes_raw_to_its_log_and_in_lines_to_the_console(screen: Screen, console: SharedStream) -> None:
    log, tail = Log(), OutputTail()
    channel = Channel(console=console, prefix=b"P:", log=log, tail=tail)
    channel.take(b"one\ntw", 1.0)
    assert (log.data, screen.shown, channel.has_unfinished) == (b"one\ntw", b"P:one\n", True)
    channel.take(b"o\nthree", 2.0)
    channel.finish()
    assert screen.shown == b"P:one\nP:two\nP:three"
    assert log.data == b"one\ntwo\nthree"
    assert tail.text() == "one\ntwo\nthree"
    assert channel.last_output_at_s == 2.0


def test_a_stream_that_is_not_shown_keeps_nothing_back() -> None:
    log = Log()
    channel = Channel(console=None, log=log)
    channel.take(b"no newline", 1.0)
    assert not channel.has_unfinished
    channel.flush_idle()
    channel.finish()
    assert log.data == b"no newline"


def test_filtered_lines_are_whole_even_when_they_come_in_pieces_and_pause(console: SharedStream) -> None:
    filtered = Log()
    channel = Channel(console=console, filtered=FilteredLog(filtered, (b"loss=12", b"acc"), b"[r0]:"))
    for chunk in (b"x\nlo", b"ss=", b"123\nother\n", b"final acc"):
        channel.take(chunk, 0.0)
        channel.flush_idle()
    channel.finish()
    assert filtered.data == b"[r0]:loss=123\n[r0]:final acc\n"
