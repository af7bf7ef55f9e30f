"""A thousand journals with planted rates, through the reader: the rates are within their intervals, the lemons are found."""

from __future__ import annotations

from pathlib import Path

import pytest
from fleet_made import KINDS, Planted, few_enough, fleet, name_of
from made_journals import write_run

from robust_run.fleet.totals import fold
from robust_run.launcher.operator.reading.fleet import FleetReader
from robust_run.launcher.operator.reading.run_facts import nobody_lives

LEMONS = (7, 31, 64)


def test_planted_rates_of_a_thousand_journals_are_recovered(tmp_path: Path) -> None:
    """Damaged and foreign directories among them are counted, and change nothing."""
    planted = Planted(lemons={name_of(node): 240.0 for node in LEMONS})
    made = fleet(planted, seed=1)
    for run in made:
        write_run(tmp_path, run)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "journal.jsonl").write_bytes(b"\x00\xffnot a journal\n")
    (tmp_path / "of-a-later-version").mkdir()
    (tmp_path / "of-a-later-version" / "journal.jsonl").write_text('{"schema": 99}\n')

    seen = FleetReader([str(tmp_path)], nobody_lives).read(2e9)
    found, told = fold(seen.runs), fold(made)

    assert (found.runs, found.incidents) == (1000, told.incidents)
    assert sum(each.count for each in seen.skipped) == 2, "a folder that no run left is none of ours"
    assert found.ettr is not None
    missed = 0
    for kind, (component, per_1000) in KINDS.items():
        by_kind, by_component = found.kind_rates[kind], found.component_rates[component]
        assert by_kind.count == told.kind_rates[kind].count == by_component.count
        assert by_kind.node_days == pytest.approx(told.kind_rates[kind].node_days, rel=1e-3)
        if kind != "crash":  # of lemons, too
            missed += not by_kind.low <= per_1000 <= by_kind.high
    assert missed <= few_enough(len(KINDS) - 1, 0.05, 1e-3), "test_planted.py has the many cases"
    assert {each.node for each in found.lemons.lemons} == {name_of(node) for node in LEMONS}
