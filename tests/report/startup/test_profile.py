"""Starts of many jobs: the figures by number of nodes, and who is called slow again and again, and who never."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest
from made_starts import attempt_of, node_start, startup_of
from page_ground import HOSTILE, assert_harmless, look_at

from robust_run.report.pages.startups_page import startups_html
from robust_run.report.startup import profile_text
from robust_run.report.startup.profile import ProfileFold, quantile
from robust_run.report.startup.profile_types import StartProfile, UnreadRun
from robust_run.report.startup.slow_nodes import SlowNodes, judged, median_without, tail
from robust_run.report.startup.summarise import summarise
from robust_run.report.startup.types import AttemptStartup, StartSpan

NAMES = [f"n{number}" for number in range(12)]


def start(
    names: list[str], imports_s: dict[str, float] | None = None, attempt: int = 0, every_s: float = 1.0
) -> AttemptStartup:
    """A start on these nodes, the first of which has rank 0. `imports_s`: of nodes that are slower than the others."""
    nodes = [
        msgspec.structs.replace(
            node_start(place, imports_s=(imports_s or {}).get(name, every_s), attempt=attempt, first_step_s=130.0),
            node=name,
        )
        for place, name in enumerate(names)
    ]
    return attempt_of(*nodes, is_first=attempt == 0)


def profile_of(*runs: list[AttemptStartup], unread: tuple[UnreadRun, ...] = ()) -> StartProfile:
    fold = ProfileFold()
    for number, attempts in enumerate(runs):
        fold.add(f"/runs/run-{number}", startup_of(*attempts))
    for each in unread:
        fold.leave_out(each)
    return fold.profile(["/runs"])


def slow_names(*runs: list[AttemptStartup]) -> list[str]:
    return [each.node for each in profile_of(*runs).slow_nodes]


SLOW = {"n7": 9.0}


def test_the_median_and_the_95_percent_of_each_phase_by_number_of_nodes() -> None:
    runs = [[start(NAMES[:nodes], every_s=seconds)] for nodes in (1, 4) for seconds in (1.0, 2.0, 3.0, 4.0)]
    runs.append([start(NAMES[:4]), start(NAMES[:4], attempt=1, every_s=0.5)])
    found = profile_of(*runs)
    assert [(group.kind, group.nodes, group.starts, group.runs) for group in found.groups] == [
        ("first", 1, 4, 4),
        ("first", 4, 5, 5),
        ("restart", 4, 1, 1),
    ]
    assert (found.runs, found.starts) == (9, 10)
    imports = {group.nodes: group.phases for group in found.groups if group.kind == "first"}
    (four,) = (each for each in imports[4] if each.phase == "imports")
    assert (four.median_s, four.p95_s, four.longest_s, four.longest_run) == (2.0, 4.0, 4.0, "/runs/run-7")


@pytest.mark.parametrize(("part", "expected"), [(0.5, 10), (0.95, 19), (1.0, 20)])
def test_a_quantile_is_one_of_the_values(part: float, expected: int) -> None:
    assert quantile(list(range(1, 21)), part) == expected
    assert quantile([7.0], part) == 7.0


def test_starts_without_a_first_step_are_counted_and_have_no_part() -> None:
    hung = attempt_of(node_start(0, first_step_s=None))
    found = profile_of([start(NAMES[:2]), msgspec.structs.replace(hung, attempt=1)], [hung], [])
    assert (found.runs, found.starts, found.unfinished_starts) == (1, 1, 1)
    assert [(each.path, each.kind) for each in found.unread] == [
        ("/runs/run-1", "unfinished"),
        ("/runs/run-2", "unfinished"),
    ]


def test_a_node_that_is_slow_in_most_of_its_starts_is_named_with_how_often_and_by_how_much() -> None:
    runs = [[start([*NAMES[:3], "n7"], SLOW if number % 4 else None)] for number in range(20)]
    (found,) = profile_of(*runs).slow_nodes
    assert (found.node, found.slow_starts, found.starts, found.runs, found.runs_compared) == ("n7", 15, 20, 15, 20)
    assert [(each.phase, each.starts, each.extra_s, each.times) for each in found.phases] == [("imports", 15, 8.0, 9.0)]
    assert found.others_share == 0.0
    assert profile_text.sentence(found) == (
        "slow in 15 of 20 starts (15 of 20 runs; others: 0 %): imports 8.0 s more (9.0 times as long)"
    )


@pytest.mark.parametrize(
    ("why", "runs"),
    [
        ("it is alone in its starts", [[start(["n7"], SLOW)]] * 9),
        ("once is not again and again", [[start([*NAMES[:4], "n7"], SLOW)]]),
        ("it has rank 0", [[start(["n7", *NAMES[:3]], SLOW)]] * 9),
        ("all are as slow in that start", [[start([*NAMES[:3], "n7"], every_s=9.0)]] * 9),
        (
            "it was slow on one day, in one of many runs",
            [[start([*NAMES[:3], "n7"], SLOW)] * 5, *[[start(NAMES[:6])]] * 9],
        ),
        (
            "most of its starts are fast",
            [*[[start([*NAMES[:3], "n7"], SLOW)]] * 3, *[[start([*NAMES[:3], "n7"])]] * 40],
        ),
        ("two of one name cannot be told apart", [[start(["n0", "n7", "n7", "n1"], SLOW)]] * 9),
    ],
)
def test_who_is_never_called_slow(why: str, runs: list[list[AttemptStartup]]) -> None:
    assert slow_names(*runs) == [], why


def test_of_a_pair_that_is_never_apart_more_starts_are_wanted() -> None:
    """How often other nodes are slow is not known then."""
    assert slow_names(*[[start(["n0", "n7"], SLOW)]] * 5) == []
    assert slow_names(*[[start(["n0", "n7"], SLOW)]] * 8) == ["n7"]


@pytest.mark.parametrize("seed", range(3))
def test_chance_names_nobody_and_hides_nobody(seed: int) -> None:
    """Each node is slow in 5 % of its starts, of 40 starts; one is in 40 %."""
    world, nodes = random.Random(seed), SlowNodes()
    base = start(NAMES)
    for number in range(40):
        names = world.sample([f"n{each}" for each in range(60)], 11)
        rows = []
        for row, name in zip(base.node_rows, ["n99", "n7", *(name for name in names if name != "n7")], strict=False):
            longer_s = 5.0 if world.random() < (0.4 if name == "n7" else 0.05) else 0.0
            spans = (*row.spans, StartSpan("load", 40.0, 40.0 + longer_s))
            rows.append(msgspec.structs.replace(row, node=name, spans=spans))
        phases = tuple(msgspec.structs.replace(each, longest_s=9.0) for each in base.phases)
        nodes.add(f"r{number}", msgspec.structs.replace(base, node_rows=tuple(rows), nodes=len(rows), phases=phases))
    assert [each.node for each in nodes.named(40)] == ["n7"]


def test_of_a_large_start_those_without_a_row_count_as_not_slow() -> None:
    nodes = [node_start(n, 1, imports_s=9.0 if n == 150 else 1.0, first_step_s=130.0) for n in range(200)]
    large = attempt_of(*nodes)
    assert len(large.node_rows) < 200
    found = judged(large)
    assert len(found) == 199, "all but the one with rank 0"
    assert [node for node, slow in found.items() if slow] == ["node-150"]
    assert judged(msgspec.structs.replace(large, other_nodes=())) == {}, "an older version left their names out"


def test_names_of_too_many_nodes_are_not_kept() -> None:
    few = summarise([node_start(n, 1) for n in range(3)], world_size=3, nodes=3, unix_offset_s=0.0)
    assert few is not None
    assert few.other_nodes == ()


def test_medians_without_one_and_tails() -> None:
    assert [median_without([1.0, 2.0, 3.0, 9.0], value) for value in (1.0, 2.0, 9.0)] == [3.0, 3.0, 2.0]
    assert median_without([1.0, 5.0], 5.0) == 1.0
    assert median_without([1.0, 2.0, 4.0], 2.0) == 2.5
    assert tail(1, 2, 0.5) == 1.0
    assert tail(2, 2, 0.5) == pytest.approx(0.25)
    assert tail(3, 10, 0.1) == pytest.approx(0.0702, abs=1e-4)
    assert tail(900, 2000, 0.05) < 1e-100


def many() -> StartProfile:
    runs = [[start([*NAMES[: 1 + number % 5], "n7"], SLOW), start(["n0", "n7"], attempt=1)] for number in range(10)]
    unread = tuple(UnreadRun(path=f"/runs/bad-{number}", kind="damaged", why="why not") for number in range(6))
    return profile_of(*runs, unread=unread)


@pytest.mark.parametrize("width", [60, 200])
def test_the_terminal_shows_as_many_columns_as_fit(width: int) -> None:
    lines = list(profile_text.lines(many(), width))
    head = next(line for line in lines if line.startswith("first starts"))
    assert head.count("node") == (2 if width == 60 else 5)
    assert ("  (not shown: starts of 4, 5, 6 nodes; a wider terminal, --json and --html show more)" in lines) == (
        width == 60
    )
    assert any(line.startswith("  n7: slow in ") for line in lines)
    assert "  6 damaged (its startup.json cannot be read): bad-0, bad-1, bad-2, bad-3 and 2 more" in lines


def test_nothing_is_no_fault() -> None:
    found = profile_of()
    assert next(profile_text.lines(found, 80)) == "0 starts of 0 runs"
    assert_harmless(startups_html(found, 0.0))


def test_a_page_holds_what_the_terminal_shows_and_obeys_no_name() -> None:
    html = startups_html(many(), 0.0)
    assert_harmless(html)
    assert "slow again and again" in html.lower()
    bad = profile_of(
        *[[start([*NAMES[:3], HOSTILE], {HOSTILE: 9.0})]] * 9,
        unread=(UnreadRun(path=f"/runs/{HOSTILE}", kind="damaged", why=HOSTILE),),
    )
    assert [each.node for each in bad.slow_nodes] == [HOSTILE]
    assert_harmless(startups_html(bad, 0.0))
    assert all(line.isprintable() for line in profile_text.lines(bad, 100))


def test_it_fits_a_phone(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(startups_html(many(), 0.0))
    seen = look_at(tmp_path, "page.html")
    assert (seen["bad"], seen["wide"], seen["console"]) == ([], [], [])
