"""When a file that is written through a mount is whole: stories of who opened it, wrote to it, closed it and died."""

from __future__ import annotations

import pytest

from robust_run.ckpt_io.foreign.ends import End
from robust_run.ckpt_io.mount.authors import Authors, Verdict
from robust_run.ckpt_io.mount.callers import Caller, Ending, ended

OPENER, CHILD = 100, 200


def closed(
    authors: Authors, ending: Ending, process: int | None = OPENER, *, another: bool = False, end: End = "unknown"
) -> Verdict:
    return authors.closed(Caller(process, ending, "it happened"), has_another=another, has_bytes=True, end=end)


def released(authors: Authors, *, has_bytes: bool = True, end: End = "unknown", is_new: bool = False) -> Verdict:
    return authors.released(has_bytes=has_bytes, end=end, is_new=is_new)


def by(*processes: int | None) -> Authors:
    """A file that the first one opened, and all of them wrote to."""
    authors = Authors(processes[0])
    for process in processes:
        authors.wrote(process)
    return authors


@pytest.mark.parametrize("ending", ["alive", "exited"])
def test_who_wrote_it_closes_it(ending: Ending) -> None:
    authors = by(OPENER)
    assert closed(authors, ending) == "commit"
    assert authors.are_done


@pytest.mark.parametrize("ending", ["killed", "failed", "replaced"])
def test_who_wrote_it_does_not_come_to_closing_it(ending: Ending) -> None:
    authors = by(OPENER)
    assert closed(authors, ending) == "give up"
    assert released(authors) == "wait"
    assert not authors.are_done and authors.fate == "it happened"


def test_a_child_with_a_copy_ends_however_it_likes() -> None:
    authors = by(OPENER)
    for ending in ("alive", "exited", "failed", "killed", "replaced", "unknown"):
        assert closed(authors, ending, CHILD) == "wait"  # type: ignore[arg-type]
    assert closed(authors, "alive") == "commit"


def test_a_child_writes_and_its_parent_is_the_last_to_close() -> None:
    authors = Authors(OPENER)
    authors.wrote(CHILD)
    assert closed(authors, "exited", CHILD) == "wait"
    assert closed(authors, "alive") == "commit"


def test_a_child_writes_on_when_its_parent_has_closed() -> None:
    authors = by(OPENER, CHILD)
    assert closed(authors, "alive") == "wait"
    assert closed(authors, "exited", CHILD) == "commit"


def test_a_child_that_wrote_is_killed_and_its_parent_is_told() -> None:
    authors = by(OPENER, CHILD)
    assert closed(authors, "killed", CHILD) == "give up"
    assert closed(authors, "alive") == "give up"


def test_a_child_that_failed_is_up_to_its_parent_if_that_still_has_it_open() -> None:
    authors = by(OPENER, CHILD)
    assert closed(authors, "failed", CHILD) == "wait"
    assert closed(authors, "alive") == "commit"
    orphaned = by(OPENER, CHILD)
    assert closed(orphaned, "alive") == "wait"
    assert closed(orphaned, "failed", CHILD) == "give up"


def test_a_copy_of_ones_own_is_not_the_end() -> None:
    authors = by(OPENER)
    assert closed(authors, "alive", another=True) == "wait"
    assert released(authors) == "commit", "what looked like another descriptor was none"
    authors = by(OPENER)
    assert closed(authors, "alive", another=True) == "wait"
    authors.wrote(OPENER)
    assert closed(authors, "killed") == "give up"


def test_the_last_descriptor_goes_without_a_word() -> None:
    """As in a socket that nobody read, or a ring of the kernel's."""
    assert released(by(OPENER)) == "keep aside"
    assert released(by(OPENER), end="whole") == "commit"
    assert released(by(OPENER), end="cut off") == "keep aside"


def test_one_that_ends_with_0_while_a_thread_writes_is_told_by_what_is_missing() -> None:
    assert closed(by(OPENER), "exited", end="cut off") == "give up"
    assert closed(by(OPENER), "exited", end="whole") == "commit"
    assert closed(by(OPENER), "alive", end="cut off") == "commit", "it closed it"


def test_who_cannot_be_seen_is_believed_if_nothing_is_missing() -> None:
    assert closed(by(None), "unknown", None, end="whole") == "commit"
    for end in ("unknown", "cut off"):
        authors = by(None)
        assert closed(authors, "unknown", None, end=end) == "refuse"  # type: ignore[arg-type]
        assert released(authors, end=end) == "keep aside"  # type: ignore[arg-type]


def test_an_empty_file_of_who_cannot_be_seen_replaces_nothing() -> None:
    assert released(Authors(None), has_bytes=False, is_new=True) == "commit"
    assert released(Authors(None), has_bytes=False, is_new=False) == "wait"


def test_an_empty_file_whose_opener_was_not_heard_of_again_is_none() -> None:
    assert released(Authors(OPENER), has_bytes=False, is_new=True) == "wait"


@pytest.mark.parametrize(
    ("code", "ending", "words"),
    [
        (0, "exited", "ended with exit code 0"),
        (9, "killed", "was killed by SIGKILL"),
        (15, "killed", "was killed by SIGTERM"),
        (11 | 128, "killed", "was killed by SIGSEGV"),
        (40, "killed", "was killed by signal 40"),
        (1 << 8, "failed", "ended with exit code 1 and did not close it"),
        (143 << 8, "failed", "ended with exit code 143 and did not close it"),
    ],
)
def test_what_an_exit_code_says(code: int, ending: Ending, words: str) -> None:
    assert ended(7, code) == Caller(7, ending, f"process 7 {words}")
