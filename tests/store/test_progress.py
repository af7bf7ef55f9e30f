"""Progress without a terminal: a line now and then, with rate and time left."""

from __future__ import annotations

import io

from robust_run.store.progress import Lines, shown, size


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_every_ten_seconds_and_one_at_the_end() -> None:
    now_s = 100.0
    stream = io.StringIO()
    lines = Lines("restoring", 4_000_000_000, stream, lambda: now_s)
    for _ in range(4):
        now_s += 5.0
        lines.advance(500_000_000)
    lines.end()
    assert stream.getvalue().splitlines() == [
        "robust: restoring: 25% of 4 GB, 100 MB/s, 30 s left",
        "robust: restoring: 50% of 4 GB, 100 MB/s, 20 s left",
        "robust: restoring: 50% of 4 GB, 100 MB/s, 20 s left",
    ]


def test_what_has_no_known_end_says_how_much_is_done() -> None:
    now_s = 100.0
    stream = io.StringIO()
    lines = Lines("reading", None, stream, lambda: now_s)
    now_s += 20.0
    lines.advance(2_000_000_000)
    assert stream.getvalue() == "robust: reading: 2 GB, 100 MB/s\n"


def test_what_is_quick_says_nothing() -> None:
    stream = io.StringIO()
    with shown("restoring", 10, stream) as progress:
        progress(10)
    assert stream.getvalue() == ""


def test_a_terminal_gets_a_bar() -> None:
    stream = Terminal()
    with shown("restoring", 1000, stream) as progress:
        progress(1000)
    assert "restoring" in stream.getvalue()
    assert "1.0/1.0 kB" in stream.getvalue()


def test_sizes_as_people_read_them() -> None:
    assert [size(count) for count in (0, 999, 1500, 1.61e9, 2e12)] == ["0 B", "999 B", "1.5 kB", "1.61 GB", "2 TB"]
