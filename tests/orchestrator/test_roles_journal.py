"""What a leader that is started again finds in the journal, and how often it is started."""

from __future__ import annotations

import resource
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.errors import PlatformError
from robust_run.orchestrator.guarding.restarts import MOST_IN_A_ROW, STEADY_S, Restarts
from robust_run.orchestrator.journal import NAME, Journal, Line, read, spec_of
from robust_run.orchestrator.model.names import MemberName
from robust_run.orchestrator.model.state import JobState
from robust_run.orchestrator.model.words import Asked, Begun, Event, NodeOffered, RankReady, Tick, WorldEnded, WorldRuns
from robust_run.orchestrator.roles_file import parse
from robust_run.orchestrator.rules.core import replay, step
from robust_run.process_start import started_at

SPEC = parse('[roles.a]\ncommand = "a.py"\n[roles.b]\ncommand = ["b.py"]\nmembers = 2\nrestart = "alone"\n')
STORY: list[Event] = [
    NodeOffered(node="here", slots=9),
    Begun(),
    WorldRuns(member=MemberName("a", 0), serial=1),
    WorldRuns(member=MemberName("b", 1), serial=1),
    RankReady(member=MemberName("b", 1), serial=1, rank=0, attempt=0, address="ä:1"),
    WorldEnded(member=MemberName("b", 1), serial=1, code=-9, sentence="killed"),
    Asked(what="scale", role="b", members=2, by="me"),
    Asked(what="stop", signal=2),
]


def written(folder: Path, said: list[str] | None = None) -> tuple[JobState, list[JobState]]:
    """Write a journal; return the state at its end, and those on the way."""
    journal, state = Journal(str(folder), SPEC, (said if said is not None else []).append), JobState()
    moments = [replay(SPEC, [])]
    for number, event in enumerate(STORY):
        actions = step(SPEC, state, event, float(number))
        journal.add(Line(at=0.0, mono=float(number), event=event, actions=actions))
        moments.append(replay(SPEC, [(each, float(at)) for at, each in enumerate(STORY[: number + 1])]))
    journal.close()
    return state, moments


def test_the_journal_leads_to_the_same_state(tmp_path: Path) -> None:
    state, _ = written(tmp_path)
    past, good = read(str(tmp_path / NAME))
    assert good == (tmp_path / NAME).stat().st_size
    assert replay(SPEC, past) == state
    assert spec_of(str(tmp_path)) == SPEC


@given(data=st.data())
def test_cut_anywhere_it_leads_to_a_moment_of_the_past_and_can_be_continued(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("run")
    _, moments = written(folder)
    path = folder / NAME
    whole = path.read_bytes()
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    journal = Journal(str(folder), SPEC, print)
    assert replay(SPEC, journal.past) in moments
    before = len(journal.past)
    journal.add(Line(at=0.0, mono=99.0, event=Begun()))
    journal.close()
    past, _ = read(str(path))
    assert len(past) == before + 1
    assert spec_of(str(folder)) == SPEC


def test_another_version_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / NAME
    for first in (b'{"schema": 2}\n', b"[]\n", b"\xff\n"):
        path.write_bytes(first + b"more\n")
        with pytest.raises(PlatformError):
            Journal(str(tmp_path), SPEC, print)
        assert path.read_bytes() == first + b"more\n"


def test_a_leader_is_started_again_so_often_unless_it_ran_well_between() -> None:
    restarts, now_s = Restarts(), 0.0
    for _ in range(50):
        restarts.started(now_s)
        now_s += STEADY_S
        assert restarts.may_start(now_s)
    for _ in range(MOST_IN_A_ROW - 1):
        restarts.started(now_s)
        assert restarts.may_start(now_s + 1)
    restarts.started(now_s)
    assert not restarts.may_start(now_s + 1)


def test_a_process_that_is_gone_has_no_start() -> None:
    import os

    assert started_at(os.getpid()) > 0
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert started_at(pid) == 0, "not yet collected, and yet gone"
    os.waitpid(pid, 0)
    assert started_at(pid) == 0


def test_what_could_not_be_written_is_written_once_there_is_room(tmp_path: Path) -> None:
    """A full disk is no reason to lose what was decided while it was full."""
    said: list[str] = []
    journal = Journal(str(tmp_path), SPEC, said.append)
    size = (tmp_path / NAME).stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, limits[1]))  # a part of a line fits
        journal.add(Line(at=0.0, mono=1.0, event=Begun()))
        journal.add(Line(at=0.0, mono=2.0, event=Tick()))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert read(str(tmp_path / NAME)) == ([], size)
    assert len(said) == 1
    assert "cannot be written" in said[0]
    journal.add(Line(at=0.0, mono=3.0, event=Tick()))
    journal.close()
    assert [mono for _, mono in read(str(tmp_path / NAME))[0]] == [1.0, 2.0, 3.0]
    assert "is written again" in said[1]
