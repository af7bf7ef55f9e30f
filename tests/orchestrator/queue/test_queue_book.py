"""What a queue's file brings back after its process was killed at any moment."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.errors import PlatformError, UserError
from robust_run.orchestrator.model.queue_state import QueueState
from robust_run.orchestrator.queue import book
from robust_run.orchestrator.queue.book import LEAST_BYTES, NUMBERS_LEFT_OUT, Queue, QueueBook, recovered
from robust_run.orchestrator.rules.queue_core import counts, step
from robust_run.roles.queue_words import (
    MOST_NAMES,
    ConsumerGone,
    Done,
    GiveBack,
    Keep,
    Position,
    Put,
    QueueEvent,
    QueueLimits,
    Release,
    Renew,
    Restore,
    Took,
)

LIMITS = QueueLimits(items=8, bytes=200, lease_s=5.0)


def opened(path: Path, limits: QueueLimits = LIMITS, said: list[str] | None = None, now_s: float = 0.0) -> Queue:
    """Open a queue's file."""
    return Queue(str(path), limits, now_s, (said if said is not None else []).append, "id")


def what_matters(state: QueueState) -> bytes:
    """What an orchestrator that is started again has to know: all but how often things were tried in vain."""
    held = {n: (each.item, each.standing, each.consumer, each.tries) for n, each in state.held.items()}
    found = {name: count for name, count in state.counts.items() if name != "again"}
    numbers = state.next_number, state.bytes, state.kept, state.identity
    return msgspec.json.encode((held, numbers, state.keys, state.done_by, sorted(found.items())))


_names = st.sampled_from(("one", "two"))
_numbers = st.lists(st.integers(0, 9), max_size=3).map(tuple)
_positions = st.builds(Position, through=st.integers(-1, 5), beyond=_numbers, of=st.sampled_from(("id", "other")))
_events: st.SearchStrategy[QueueEvent] = st.one_of(
    st.builds(Put, key=st.sampled_from("abcdefgh"), generation=st.integers(0, 3), payload=st.binary(max_size=40)),
    st.builds(Took, consumer=_names, count=st.integers(0, 4), least=st.integers(0, 2)),
    st.builds(Done, consumer=_names, numbers=_numbers),
    st.builds(Keep, consumer=_names, numbers=_numbers),
    st.builds(GiveBack, consumer=_names, numbers=_numbers),
    st.builds(Restore, consumer=_names, position=_positions),
    st.builds(Release, position=_positions),
    st.builds(ConsumerGone, consumer=_names),
    st.builds(Renew, consumer=_names),
)
_stories = st.lists(st.tuples(_events, st.floats(0.0, 3.0)), max_size=40)


@given(story=_stories)
def test_what_is_on_record_leads_to_the_same_state(tmp_path_factory: pytest.TempPathFactory, story: object) -> None:
    path = tmp_path_factory.mktemp("queue") / "a.queue"
    queue, now_s = opened(path), 0.0
    for event, passed_s in story:  # type: ignore[attr-defined]
        now_s += passed_s
        queue.tell(event, now_s)
        found, good = recovered(path.read_bytes(), LIMITS)
        assert good == path.stat().st_size
        assert what_matters(found) == what_matters(queue.state)
    queue.close()


