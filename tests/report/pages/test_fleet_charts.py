"""Nodes against their peers on a job's page: small multiples, and the node that stands out has its own line."""

from __future__ import annotations

import re

import msgspec
import pytest
from fleet_histories import of_nodes, row
from page_ground import HOSTILE, assert_harmless, job_page

from robust_run.health.sensors.usage import SAID
from robust_run.report.pages.fleet_charts import NUMBERS
from robust_run.report.pages.job_page import job_html
from robust_run.report.usage import (
    COMPARED,
    LARGEST_BYTES,
    MOST_ODD,
    MOST_POINTS,
    UsageHistory,
    UsagePoint,
    added,
    point_of,
)


def part(html: str) -> str:
    found = re.search(r"<div data-part=fleet>.*?</section></div>", html, re.DOTALL)
    return found.group() if found else ""


def test_all_that_nodes_say_has_a_name_and_a_picture() -> None:
    assert set(NUMBERS) == set(SAID)
    assert part(job_html(job_page(usage=of_nodes(16)))).count("<figure") == len(SAID)


def test_the_node_that_stands_out_has_a_line_and_what_it_was_named_for_comes_first() -> None:
    html = job_html(job_page(usage=of_nodes(16, odd=7)))
    assert_harmless(html)
    drawn = part(html)
    assert "gpu-0007 stands out by GPU clock" in drawn
    figures = drawn.split("<figure")[1:]
    assert figures[0].startswith(" class=out") and "GPU clock" in figures[0] and "class=since" in figures[0]
    assert not [each for each in figures[1:] if "class=out" in each]
    assert all("<title>gpu-0007</title>" in each for each in figures), "also where it is like the others"


def test_where_nobody_stands_out_that_is_said_and_two_nodes_are_no_fleet() -> None:
    drawn = part(job_html(job_page(usage=of_nodes(16))))
    assert "No node stands out." in drawn and "class=line" not in drawn
    assert part(job_html(job_page(usage=of_nodes(2)))) == ""
    assert part(job_html(job_page())) == ""


@pytest.mark.parametrize("hostile", HOSTILE)
def test_names_of_nodes_are_text(hostile: str) -> None:
    plain = hostile.replace("{", "").replace("}", "")
    assert_harmless(job_html(job_page(usage=of_nodes(3, odd=1, name=plain + "{}"))))


def test_of_the_nodes_that_stand_out_few_are_kept_and_points_that_become_one_keep_them() -> None:
    points = of_nodes(16, odd=7)
    assert set(points[-1].spreads["gpu_sm_clock_mhz"].nodes) == {"gpu-0007"} and not points[0].odd
    merged = added(
        points, msgspec.structs.replace(points[-1], begin_s=points[-1].end_s, end_s=points[-1].end_s + 10), 5
    )
    assert merged[-1].odd and "gpu-0007" in merged[-1].spreads["rdma_retries_per_s"].nodes
    rows = {f"{at}": row(0, at, -1) for at in range(12)}
    many = point_of(0.0, 10.0, rows, dict.fromkeys(rows, "cpu_percent"))
    assert many is not None and len(many.odd) == MOST_ODD


def test_the_largest_history_with_nodes_that_stand_out_is_as_small_as_is_said() -> None:
    rows = {f"{index}{'n' * 300}": tuple(12.34 for _ in SAID) for index in range(8)}
    points: tuple[UsagePoint, ...] = ()
    for index in range(MOST_POINTS + 20):
        new = point_of(
            1_790_000_000.123 + index * 10, 1_790_000_010.123 + index * 10, rows, dict.fromkeys(rows, "x" * 20)
        )
        assert new is not None
        points = added(points, new)
    assert len(COMPARED) > 10
    assert len(msgspec.json.encode(UsageHistory(points=points))) < LARGEST_BYTES
