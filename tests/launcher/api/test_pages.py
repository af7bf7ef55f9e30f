"""Pages of a journal: the same lines whatever the page size, while it grows, and whatever a full disk left in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from robust_run.launcher.operator.server import journal_pages as pages
from robust_run.launcher.operator.server.journal_pages import JournalPages


def line(number: int) -> bytes:
    return b'{"at":%d}' % number


def journal(path: Path, lines: int) -> JournalPages:
    path.write_bytes(b"".join(line(number) + b"\n" for number in range(lines)))
    found = JournalPages(str(path))
    assert found.catch_up()
    return found


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_pages_put_together_are_the_journal(tmp_path: Path, size: int) -> None:
    found = journal(tmp_path / "j", 300)
    seen: list[bytes] = []
    first = 0
    while (page := found.page(first, size)).events:
        assert len(page.events) <= size
        seen += [bytes(event.line) for event in page.events]
        first = page.next
    assert seen == [line(number) for number in range(1, 300)]  # line 0 is the header


def test_a_line_that_is_being_written_is_not_there_yet(tmp_path: Path) -> None:
    found = journal(tmp_path / "j", 3)
    with (tmp_path / "j").open("ab") as file:
        file.write(line(3)[:4])
        file.flush()
        found.catch_up()
        assert found.page(3).events == ()
        file.write(line(3)[4:] + b"\n")
        file.flush()
        found.catch_up()
        assert [event.index for event in found.page(3).events] == [3]


def test_a_line_cut_short_keeps_its_number_and_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "j").write_bytes(b'{}\n{"at":1}\n{"at":2, "ev\n\xff\xfe\n\n[1]\n{"at":6}\n')
    found = JournalPages(str(tmp_path / "j"))
    found.catch_up()
    page = found.page(1)
    assert [event.index for event in page.events] == [1, 6]
    assert page.next == 7


def test_a_large_journal_is_counted_a_piece_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_bytes((b'{"x":"' + b"y" * 1000 + b'"}\n') * 5000)
    found = JournalPages(str(path))
    rounds = 1
    while not found.catch_up(1 << 20):
        rounds += 1
    assert found.lines == 5000
    assert rounds > 3
    assert sum(len(bytes(event.line)) for event in found.page(1).events) <= pages.MOST_BYTES + 2000


def test_counting_from_the_end(tmp_path: Path) -> None:
    found = journal(tmp_path / "j", 100)
    assert [event.index for event in found.page(-3).events] == [97, 98, 99]
    assert found.page(-1000).events[0].index == 1


def test_past_the_end_there_is_nothing_yet(tmp_path: Path) -> None:
    page = journal(tmp_path / "j", 10).page(10)
    assert (page.events, page.next) == ((), 10)


def test_a_journal_that_was_replaced_is_counted_anew(tmp_path: Path) -> None:
    found = journal(tmp_path / "j", 100)
    (tmp_path / "j").write_bytes(line(0) + b"\n" + line(1) + b"\n")
    found.catch_up()
    assert found.lines == 2
