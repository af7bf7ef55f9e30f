"""A node without a controller reads in the journal that its job is over; nothing else is taken for the end."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from robust_run.launcher.model.actions import Action, Finish, Say
from robust_run.launcher.model.events import Event, Tick
from robust_run.launcher.model.node_events import ControllerResumed
from robust_run.launcher.records.journal import JournalEntry
from robust_run.launcher.start.many.end_on_record import TAIL_BYTES, EndOnRecord, end_in

DONE = Finish(exit_code=0, outcome="done")


def line(event: Event | None = None, action: Action | None = None, term: int = 1) -> bytes:
    return msgspec.json.encode(JournalEntry(at=0.0, mono=0.0, term=term, event=event, action=action)) + b"\n"


END, GOES_ON = line(action=DONE), line(event=ControllerResumed(term=2), term=2)


@pytest.mark.parametrize(
    ("tail", "finish"),
    [
        (b"\n" + END, DONE),
        (b"\n" + END + line(event=Tick()), DONE),
        (b"\n" + END + GOES_ON, None),
        (b"\n" + GOES_ON + END, None),  # by a controller that did not know that it was followed
        (b"\n" + GOES_ON + line(action=DONE, term=2), DONE),
        (END, None),  # it may be cut
        (b"\n" + END[:-1], None),  # half written
        (b"\n" + line(action=Say(text='"finish"')), None),
        (b'\n{"finish": 1}\n', None),
        (b"\n" + b"\xff" * 50 + b'"finish"\n', None),
        (b"", None),
    ],
)
def test_the_end_is_what_the_newest_controller_has_written_last(tail: bytes, finish: Finish | None) -> None:
    assert end_in(tail) == finish


def test_a_look_never_blocks_and_reads_the_end_of_a_long_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    record = EndOnRecord(str(path))
    assert record.look() is None, "there is no journal on this node"
    path.write_bytes(line(event=Tick()) * (2 * TAIL_BYTES // len(line(event=Tick()))) + END)
    for _ in range(600):
        if (finish := record.look()) is not None:
            break
        time.sleep(0.05)
    assert finish == DONE
