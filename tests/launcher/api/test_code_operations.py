"""Wishes about versions of the code: what is granted, and why the rest is not."""

from __future__ import annotations

import time

import msgspec
import pytest
from stories import Story, one_node

from robust_run.errors import UserError
from robust_run.launcher.model.code_events import (
    CodeCaptured,
    CodeVersion,
    RollbackAsked,
    UpdateRefused,
    UpdateStaged,
)
from robust_run.launcher.operator.code.commands import parse_when
from robust_run.launcher.operator.code.show import log_lines, version_lines
from robust_run.launcher.operator.commands.story import Story as Told
from robust_run.launcher.operator.views.code_operations import refused, rollback, update
from robust_run.launcher.operator.views.code_words import MOVED, RefusedWish, RollbackWish, UpdateWish
from robust_run.launcher.operator.views.operations import OperationRefusedError
from robust_run.launcher.operator.views.status import job_view
from robust_run.launcher.records.code.types import FileChange
from robust_run.launcher.records.journal import JournalEntry


def version(number: int, *parents: int, **more: object) -> CodeVersion:
    return CodeVersion(
        number=number, tree="a" * 64, parents=parents, by="ann@here", settings={"n": str(number)}, **more
    )  # type: ignore[arg-type]


@pytest.fixture
def story() -> Story:
    story = one_node()
    story.happens(CodeCaptured(version=version(1)))
    return story


def test_an_update_is_granted_with_the_controllers_clock(story: Story) -> None:
    wish = UpdateWish(version=version(2, 1, note="why\x1b[2J\nnot", at_unix_s=1.0), due_after_s=3600.0)
    granted = update(story.state, wish, 1000.0, has_code=True)
    assert isinstance(granted.event, UpdateStaged)
    assert (granted.event.due_unix_s, granted.event.version.at_unix_s) == (4600.0, 1000.0)
    assert granted.event.version.note == "why [2J not", "nothing that steers a terminal goes on record"
    assert "version 2" in granted.answer.done
    story.happens(granted.event)
    assert story.state.code.pending == 2
    now = update(story.state, UpdateWish(version=version(3, 2), now=True, due_after_s=9.0), 1000.0, has_code=True)
    assert isinstance(now.event, UpdateStaged)
    assert (now.event.now, now.event.due_unix_s) == (True, 0.0)


def test_what_waits_gets_another_time_and_says_what_it_takes_along(story: Story) -> None:
    for made in (version(2, 1, summary="a.py +1 -0"), version(3, 2, summary="b.py +1 -0")):
        granted = update(story.state, UpdateWish(version=made, due_after_s=3600.0), 0.0, has_code=True)
        story.happens(granted.event)
    assert "with version 2 (a.py +1 -0; by ann@here) in it" in granted.answer.done
    assert story.state.code.due_unix_s == 3600.0
    pending = story.state.code.records[2].version
    later = update(story.state, UpdateWish(version=pending, due_after_s=7200.0), 0.0, has_code=True)
    story.happens(later.event)
    assert (story.state.code.pending, story.state.code.due_unix_s) == (3, 7200.0)
    never = update(story.state, UpdateWish(version=pending), 0.0, has_code=True)
    story.happens(never.event)
    assert story.state.code.due_unix_s == 0.0
    now = update(story.state, UpdateWish(version=pending, now=True), 0.0, has_code=True)
    assert isinstance(now.event, UpdateStaged)
    assert now.event.now
    with pytest.raises(OperationRefusedError) as refusal:
        update(story.state, UpdateWish(version=msgspec.structs.replace(pending, env={"A": "b"})), 0.0, has_code=True)
    assert refusal.value.status == MOVED


@pytest.mark.parametrize("second", [0.0, 120.0, 6 * 3600.0])
def test_what_is_said_is_when_the_earlier_of_two_updates_is_due(story: Story, second: float) -> None:
    wish = UpdateWish(version=version(2, 1), due_after_s=60.0)
    story.happens(update(story.state, wish, 1000.0, has_code=True).event)
    later = update(story.state, UpdateWish(version=version(3, 2), due_after_s=second), 1010.0, has_code=True)
    assert "or in 50 s at the latest" in later.answer.done
    story.happens(later.event)
    assert story.state.code.due_unix_s == 1060.0


def test_why_there_is_no_way_back_is_said_as_it_is(story: Story) -> None:
    story.happens(UpdateStaged(version=version(2, 1)))
    story.happens(RollbackAsked(reason="too slow", by="ann"))
    with pytest.raises(
        OperationRefusedError, match=r"version 2 was rolled back: taken back by ann: too slow; .*--again"
    ):
        rollback(story.state, RollbackWish(to=2))
    with pytest.raises(OperationRefusedError, match=r"there is no version 7"):
        rollback(story.state, RollbackWish(to=7))
    with pytest.raises(OperationRefusedError, match=r"version 1 runs already"):
        rollback(story.state, RollbackWish(to=1))


