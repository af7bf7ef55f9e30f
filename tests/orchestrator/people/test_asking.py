"""What is read of a job of several roles, and of whom it is asked."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from page_ground import incident

from robust_run.errors import PlatformError
from robust_run.orchestrator.journal import NAME, Journal
from robust_run.orchestrator.model.names import MemberName
from robust_run.orchestrator.model.state import JobState
from robust_run.orchestrator.model.words import Begun, Event, Line, NodeOffered, WorldRuns
from robust_run.orchestrator.people.asking import HistoryReader, incidents_of, not_here, whole_chains
from robust_run.orchestrator.people.views.history import History, MemberCourse
from robust_run.orchestrator.roles_file import parse
from robust_run.orchestrator.rules import core
from robust_run.roles.view_words import WaitChain
from tests.orchestrator.people.views import WAITS, member, view, works

SPEC = parse('[roles.a]\ncommand = "a.py"\n')


def journal(folder: Path, *events: Event) -> None:
    written, state = Journal(str(folder), SPEC, print), JobState()
    for number, event in enumerate((NodeOffered(node="here", slots=9), Begun(), *events)):
        actions = core.step(SPEC, state, event, float(number))
        written.add(Line(at=1000.0 + number, mono=float(number), event=event, actions=actions))
    written.close()


def test_of_a_member_on_another_node_the_node_and_the_command_there_are_named(tmp_path: Path) -> None:
    chain = WaitChain(steps=(WAITS, works("rollout/1:0")))
    shown = view(chain, rollouts=(member("rollout/1", nodes=("node-b",)),))
    (made,) = whole_chains(str(tmp_path), shown, {})
    assert made.line.endswith("for 44 s <- it runs on node-b, and its files are not to be seen here")
    assert made.hints == (f"on node-b: robust why {tmp_path}/members/rollout-1.1",)
    assert [each.name for each in not_here(str(tmp_path), shown)] == ["rollout/1"]


def test_a_launcher_that_is_gone_is_said_and_the_chain_is_told_as_far_as_it_is_known(tmp_path: Path) -> None:
    (tmp_path / "members" / "rollout-1.1").mkdir(parents=True)
    (tmp_path / "members" / "rollout-1.1" / "journal.jsonl").write_text("no journal\n")
    (made,) = whole_chains(str(tmp_path), view(WaitChain(steps=(WAITS, works("rollout/1:0")))), {})
    assert "for 44 s <- its launcher says nothing: " in made.line


def test_what_is_added_to_a_journal_is_read_later(tmp_path: Path) -> None:
    journal(tmp_path)
    reader = HistoryReader(str(tmp_path))
    assert [each.text for each in reader.history(None).moments] == ["here is there", "the job begins"]
    with open(tmp_path / NAME, "ab") as file:
        event = WorldRuns(member=MemberName("a", 0), serial=1)
        file.write(msgspec.json.encode(Line(at=1005.0, mono=5.0, event=event)) + b"\n")
    history = reader.history(1010.0)
    assert history.moments[-1].text == "a/0 runs (generation 1)"
    assert history.known_s == 1010.0


def test_a_journal_of_a_later_version_is_told_up_to_what_cannot_be_understood(tmp_path: Path) -> None:
    journal(tmp_path)
    with open(tmp_path / NAME, "ab") as file:
        file.write(
            b'{"at":1.0,"mono":1.0,"event":{"type":"of_tomorrow"}}\n{"at":2.0,"mono":2.0,"event":{"type":"tick"}}\n'
        )
    assert len(HistoryReader(str(tmp_path)).history(None).moments) == 2


def test_a_run_that_has_no_journal_yet_is_said(tmp_path: Path) -> None:
    with pytest.raises(PlatformError, match="not written yet"):
        HistoryReader(str(tmp_path))


def test_incidents_of_all_members_are_one_list_by_time(tmp_path: Path) -> None:
    for name, at_s in (("a-0.1", 300.0), ("b-0.1", 100.0), ("b-0.2", 200.0)):
        folder = tmp_path / "members" / name / "incidents"
        folder.mkdir(parents=True)
        made = msgspec.structs.replace(incident(), onset_s=at_s, detected_s=at_s, decided_s=at_s)
        (folder / "0001.json").write_bytes(msgspec.json.encode(made))
    (tmp_path / "members" / "b-0.2" / "incidents" / "0002.json").write_text("{")
    members = [
        MemberCourse(name="a/0", role="a", runs=("a-0.1",)),
        MemberCourse(name="b/0", role="b", runs=("b-0.1", "b-0.2", "b-0.3")),
    ]
    found, unread = incidents_of(str(tmp_path), History(members=tuple(members)))
    assert [(each.number, each.member, each.run) for each in found] == [
        (1, "b/0", "members/b-0.1"),
        (2, "b/0", "members/b-0.2"),
        (3, "a/0", "members/a-0.1"),
    ]
    assert unread == ("members/b-0.2: 1 incident unreadable (2); 1 left out",)
