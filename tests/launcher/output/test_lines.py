"""The bytes of a stream: cut into lines without losing one, prefixed, and searched for last words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.launcher.agent.output.lines import (
    END_MARKERS,
    LineSplitter,
    OutputTail,
    missing_notice,
    prefix_lines,
    select_lines,
)

chunk_lists = st.lists(st.one_of(st.binary(max_size=40), st.text("ab\n\r", max_size=40).map(str.encode)), max_size=30)


@given(chunk_lists, st.sets(st.integers(0, 30)), st.integers(1, 50))
def test_no_byte_is_lost_added_or_moved(chunks: list[bytes], idle_after: set[int], longest_bytes: int) -> None:
    splitter = LineSplitter(longest_bytes)
    blocks = []
    for number, chunk in enumerate(chunks):
        blocks.append(splitter.feed(chunk))
        if number in idle_after:
            blocks.append(splitter.flush_idle())
    blocks.append(splitter.finish())
    assert b"".join(blocks) == b"".join(chunks)


@given(chunk_lists)
def test_blocks_are_whole_lines_and_nothing_complete_is_held_back(chunks: list[bytes]) -> None:
    splitter = LineSplitter(longest_line_bytes=10_000)
    given_out = b""
    for number, chunk in enumerate(chunks):
        block = splitter.feed(chunk)
        assert block == b"" or block.endswith(b"\n")
        given_out += block
        so_far = b"".join(chunks[: number + 1])
        assert given_out == so_far[: so_far.rfind(b"\n") + 1]
        assert splitter.has_unfinished == (given_out != so_far)


def test_a_line_over_the_limit_is_given_out_before_its_end() -> None:
    splitter = LineSplitter(longest_line_bytes=10)
    assert splitter.feed(b"0123456789") == b""
    assert splitter.feed(b"a") == b"0123456789a"
    assert splitter.feed(b"b\nnext") == b"b\n"
    assert splitter.finish() == b"next"


def test_a_progress_bar_comes_out_when_it_is_idle() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"\r 10%") == b""
    assert splitter.flush_idle() == b"\r 10%"
    assert splitter.flush_idle() == b""
    assert splitter.feed(b"\r100%\n") == b"\r100%\n"


@pytest.mark.parametrize(
    ("block", "shown"),
    [
        (b"", b""),
        (b"a\n", b"P:a\n"),
        (b"a\nb\n", b"P:a\nP:b\n"),
        (b"a\n\nb", b"P:a\nP:\nP:b"),
        (b"\n", b"P:\n"),
        (b"windows\r\nnext\r\n", b"P:windows\r\nP:next\r\n"),
        (b"\r\n", b"P:\r\n"),
        (b"\r10%\r20%\n", b"\rP:10%\rP:20%\n"),
        (b"10%\r20%\r", b"P:10%\rP:20%\r"),
        (b"a\n\r10%", b"P:a\n\rP:10%"),
    ],
)
def test_every_line_and_every_redrawing_of_a_bar_has_the_prefix_once(block: bytes, shown: bytes) -> None:
    assert prefix_lines(block, b"P:") == shown


def test_the_rest_of_a_line_gets_no_second_prefix() -> None:
    assert prefix_lines(b"rest\nnew\n", b"P:", continues=True) == b"rest\nP:new\n"
    assert prefix_lines(b"\n", b"P:", continues=True) == b"\n"


@given(st.lists(st.text("ab\r ", max_size=9).map(str.encode), min_size=1))
def test_prefixes_are_all_that_is_added(lines: list[bytes]) -> None:
    block = b"".join(line + b"\n" for line in lines)
    assert prefix_lines(block, b"<P>").replace(b"<P>", b"") == block


def test_lines_with_a_needle_are_selected_whole() -> None:
    block = b"loss=1\nother\nval loss=2\r\nrest loss"
    assert select_lines(block, (b"loss=",)) == b"loss=1\nval loss=2\r\n"
    assert select_lines(block, (b"nothing", b"rest")) == b"rest loss"
    assert select_lines(block, (b"nothing",)) == b""


@given(chunk_lists, st.integers(1, 60))
def test_the_tail_is_the_end_of_all_that_was_read(chunks: list[bytes], limit_bytes: int) -> None:
    tail = OutputTail(limit_bytes)
    for chunk in chunks:
        tail.feed(chunk, 0.0)
    assert tail.text() == b"".join(chunks)[-limit_bytes:].decode(errors="replace")


@pytest.mark.parametrize("marker", END_MARKERS)
def test_last_words_are_found_across_any_border_and_only_once(marker: bytes) -> None:
    text = b"step 1\n[rank0]: " + marker + b":\n  more\n"
    marker_end = text.index(marker) + len(marker)
    for cut in range(len(text) + 1):
        tail = OutputTail()
        tail.feed(text[:cut], 1.0)
        tail.feed(text[cut:], 2.0)
        tail.feed(b"and more\n", 3.0)
        assert tail.marker_at_s == (1.0 if cut >= marker_end else 2.0), cut


def test_last_words_are_found_byte_by_byte_and_the_last_ones_count() -> None:
    tail = OutputTail()
    text = b"Traceback (most recent call last):\n x\nFatal Python error: y\n"
    for position in range(len(text)):
        tail.feed(text[position : position + 1], float(position))
    assert tail.marker_at_s == float(text.index(b"Fatal Python error") + len(b"Fatal Python error") - 1)


def test_ordinary_output_has_no_last_words() -> None:
    tail = OutputTail()
    tail.feed(b"Traceback\nthe most recent call was last\n", 1.0)
    assert tail.marker_at_s is None


@pytest.mark.parametrize(
    ("lines", "size", "words"),
    [
        (1, 5, b"1 line (5 bytes) is missing"),
        (1234, 5_100_000, b"1234 lines (5.1 MB) are missing"),
        (0, 70_000, b"0 lines (70.0 kB) are missing"),
        (9, 2_000_000_000, b"9 lines (2.0 GB) are missing"),
    ],
)
def test_the_notice_counts_what_is_missing(lines: int, size: int, words: bytes) -> None:
    notice = missing_notice(lines, size, "of a reason")
    assert words in notice
    assert notice.endswith(b"because of a reason\n")