@pytest.mark.parametrize(
    ("made", "has_code", "status"),
    [
        (version(3, 1), True, MOVED),
        (version(2, 2), True, MOVED),
        (version(2), True, MOVED),
        (version(2, 1), False, 409),
        (version(2, 1, env={"RANK": "1"}), True, 400),
        (version(2, 1, env={"": "1"}), True, 400),
        (version(2, 1, env={"A": "\0"}), True, 400),
        (version(2, 1, 9), True, 409),
    ],
)
def test_an_update_that_cannot_be_is_refused(story: Story, made: CodeVersion, has_code: bool, status: int) -> None:
    with pytest.raises(OperationRefusedError) as refusal:
        update(story.state, UpdateWish(version=made), 0.0, has_code=has_code)
    assert refusal.value.status == status


def test_nothing_is_staged_in_a_job_that_is_over_or_was_not_captured(story: Story) -> None:
    with pytest.raises(OperationRefusedError, match=r"not captured"):
        update(one_node().state, UpdateWish(version=version(1, 0)), 0.0, has_code=True)
    story.state.stop_signal = 15
    with pytest.raises(OperationRefusedError, match=r"being stopped"):
        update(story.state, UpdateWish(version=version(2, 1)), 0.0, has_code=True)
    with pytest.raises(OperationRefusedError, match=r"no time"):
        update(
            one_node_with_code().state, UpdateWish(version=version(2, 1), due_after_s=float("nan")), 0.0, has_code=True
        )


def one_node_with_code() -> Story:
    story = one_node()
    story.happens(CodeCaptured(version=version(1)))
    return story


def test_a_rollback_needs_something_to_go_back_to(story: Story) -> None:
    for wish in (RollbackWish(), RollbackWish(to=1), RollbackWish(to=7)):
        with pytest.raises(OperationRefusedError):
            rollback(story.state, wish)
    story.happens(UpdateStaged(version=version(2, 1)))
    granted = rollback(story.state, RollbackWish(by="bob", reason="changed my mind"))
    assert isinstance(granted.event, RollbackAsked)
    assert "version 2 is taken back" in granted.answer.done


def test_a_refusal_goes_on_record() -> None:
    assert refused(RefusedWish(reason="it does not compile\n", by="ann")).event == UpdateRefused(
        reason="it does not compile", by="ann"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", (True, 0.0)),
        ("failure", (False, 86400.0)),
        ("never", (False, 0.0)),
        ("90s", (False, 90.0)),
        ("6h", (False, 21600.0)),
    ],
)
def test_when_is_read(text: str, expected: tuple[bool, float]) -> None:
    assert parse_when(text) == expected


@pytest.mark.parametrize("text", ["", "soon", "-1h", "nan", "inf", "1e9d", "h"])
def test_when_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"--when"):
        parse_when(text)


def test_people_read_what_became_of_versions(story: Story) -> None:
    story.happens(UpdateStaged(version=version(2, 1, summary="train.py +1 -1", note="try \x1b[2J")))
    code = story.state.code
    lines = log_lines(code)
    assert lines[0].startswith("*  1  trusted")
    assert lines[1].startswith(">  2  pending")
    assert "\x1b" not in "".join(lines)
    assert log_lines(msgspec.structs.replace(code, records=())) == ["no version of the code is on record"]
    shown = version_lines(code.records[1], code, [FileChange(path="train.py", kind="changed", added=1, removed=1)])
    assert any("made of  version 1" in line for line in shown)
    assert any("train.py  +1 -1" in line for line in shown)


def test_events_tell_of_updates() -> None:
    told = Told(local=time.gmtime)
    for event, words in (
        (CodeCaptured(version=version(1, commit="c" * 40)), "commit cccccccccc"),
        (UpdateStaged(version=version(2, 1), now=True), "put in place at once"),
        (UpdateRefused(reason="it does not compile", by="ann"), "was not taken: it does not compile"),
        (RollbackAsked(to=1, by="bob"), "rollback to version 1 asked for by bob"),
    ):
        line = msgspec.json.encode(JournalEntry(at=0.0, mono=0.0, event=event))
        assert words in told.tell(line)[-1]


def test_the_status_says_what_runs_and_what_waits(story: Story) -> None:
    from robust_run.launcher.controller.handle_types import JobFacts

    facts = JobFacts(run_id="r", script="s", host="h", pid=1, started_unix_s=0.0, run_directory="", policy=story.policy)
    assert job_view(facts, story.state, 0.0).code == ""
    story.happens(UpdateStaged(version=version(2, 1)))
    assert job_view(facts, story.state, 0.0).code == "code: version 1 of 2; version 2 waits for the next attempt"
    story.happens(UpdateStaged(version=version(3, 2), due_unix_s=90.0))
    assert job_view(facts, story.state, 45.0).code.endswith("; version 3 waits for the next attempt, 45 s at most")
