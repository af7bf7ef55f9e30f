"""The page of a job of several roles."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from page_ground import assert_harmless, assert_they_draw_without_errors_and_fit

from robust_run.orchestrator.people.views.history import History, Loss, MemberCourse, Moment, Stretch
from robust_run.orchestrator.people.views.page import MOST_LOSSES, RolesPage, roles_html
from robust_run.orchestrator.people.views.page_charts import MOST_ROWS
from robust_run.orchestrator.rules.course_points import CoursePoint, Fill, Waited
from robust_run.roles.queue_words import Counts
from robust_run.roles.view_words import WaitChain
from tests.orchestrator.people.views import WAITS, history, member, view, works

HOSTILE = "<script>alert(1)</script>\u202e\"'&"
LONG = "a_name_without_any_place_to_break_it_that_goes_on_and_on_and_on_and_on_and_on_and_on_and_on_and_on"


def points(count: int = 20, queue: str = "samples", role: str = "rollout") -> tuple[CoursePoint, ...]:
    """A queue that fills and empties; the role waits half of its time, a member of it too."""
    return tuple(
        CoursePoint(
            at_s=1000.0 + 5 * number,
            queues={queue: Fill(number % 3, number % 7, 1)},
            roles={role: Waited(number * 2.5, number * 5.0), "trainer": Waited(number * 4.5, number * 5.0)},
            members={f"{role}/0": Waited(number * 2.5, number * 5.0)},
        )
        for number in range(count)
    )


def page(**more: object) -> RolesPage:
    known = {
        "run": "dapo-1",
        "view": view(WaitChain(steps=(WAITS, works("rollout/1:0")))),
        "history": history(),
        "points": points(),
        "pages": {"rollout-1.1": "members/rollout-1.1/report.html"},
        "incidents": {"rollout-1.1": ((1040.2, "members/rollout-1.1/incidents/0001.html"),)},
        "at_s": 1100.0,
        "again": "robust report /runs/dapo-1",
    }
    return RolesPage(**{**known, **more})  # type: ignore[arg-type]


def words(html: str) -> str:
    body = html[html.index("<main") : html.index("</main>")]
    return " ".join(re.sub(r"<[^>]+>", " ", body).split())


def test_it_says_how_the_job_is_how_each_role_is_used_and_what_was_lost() -> None:
    said = words(roles_html(page()))
    assert "dapo runs 1 min 40 s since it began" in said
    assert "2 roles, 3 members" in said and "1 loss of a member" in said
    assert "2.5 s until one was back, median" in said
    assert "trainer 1 of 1 ready together 10.0 % 0 0" in said, "what is on record of its whole time: 90 % waited"
    assert "rollout 2 of 2 ready 1 to 4 alone 50.0 % 1 2.0 s" in said
    assert "rank 0 was killed by SIGKILL 2.5 s" in said
    assert "Who waits for whom" in said
    assert "&lt;- rollout/ 1:0, which fills it, has worked on 2 items of prompts for 44 s" in said


def test_it_leads_to_members_and_to_the_incidents_that_their_launchers_made_of_losses() -> None:
    html = roles_html(page())
    assert '<a href="members/rollout-1.1/report.html">rollout/1</a>' in html
    assert '<a href="members/rollout-1.1/incidents/0001.html">rank 0 was killed by SIGKILL</a>' in html
    later = page(incidents={"rollout-1.1": ((1400.0, "members/rollout-1.1/incidents/0009.html"),)})
    assert "0009" not in roles_html(later), "another failure, minutes later"
    assert "trainer-0.1/report" not in html, "it has no page: its files are not here"


def test_a_member_has_a_row_with_what_it_was_when_and_what_it_waited() -> None:
    html = roles_html(page())
    row = html[html.index('aria-label="rollout/1: 1 time down"') :]
    row = row[: row.index("</svg>")]
    assert '<rect class=k-starting x="0.0" width="20.0"' in row
    assert '<rect class=a-bad x="400.0" width="20.0"' in row
    assert "runs for 38.0 s" in row and "generation 2" in row
    waited = html[html.index('aria-label="rollout/0: 0 times down"') :]
    assert "class=waits-at-queues" in waited[: waited.index("</svg>")]
    assert 'opacity="0.5"' in waited[: waited.index("</svg>")]


def test_a_loss_of_a_moment_is_wide_enough_to_be_seen() -> None:
    blink = Stretch(kind="down", begin_s=1099.99, end_s=1100.0)
    members = (MemberCourse(name="a/0", role="a", stretches=(blink,)),)
    assert '<rect class=a-bad x="996.0" width="4.0"' in roles_html(page(history=history(members=members)))


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"phase": "over"}, "done"),
        ({"phase": "over", "code": 143, "sentence": "me asked for it"}, "stopped"),
        ({"phase": "over", "code": 1, "sentence": "trainer/0 ended"}, "failed"),
        ({"is_led": False}, "no leader"),
        ({"phase": "restarting"}, "restarting"),
        ({}, "running"),
    ],
)
def test_the_state_is_said_in_a_word(more: dict[str, object], word: str) -> None:
    assert f"<title>{word} · dapo · robust-run</title>" in roles_html(page(view=view(**more)))  # type: ignore[arg-type]


def test_a_job_of_which_nothing_is_on_record_has_a_page() -> None:
    html = roles_html(RolesPage(run="r", view=view(roles=(), queues={}), history=History()))
    assert "Losses None." in words(html)
    assert "Members over time" not in html and "Queues over time" not in html


def test_what_comes_from_a_job_is_text() -> None:
    lost = Loss(at_s=1.0, member=HOSTILE, run=HOSTILE, sentence=HOSTILE)
    named = MemberCourse(name=HOSTILE, role=HOSTILE, stretches=history().members[0].stretches, runs=(HOSTILE,))
    hostile = page(
        run=HOSTILE,
        view=view(
            name=HOSTILE,
            sentence=HOSTILE,
            waits=(HOSTILE,),
            node=HOSTILE,
            queues={HOSTILE: Counts()},
            rollouts=(member(HOSTILE, sentence=HOSTILE, nodes=(HOSTILE,)),),
        ),
        history=history(members=(named,), losses=(lost,), moments=(Moment(at_s=1.0, text=HOSTILE),)),
        points=points(queue=HOSTILE, role=HOSTILE),
        pages={HOSTILE: "members/rollout-0.1/report.html"},
        incidents={HOSTILE: ((1.0, "members/rollout-0.1/incidents/0001.html"),)},
        again=HOSTILE,
    )
    assert_harmless(roles_html(hostile))


def test_a_large_job_has_a_page_of_bounded_size() -> None:
    stretches = tuple(Stretch(kind="runs", begin_s=1000 + n / 50, end_s=1000 + (n + 1) / 50) for n in range(5000))
    members = tuple(
        MemberCourse(name=f"rollout/{n}", role="rollout", stretches=stretches, runs=(f"rollout-{n}.1",))
        for n in range(500)
    )
    losses = tuple(
        Loss(at_s=1000 + n / 50, member=f"rollout/{n % 500}", run=f"rollout-{n % 500}.1", sentence="x" * 300)
        for n in range(5000)
    )
    rollouts = tuple(member(f"rollout/{n}") for n in range(500))
    large = page(view=view(rollouts=rollouts), history=history(members=members, losses=losses), points=points(240))
    html = roles_html(large)
    assert len(html) < 4 << 20
    assert html.count("<div class=row>") == MOST_ROWS
    assert f"{500 - MOST_ROWS} more members not drawn" in html
    assert f"{5000 - MOST_LOSSES:,} older losses not listed".replace(",", "\u202f") in html


def test_it_draws_in_a_browser_without_errors_and_fits(tmp_path: Path) -> None:
    wordy = page(
        run=LONG,
        view=view(
            name=LONG, sentence=LONG, waits=(LONG,), rollouts=(member(f"{LONG}/0", sentence=LONG, nodes=(LONG,)),)
        ),
        history=history(
            members=(
                msgspec.structs.replace(history().members[0], name=LONG, role=LONG),
                *history().members[1:],
            ),
            losses=(Loss(at_s=1.0, member=LONG, run=LONG, sentence=LONG),),
        ),
        points=points(queue=LONG, role=LONG),
    )
    pages = {"usual": roles_html(page()), "wordy": roles_html(wordy)}
    assert_they_draw_without_errors_and_fit(tmp_path, pages)
