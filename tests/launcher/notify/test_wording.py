"""What a notice says, and that nothing of a job can steer the chat that shows it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from notices import incident

from robust_run.launcher.records.notify.types import LONGEST_TEXT, Notification
from robust_run.launcher.records.notify.wording import About, ended, escaped, opened, resolved, with_suppressed

ABOUT = About(run_id="run", script="train.py", host="gpu-0", run_directory="/runs/run")


def test_an_incident_that_was_opened() -> None:
    notice = opened(ABOUT, incident(), 1002.0)
    assert notice.text == (
        "robust-run job run (train.py) on gpu-0: rank 3 was killed by SIGKILL; the job starts again (it had made progress)"
    )
    assert notice.incident is not None
    assert (notice.event, notice.incident.kind, notice.incident.nodes) == ("incident_opened", "crash", ("gpu-1",))
    assert len(notice.incident.ranks) == 16


def test_one_that_is_over_says_how_long_it_took() -> None:
    notice = resolved(ABOUT, msgspec.structs.replace(incident(), resumed_s=1012.0), 1013.0)
    assert "trains again, 12.0 s after: rank 3 was killed by SIGKILL" in notice.text


@pytest.mark.parametrize(
    ("outcome", "said"), [("failed", "rank 3 was killed"), ("stopped", "stopped by ann"), ("done", "done with")]
)
def test_the_end_of_a_job_says_why(outcome: str, said: str) -> None:
    notice = ended(ABOUT, outcome, 9, "stopped by ann", 1.0, incident(action="stop"))
    assert said in notice.text
    assert (notice.outcome, notice.exit_code) == (outcome, 9)


def test_what_was_left_out_is_said() -> None:
    notice = with_suppressed(opened(ABOUT, incident(), 1.0), 37)
    assert notice.text.endswith("(and 37 notices before this one were not sent)")
    assert notice.suppressed == 37


def test_what_a_program_printed_mentions_nobody_and_links_nowhere() -> None:
    text = opened(ABOUT, incident(sentence="<!channel> <https://evil|here> & \x1b[2J\nall is well"), 1.0).text
    assert "<" not in text
    assert "&lt;!channel&gt;" in text
    assert text.isprintable()


@given(st.text(max_size=5000))
def test_a_text_is_one_short_line_whatever_happened(text: str) -> None:
    line = escaped(text)
    assert "<" not in line
    assert line == line.strip()
    assert line.isprintable()
    assert len(line) <= 5 * LONGEST_TEXT


def test_every_action_has_words() -> None:
    for action in ("relaunch", "evict", "diagnose", "rollback", "replay", "stop", "report"):
        assert opened(ABOUT, incident(action=action), 1.0).text


def test_a_notice_is_json_that_is_read_back() -> None:
    notice = opened(ABOUT, incident(), 1.0)
    assert msgspec.json.decode(msgspec.json.encode(notice), type=Notification) == notice
