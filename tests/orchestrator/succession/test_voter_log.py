"""What a voter keeps on disk: entries, term and vote."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from robust_run.errors import PlatformError
from robust_run.orchestrator.model.succession_words import Entry, Voter
from robust_run.orchestrator.succession.log import Log, begin_again
from robust_run.orchestrator.succession.record import Record, read_record, write_record


def entry(index: int, term: int = 1, what: str = "journal", name: str = "", size: int = 10) -> Entry:
    return Entry(index, term, what, name, b"%d" % index + b"." * size)  # type: ignore[arg-type]


def opened(folder: Path, said: list[str] | None = None) -> Log:
    return Log(str(folder / "a.log"), (said if said is not None else []).append)


def test_what_was_put_is_there_for_the_next_process(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.put([entry(1), entry(2), entry(3, term=4)])
    log.close()
    again = opened(tmp_path)
    assert list(again.all()) == [entry(1), entry(2), entry(3, term=4)]
    assert (again.last, again.runs()) == (3, [(1, 1), (3, 4)])
    again.close()


def test_what_is_cut_is_gone_and_what_comes_then_is_in_its_place(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.put([entry(each) for each in range(1, 6)])
    log.cut(2)
    log.put([entry(3, term=2)])
    assert list(log.all()) == [entry(1), entry(2), entry(3, term=2)]
    log.close()
    again = opened(tmp_path)
    assert again.runs() == [(1, 1), (3, 2)]
    again.close()


@pytest.mark.parametrize("lost", range(1, 40))
def test_an_end_that_is_not_whole_is_left_out(tmp_path: Path, lost: int) -> None:
    log = opened(tmp_path)
    log.put([entry(1), entry(2)])
    log.close()
    path = tmp_path / "a.log"
    path.write_bytes(path.read_bytes()[:-lost])
    again = opened(tmp_path)
    assert list(again.all()) == ([entry(1)] if lost < 30 else list(again.all()))
    assert again.last < 2
    again.put([entry(again.last + 1)])
    again.close()


def test_entries_come_in_batches_and_one_is_never_too_large(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.put([entry(each, size=1000) for each in range(1, 10)])
    assert [each.index for each in log.after(2, most_bytes=2500)] == [3, 4]
    assert [each.index for each in log.after(2, most_bytes=1)] == [3]
    assert [each.index for each in log.after(2, through=5)] == [3, 4, 5]
    assert log.after(9) == ()
    log.close()


def test_a_log_without_void_entries_still_tells_all_terms(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.put([entry(1), entry(2, 2), entry(3, 3), entry(4, 4), entry(5, 5)])
    log.shrink(lambda each: each.index in (2, 3), through=4)
    assert [each.index for each in log.all()] == [1, 4, 5]
    assert (log.runs(), log.dropped) == ([(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)], 4)
    log.cut(4)
    log.put([entry(5, 7)])
    log.close()
    again = opened(tmp_path)
    assert (again.runs(), again.dropped) == ([(1, 1), (2, 2), (3, 3), (4, 4), (5, 7)], 4)
    assert not (tmp_path / "a.log.anew").exists()
    again.close()


def test_a_log_that_comes_anew_takes_the_old_ones_place_once_it_is_whole(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.put([entry(1), entry(2)])
    log.begin_anew([entry(1, 3)], begins=True)
    assert list(log.all()) == [entry(1), entry(2)]
    log.begin_anew([entry(3, 3)], begins=False)
    log.take_anew([(1, 3)], 3)
    assert [each.index for each in log.all()] == [1, 3]
    assert log.runs() == [(1, 3)]
    log.put([entry(4, 3)])
    log.close()
    again = opened(tmp_path)
    assert again.last == 4
    again.close()


def test_two_processes_of_a_node_never_have_one_log(tmp_path: Path) -> None:
    log = opened(tmp_path)
    with pytest.raises(PlatformError, match="another process of this node has it"):
        opened(tmp_path)
    log.close()
    opened(tmp_path).close()


def test_where_there_is_no_room_entries_are_kept_in_memory_and_written_later(tmp_path: Path) -> None:
    said: list[str] = []
    log = opened(tmp_path, said)
    log.put([entry(1)])
    whole, log._file = log._file, os.open("/dev/full", os.O_RDWR)
    log.put([entry(2), entry(3)])
    assert list(log.after(1)) == [entry(2), entry(3)]
    log.put([entry(4)])
    log.cut(3)
    assert "cannot be written" in said[0]
    os.close(log._file)
    log._file = whole
    log.put([entry(4, term=2)])
    assert "can be written again" in said[1]
    assert list(log.all()) == [entry(1), entry(2), entry(3), entry(4, term=2)]
    log.close()
    again = opened(tmp_path)
    assert list(again.all()) == [entry(1), entry(2), entry(3), entry(4, term=2)]
    again.close()


def test_a_vote_that_cannot_be_read_is_no_missing_vote(tmp_path: Path) -> None:
    path = str(tmp_path / "a.json")
    assert read_record(path) is None
    record = Record(run_id="r", name="a", boot="b", voters=(Voter("a", "host", 1),), term=3, voted="c")
    write_record(path, record)
    assert read_record(path) == record
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(PlatformError, match="does not know for whom it voted"):
        read_record(path)


def test_another_start_of_the_job_goes_on_with_the_newest_log_and_without_votes(tmp_path: Path) -> None:
    """Slurm has requeued the job, and its processes of before have ended."""
    for name, entries in (("a", [entry(1), entry(2)]), ("b", [entry(1), entry(2, term=3)]), ("c", [entry(1)])):
        log = Log(str(tmp_path / f"{name}.log"), [].append)
        log.put(entries)
        log.close()
        (tmp_path / f"{name}.json").write_text("{}")
    begin_again(str(tmp_path), "a")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.log"]
    log = opened(tmp_path)
    assert list(log.all()) == [entry(1), entry(2, term=3)]
    log.close()
    begin_again(str(tmp_path), "a", keep=False)
    assert list(tmp_path.iterdir()) == []
    begin_again(str(tmp_path / "none"), "a")
