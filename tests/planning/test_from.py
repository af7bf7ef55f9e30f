"""`robust plan --from`: which runs are read, what is said of them, and what wins over them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from robust_run.errors import PlatformError, UserError
from robust_run.fleet.files import index
from robust_run.fleet.words import IncidentFacts, RunFacts
from robust_run.planning.command import plan as command

BEGAN_S = 1.7e9
DAY_S = 86400.0


def facts(run_id: str = "r1", hangs: int = 40, **more: Any) -> RunFacts:
    hung = tuple(
        IncidentFacts(number=number, at_s=BEGAN_S + number * DAY_S, symptom="hang", kind="hang", action="relaunch")
        for number in range(hangs)
    )
    nodes = {f"n{number}": 50 * DAY_S for number in range(100)}
    return RunFacts(
        run_id=run_id,
        began_s=BEGAN_S,
        until_s=BEGAN_S + 50 * DAY_S,
        state="done",
        nodes=100,
        node_s=nodes,
        incidents=hung,
        **more,
    )


def said(*arguments: str) -> str:
    done = CliRunner().invoke(
        command, ["--nodes", "4", "--days", "0.1", "--seeds", "1", "--no-advice", *arguments], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    return done.output


def test_what_was_learned_is_said_first_and_in_json(tmp_path: Path) -> None:
    index.keep(str(tmp_path), facts())
    lines = said("--from", str(tmp_path)).splitlines()
    assert lines[0] == "learned of 1 runs, 5,000 node-days, the largest with 100 nodes"
    assert any("faults.hang.per_1000_node_days" in line and "seen 40: 8 (5.72 to 10.9)" in line for line in lines)
    found = json.loads(said("--from", str(tmp_path), "--json"))
    hang = next(each for each in found["learned"]["figures"] if each["name"] == "faults.hang.per_1000_node_days")
    assert hang["count"] == 40 and found["plan"]["mix"]["faults"]["hang"]["per_1000_node_days"] == hang["used"]


def test_without_it_nothing_was_learned(tmp_path: Path) -> None:
    assert "learned" not in json.loads(said("--json")) or json.loads(said("--json"))["learned"] is None


def test_the_file_and_the_rate_win(tmp_path: Path) -> None:
    index.keep(str(tmp_path), facts())
    mix = tmp_path / "mix.toml"
    mix.write_text("[faults.hang]\nper_1000_node_days = 0.5\n[times]\nend = { median = 77 }\n")
    found = json.loads(said("--from", str(tmp_path), "--mix", str(mix), "--json"))["plan"]
    assert found["mix"]["faults"]["hang"]["per_1000_node_days"] == 0.5 and found["times"]["end"]["median"] == 77
    scaled = json.loads(said("--from", str(tmp_path), "--rate", "3", "--json"))["plan"]["mix"]["faults"]
    assert sum(each["per_1000_node_days"] for each in scaled.values()) == pytest.approx(3.0)
    assert scaled["hang"]["per_1000_node_days"] > 1.0  # proportions are those that were learned


def test_several_folders_and_a_run_that_is_in_two_of_them_counts_once(tmp_path: Path) -> None:
    for name, run_ids in (("a", ["r1", "r2"]), ("b", ["r2", "r3"])):
        (tmp_path / name).mkdir()
        for run_id in run_ids:
            index.keep(str(tmp_path / name), facts(run_id))
    assert said("--from", str(tmp_path / "a"), str(tmp_path / "b")).startswith("learned of 3 runs")
    assert said("--from", str(tmp_path / "a"), "--from", str(tmp_path / "b")).startswith("learned of 3 runs")


def test_damaged_and_foreign_files_are_counted_and_change_nothing(tmp_path: Path) -> None:
    index.keep(str(tmp_path), facts())
    plain = json.loads(said("--from", str(tmp_path), "--json"))
    (tmp_path / ".fleet" / "1700000000-cut.json").write_bytes(b'{"schema":1,')
    (tmp_path / ".fleet" / "notes").write_text("x")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "journal.jsonl").write_bytes(b"\0\xff")
    found = json.loads(said("--from", str(tmp_path), "--json"))
    assert found["plan"] == plain["plan"]
    assert found["learned"]["left_out"] == "1 damaged (in .fleet), 1 foreign (in .fleet), 1 no journal"


def test_a_folder_that_is_not_there_or_has_no_run_and_a_stray_word_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PlatformError, match="there is no folder"):
        said("--from", str(tmp_path / "none"))
    with pytest.raises(PlatformError, match="no run in"):
        said("--from", str(tmp_path))
    with pytest.raises(UserError, match="is --from missing"):
        said(str(tmp_path))
