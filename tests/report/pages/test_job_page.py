"""The page of a job: how it is, how much of its time was training, where the rest went, and what became of it."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from page_ground import BEGIN_S, DONE, HOSTILE, assert_harmless, attempt, incident, job_page

from robust_run.report.effective import Standstill
from robust_run.report.heat import Heat
from robust_run.report.pages.ettr import spans_of
from robust_run.report.pages.job_page import job_html
from robust_run.report.pages.types import CodeRow, Drawn, EvictedHost, Happened, IncidentCost, JobPage
from robust_run.report.pages.words import clock_time
from robust_run.report.types import Action


def words(html: str) -> str:
    without = re.sub(r"<(style|script|title)\b.*?</\1>", " ", html, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", without.replace("<wbr>", "")))


def heat(ranks: int = 8, steps: int = 20) -> Heat:
    own = tuple(tuple(30.0 if rank == 3 else 10.0 for _ in range(steps)) for rank in range(ranks))
    return Heat(tuple((rank,) for rank in range(ranks)), 1, own, (10.0,) * steps)


def test_a_job_that_runs_says_so_and_renews_itself() -> None:
    html = job_html(job_page())
    said = words(html)
    assert "running" in said
    assert "8 ranks on 2 nodes, attempt 1" in said
    assert "id=live" in html
    assert "connect-src &#39;self&#39;" in html or "connect-src 'self'" in html


@pytest.mark.parametrize(
    ("drawn", "said", "not_said"),
    [
        (
            Drawn(at_s=BEGIN_S + 300.0, life="running"),
            [f"as of {clock_time(BEGIN_S + 300.0)}, running", "8 ranks on 2 nodes, attempt 1"],
            ["controller ended", "No end"],
        ),
        (
            Drawn(at_s=BEGIN_S, life="gone", note="its controller on gpu-0 is gone", command="robust-run --resume /runs/llama"),
            [
                "No end was recorded",
                "its controller on gpu-0 is gone",
                "Continue it: robust-run --resume /runs/llama",
                "no controller",
            ],
            [", running"],
        ),
        (
            Drawn(at_s=BEGIN_S, life="unknown", note="it runs or ran on gpu-0", command="robust status", where="gpu-0"),
            ["It is not known here whether it runs", "it runs or ran on gpu-0", "Ask, on gpu-0: robust status"],
            ["--resume", "No end was recorded"],
        ),
    ],
)  # fmt: skip
def test_a_page_that_stays_as_it_is_says_of_when_it_is_and_how_the_job_was(
    drawn: Drawn, said: list[str], not_said: list[str]
) -> None:
    html = job_html(job_page(drawn=drawn))
    assert f"as of {clock_time(drawn.at_s)}" in words(html)
    assert all(each in words(html) for each in said)
    assert not any(each in words(html) for each in not_said)
    assert "fetch(" not in html, "it renews itself only where a controller serves it"
    assert "id=live" not in html


def test_a_job_that_is_over_asks_nobody() -> None:
    html = job_html(job_page(drawn=DONE, outcome="done", ended_s=BEGIN_S + 300.0))
    assert "Finished after 5 min" in words(html)
    assert "fetch(" not in html
    assert "connect-src" not in html


def test_a_failed_job_begins_with_why() -> None:
    html = job_html(
        job_page(
            drawn=DONE, outcome="failed", exit_code=139, reason="rank 3 was killed by SIGSEGV", ended_s=BEGIN_S + 300.0
        )
    )
    said = words(html)
    assert "Failed after 5 min: rank 3 was killed by SIGSEGV" in said
    assert said.index("SIGSEGV") < said.index("ETTR")


def test_ettr_is_shown_with_its_definition() -> None:
    said = words(job_html(job_page()))
    assert "ETTR 92.6 % of all time" in said, "278 of 300 s"
    assert "productive time divided by wall-clock time" in said
    assert "60 minutes" in said


def test_each_incident_leads_to_its_page() -> None:
    html = job_html(job_page())
    assert "<a href=incidents/0001.html>" in html
    assert "rank 5 never joined all_reduce #60" in words(html)


def test_unproductive_time_has_names_and_adds_up() -> None:
    said = words(job_html(job_page()))
    for name in (
        "first start",
        "unnoticed",
        "finding the cause",
        "ending the old workers",
        "waiting for nodes",
        "starting again",
    ):
        assert name in said
    assert "22.0 s of 5 min were not spent on training that lasted" in said


def test_a_slow_rank_stands_out_in_the_heat_map() -> None:
    said = words(job_html(job_page(heat=heat(), heat_nodes={3: "gpu-0000"})))
    assert "Rank 3 (gpu-0000) works 3 times as long as the others" in said


def test_evictions_and_versions_have_their_reasons() -> None:
    rows = (
        CodeRow(number=1, fate="trusted", summary="", by="ann"),
        CodeRow(
            number=2,
            fate="rolled_back",
            summary="train.py +3 -1",
            why="a parameter is no finite number",
            note="larger loss scale",
        ),
    )
    gone = (EvictedHost(node="gpu-7", reason="Xid 79", by="robust-run", at_s=BEGIN_S),)
    said = words(job_html(job_page(code=rows, evictions=gone)))
    assert "gpu-7 Xid 79 robust-run" in said
    assert "rolled back train.py +3 -1 larger loss scale" in said


def test_a_job_before_its_first_attempt_has_a_page() -> None:
    html = job_html(
        job_page(attempts=(), incidents=(), spans=spans_of((), (), BEGIN_S, BEGIN_S + 3.0), phase="gathering")
    )
    assert "waiting for nodes" in words(html)
    assert_harmless(html)


def hostile_page() -> JobPage:
    page = job_page(heat=heat(), heat_nodes=dict.fromkeys(range(8), HOSTILE), heat_note=HOSTILE)
    bad = incident(verdict={"sentence": HOSTILE, "nodes": (HOSTILE,)})
    return msgspec.structs.replace(
        page,
        run_id=HOSTILE, run=HOSTILE, script=HOSTILE, command=HOSTILE, host=HOSTILE, reason=HOSTILE,
        incidents=(Happened(incident=bad, lost=IncidentCost(seconds=1.0, ranks=1, is_over=True)),),
        evictions=(EvictedHost(node=HOSTILE, reason=HOSTILE, by=HOSTILE, at_s=0.0),),
        code=tuple(CodeRow(number=n, fate=HOSTILE, why=HOSTILE, by=HOSTILE, note=HOSTILE, summary=HOSTILE) for n in (1, 2)),
    )  # fmt: skip


@pytest.mark.parametrize("outcome", ["", "failed", "stopped"])
@pytest.mark.parametrize("life", ["running", "over", "gone", "unknown"])
def test_what_a_job_is_called_is_text_and_nothing_else(outcome: str, life: Any) -> None:
    drawn = Drawn(at_s=BEGIN_S, life=life, served=life == "running", note=HOSTILE, command=HOSTILE, where=HOSTILE)
    assert_harmless(job_html(msgspec.structs.replace(hostile_page(), outcome=outcome, drawn=drawn)))


def test_a_large_job_of_many_attempts_stays_small() -> None:
    nodes = 1250
    attempts = tuple(
        attempt(
            n,
            100.0 * n,
            nodes=nodes,
            nproc=8,
            started_s=100.0 * n + 1,
            first_step_s=100.0 * n + 2,
            ended_s=100.0 * n + 99,
            steps=50,
        )
        for n in range(2000)
    )
    incidents = tuple(
        incident(n + 1, n, 100.0 * n + 95, detected_s=1.0, decided_s=2.0, resumed_s=7.0) for n in range(1999)
    )
    page = job_page(
        world_size=nodes * 8,
        attempts=attempts,
        incidents=tuple(
            Happened(incident=each, lost=IncidentCost(seconds=7.0, ranks=10_000, is_over=True)) for each in incidents
        ),
        spans=spans_of(attempts, incidents, BEGIN_S, BEGIN_S + 200_000.0),
        evictions=tuple(
            EvictedHost(node=f"gpu-{n}", reason="lost", by="robust-run", at_s=BEGIN_S) for n in range(3000)
        ),
        heat=heat(512, 256),
    )
    html = job_html(page)
    assert len(html.encode()) < 10_000_000
    assert "older incidents not listed" in words(html)


def standing(end_s: float | None = None) -> JobPage:
    """A job whose ranks wait for one, which was only reported."""
    stood = (Standstill(BEGIN_S + 260.0, end_s, 1),)
    attempts = (attempt(0, 0.5, started_s=1.0, first_step_s=10.0, standstills=stood),)
    told = incident(onset_s=260.0, action=Action(name="report", reason="--on-hang report"), resumed_s=None)
    cost = IncidentCost(seconds=40.0, ranks=8, is_over=end_s is not None, steps=0)
    spans = spans_of(attempts, (told,), BEGIN_S, BEGIN_S + 300.0)
    return job_page(attempts=attempts, incidents=(Happened(incident=told, lost=cost),), spans=spans)


def test_a_job_whose_ranks_stand_still_is_hung_and_it_counts() -> None:
    said = words(job_html(standing()))
    assert "HUNG" in said
    assert (
        "Hung for 40.0 s: rank 5 never joined all_reduce #60 of group tp_2It is in data.py:88 batch. 8 ranks"
        in said.replace(" It", "It")
    )
    assert "What to do about it: incident 1" in said
    assert "running" not in said.partition("What the figures mean")[0]
    assert "standing still" in said
    assert "83.3%" in said or "83.3 %" in said, "250 of 300 s"
    assert "40.0 s …" in said, "so far"


def test_a_job_whose_ranks_went_on_runs_and_the_standstill_counts_still() -> None:
    said = words(job_html(standing(BEGIN_S + 290.0)))
    assert "HUNG" not in said
    assert "running" in said
    assert "standing still" in said