@given(story=_stories, data=st.data())
def test_a_file_that_ends_anywhere_brings_back_a_moment_of_the_past(
    tmp_path_factory: pytest.TempPathFactory, story: object, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("queue") / "a.queue"
    queue, now_s = opened(path), 0.0
    moments = [what_matters(queue.state)]
    for event, passed_s in story:  # type: ignore[attr-defined]
        now_s += passed_s
        queue.tell(event, now_s)
        moments.append(what_matters(queue.state))
    queue.close()
    whole = path.read_bytes()
    end = data.draw(st.integers(len(book._MAGIC), len(whole)))
    cut, good = recovered(whole[:end], LIMITS)
    assert good <= end
    assert cut == QueueState(limits=LIMITS) or what_matters(cut) in moments
    if data.draw(st.booleans()) and end:
        damaged = bytearray(whole)
        damaged[end - 1] ^= 0x55
        if end > len(book._MAGIC):
            other, _ = recovered(bytes(damaged), LIMITS)
            assert other == QueueState(limits=LIMITS) or what_matters(other) in moments


@given(st.binary(max_size=300))
def test_garbage_behind_the_first_line_is_no_item(data: bytes) -> None:
    state, good = recovered(book._MAGIC + data, LIMITS)
    assert state.held == {} or good > len(book._MAGIC)


def test_an_orchestrator_that_is_started_again_has_all_items_and_new_numbers(tmp_path: Path) -> None:
    queue = opened(tmp_path / "a.queue")
    for key in "abc":
        queue.tell(Put(key=key, generation=0, payload=b"x"), 0.0)
    queue.tell(Took(consumer="one", count=1), 0.0)
    queue.close()
    again = opened(tmp_path / "a.queue", now_s=100.0)
    assert counts(again.state) == counts(queue.state)
    assert again.state.identity == "id"
    assert again.tell(Took(consumer="two", count=5), 100.0).items[0].number == 1, "what was leased stays so"
    again.tell(Put(key="d", generation=0, payload=b"x"), 100.0)
    assert max(again.state.held) == 3 + NUMBERS_LEFT_OUT
    (back,) = again.tell(Took(consumer="two", count=1), 100.0 + book.RECONNECT_S).items[:1]
    assert back.number == 0, "its consumer has not come back"


def test_an_orchestrator_that_is_started_again_knows_who_fills_and_who_empties_a_queue(tmp_path: Path) -> None:
    """Whoever waits there waits for them, though one of them may be stopped and never say a word again."""
    queue = opened(tmp_path / "q")
    queue.tell(Put(key="a", generation=0, payload=b"x", producer="rollout/0:0"), 1.0)
    queue.tell(Put(key="b", generation=0, payload=b"x", producer="rollout/1:0"), 2.0)
    queue.tell(Took(consumer="trainer/0:0", count=1), 3.0)
    queue.close()
    state = opened(tmp_path / "q", now_s=9.0).state
    assert state.put_by == {"rollout/0:0": 1.0, "rollout/1:0": 2.0}
    assert state.taken_by == {"trainer/0:0": 3.0}
    assert state.held[0].taken_s == 3.0, "it has worked since then, whenever the orchestrator was started"


def test_a_damaged_end_is_put_aside_and_said(tmp_path: Path) -> None:
    path, said = tmp_path / "a.queue", list[str]()
    queue = opened(path)
    queue.tell(Put(key="a", generation=0, payload=b"x"), 0.0)
    queue.close()
    with path.open("ab") as file:
        file.write(b"\0\0\0\x05torn")
    assert counts(opened(path, said=said).state).waiting == 1
    assert "8 bytes" in said[0]
    assert (tmp_path / "a.queue.damaged").read_bytes() == b"\0\0\0\x05torn"


def test_a_file_of_another_version_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.queue"
    path.write_bytes(b"robust-run queue 2\nwhatever")
    with pytest.raises(PlatformError, match="of another version"):
        opened(path)
    assert path.read_bytes() == b"robust-run queue 2\nwhatever"


def test_a_file_that_has_grown_is_written_anew(tmp_path: Path) -> None:
    limits = QueueLimits(items=8, bytes=1 << 20, lease_s=5.0)
    path = tmp_path / "a.queue"
    queue = opened(path, limits)
    for number in range(3 * (LEAST_BYTES >> 18)):
        queue.tell(Put(key=str(number), generation=0, payload=bytes(1 << 18)), 0.0)
        items = queue.tell(Took(consumer="t", count=1), 0.0).items
        queue.tell(Done(consumer="t", numbers=tuple(item.number for item in items)), 0.0)
    assert path.stat().st_size < LEAST_BYTES + (1 << 19)
    queue.close()
    again = opened(path, limits)
    assert counts(again.state) == counts(queue.state)
    assert again.tell(Put(key="3", generation=0, payload=b""), 0.0).is_again, "keys are remembered"


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """As on a full disk: what would make a file larger fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_on_a_full_disk_the_queue_goes_on_and_its_file_is_whole_once_there_is_room(tmp_path: Path) -> None:
    path, said = tmp_path / "a.queue", list[str]()
    queue = opened(path, said=said)
    queue.tell(Put(key="a", generation=0, payload=b"x"), 0.0)
    before = path.read_bytes()
    with files_no_larger_than(len(before) + 10):
        for number in range(3):
            assert queue.tell(Put(key=f"b{number}", generation=0, payload=bytes(20)), 1.0).accepted
        assert path.read_bytes() == before, "an old moment, and no event without those before it"
    assert len(said) == 1, "said once"
    assert "make room" in said[0]
    queue.tell(Took(consumer="t", count=2), 10.0)
    found, _ = recovered(path.read_bytes(), LIMITS)
    assert what_matters(found) == what_matters(queue.state)
    assert "can be written again" in said[1]
    queue.tell(Put(key="c", generation=0, payload=b""), 10.0)
    found, _ = recovered(path.read_bytes(), LIMITS)
    assert what_matters(found) == what_matters(queue.state)


def test_where_no_file_can_be_made_the_queue_is_in_memory_and_that_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "queues").write_text("in the way")
    with pytest.raises(PlatformError, match="cannot be read"):
        QueueBook(str(tmp_path / "queues"), LIMITS, said.append).open("a", 0.0)


def test_names_of_queues_leave_no_folder_and_are_not_without_end(tmp_path: Path) -> None:
    made = QueueBook(str(tmp_path / "queues"), LIMITS, print)
    for name in ("../a", "", "a/b", "1", "a" * 65, "a.b", "\0"):
        with pytest.raises(UserError, match="is no name of a queue"):
            made.open(name, 0.0)
    for number in range(MOST_NAMES):
        made.open(f"q{number}", 0.0)
    with pytest.raises(UserError, match="one too many"):
        made.open("another", 0.0)
    made.close()


def test_all_queues_of_a_job_are_opened_again(tmp_path: Path) -> None:
    folder = str(tmp_path / "queues")
    made = QueueBook(folder, LIMITS, print)
    made.open("a", 0.0).tell(Put(key="k", generation=0, payload=b"x"), 0.0)
    made.open("b", 0.0)
    made.close()
    again = QueueBook(folder, LIMITS, print)
    again.reopen(5.0)
    assert sorted(again.queues) == ["a", "b"]
    assert counts(again.queues["a"].state).waiting == 1
    again.close()


def test_a_snapshot_and_its_events_read_the_same_as_events_alone() -> None:
    first = Put(key="a", generation=0, payload=b"x")
    state = QueueState(limits=LIMITS, identity="id")
    step(state, first, 0.0)
    snapshot = book._framed(book.Snapshot(msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=QueueState)))
    then = Took(consumer="t", count=1)
    found, _ = recovered(book._MAGIC + snapshot + book._framed(book.Entry(1.0, then)), LIMITS)
    step(state, then, 1.0)
    assert what_matters(found) == what_matters(state)
