"""Memory and GPUs on a job's page: lines of few nodes, a band of many, marks at the same moments as elsewhere on the page."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from page_ground import BEGIN_S, HOSTILE, assert_harmless, job_page

from robust_run.report.pages.job_page import job_html
from robust_run.report.usage import UsagePoint, added, point_of

Row = Sequence[float]


def history(rows: Callable[[int], Mapping[str, Row]], turns: int = 30) -> tuple[UsagePoint, ...]:
    """What nodes said, every 10 s from the begin of the job."""
    points: tuple[UsagePoint, ...] = ()
    for turn in range(turns):
        at_s = BEGIN_S + 10.0 * turn
        point = point_of(at_s, at_s + 10.0, rows(turn))
        points = added(points, point) if point is not None else points
    return points


def of_nodes(count: int, gpus: bool = True) -> tuple[UsagePoint, ...]:
    """Node 1 leaks memory."""
    return history(
        lambda turn: {
            f"gpu-{n:04d}": (20.0, 30.0 + (2 * turn if n == 1 else 0.0), 0, 0, *((60.0, 90.0, 70.0) if gpus else ()))
            for n in range(count)
        }
    )


def part(html: str) -> str:
    found = re.search(r"<div data-part=usage>.*?</section></div>", html, re.DOTALL)
    return found.group() if found else ""


def test_where_nothing_is_known_nothing_is_drawn() -> None:
    """So it is of every run directory that an older robust-run left."""
    assert part(job_html(job_page())) == ""
    before = (point_of(BEGIN_S - 100.0, BEGIN_S - 50.0, {"a": (1.0, 2.0)}),)
    assert part(job_html(job_page(usage=before))) == "", "nor what is of another time"


def test_few_nodes_have_a_line_each_and_the_fullest_is_named() -> None:
    drawn = part(job_html(job_page(usage=of_nodes(2))))
    assert_harmless(job_html(job_page(usage=of_nodes(2))))
    assert drawn.count("<figure>") == 5
    assert "highest, on gpu-0001; median 30\u202f%; peak 88\u202f% on gpu-0001 at" in drawn
    assert "<title>gpu-0000</title>" in drawn
    assert "class=band" not in drawn


def test_one_node_is_not_named_again_and_again() -> None:
    drawn = part(job_html(job_page(nodes=1, usage=of_nodes(1))))
    assert "peak 30\u202f% at" in drawn
    assert "median" not in drawn
    assert "highest" not in drawn


def test_ten_thousand_ranks_are_a_band_of_the_same_size() -> None:
    few, many = (part(job_html(job_page(usage=of_nodes(count)))) for count in (9, 1250))
    assert "highest, on gpu-0001; median 30\u202f%" in many
    assert "lowest to highest node" in many
    assert len(many) < 1.1 * len(few) < 60_000


def test_attempts_and_incidents_are_marked_where_the_course_of_ettr_has_them() -> None:
    html = job_html(job_page(usage=of_nodes(2)))
    marks = re.findall(r'<path class=mark d="M([0-9.]+) [0-9.]+v[0-9]+"><title>incident 1', html)
    assert len(marks) == 2 * 6, "ETTR and five pictures, for wide windows and phones"
    assert len(set(marks)) == 2, "the same place in all of a width"
    assert "<title>attempt 1</title>" in part(html)


def test_a_time_of_which_nothing_is_known_is_a_gap() -> None:
    points = history(lambda turn: {} if 10 <= turn < 20 else {"a": (1.0, 50.0)})
    line = re.search(r'<path class="node n1" d="([^"]*)"', part(job_html(job_page(usage=points))))
    assert line
    assert line.group(1).count("M") == 2


def test_without_gpus_there_is_no_picture_of_them() -> None:
    drawn = part(job_html(job_page(usage=of_nodes(2, gpus=False))))
    assert "Memory and CPU" in drawn
    assert "GPU" not in drawn


def test_a_node_may_be_called_anything() -> None:
    for count in (1, 3, 20):
        rows = {f"{HOSTILE}{n}": (1.0, 2.0 + n) for n in range(count)}
        assert_harmless(job_html(job_page(usage=history(lambda _, rows=rows: rows))))  # type: ignore[misc]
