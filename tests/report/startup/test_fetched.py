"""What nodes fetched beside a start, in the waterfall of the terminal and of the page."""

from __future__ import annotations

import msgspec
from made_starts import attempt_of, node_start, startup_of

from robust_run.report.startup.draw import waterfall
from robust_run.report.startup.text import lines
from robust_run.report.startup.types import Fetch, FetchRow
from robust_run.report.startup.words import fetch_words


def test_what_was_fetched_beside_the_start_has_a_line_of_its_own() -> None:
    fetch = Fetch("checkpoint", 101.0, 103.0, 1_600_000_000, 800_000_000)
    old = Fetch("checkpoint", 10.0, 11.0, 5, 0)
    starts = [
        msgspec.structs.replace(node_start(number), fetches=(fetch, *((old,) if number else ()))) for number in (0, 1)
    ]
    attempt = attempt_of(*starts)
    assert [row.node for row in attempt.fetched] == ["node-0", "node-1"], "not what was fetched before"
    said = [line for line in lines(startup_of(attempt), None, 100) if "=====" in line]
    assert len(said) == 2
    assert all("=" in line and line.endswith("1.6 GB in 2.0 s (800 MB/s), 50 % from other nodes") for line in said)
    assert "fetched beside the start: 1.6 GB in 2.0 s" in waterfall(startup_of(attempt))
    assert "and more to come" in fetch_words(FetchRow("n", msgspec.structs.replace(fetch, is_whole=False)))
