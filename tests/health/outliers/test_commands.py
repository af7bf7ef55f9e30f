"""`robust outliers`, as it is typed."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from outlier_fleets.faults import make_stretch
from outlier_fleets.types import Stretch

from robust_run.errors import UserError
from robust_run.health.commands.outliers import outliers


@pytest.fixture(scope="module")
def stretch() -> Stretch:
    return make_stretch(1, machines=8, faulty=True, kind="NIC dropout", seconds=400, onset_s=(250, 251))


def records(stretch: Stretch) -> list[dict[str, object]]:
    names = [metric.name for metric in stretch.fleet.metrics]
    return [
        {"time": second, "machine": machine, "role": stretch.fleet.roles[row]}
        | {name: None if np.isnan(value) else float(value) for name, value in zip(names, values[row], strict=True)}
        for second, values in enumerate(stretch.values)
        for row, machine in enumerate(stretch.fleet.machines)
    ]


def run(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(outliers, arguments, input=stdin, standalone_mode=False)


def test_a_csv_file(stretch: Stretch, tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, records(stretch)[0])
        writer.writeheader()
        writer.writerows(records(stretch))
    result = run(str(path))
    assert result.return_value == 0
    (line,) = result.stdout.splitlines()
    assert stretch.fault is not None
    assert line.startswith(stretch.fault.machine)
    assert "spreads below" in line
    assert "confidence" in line


def test_a_stream_of_json(stretch: Stretch) -> None:
    stdin = "".join(json.dumps(record) + "\n" for record in records(stretch))
    result = run("--json", stdin=stdin)
    verdict = json.loads(result.stdout)
    assert stretch.fault is not None
    assert verdict["machine"] == stretch.fault.machine
    assert verdict["at_s"] - stretch.fault.onset_s < 60


def test_nothing_found_is_exit_code_1_and_says_what_was_missing() -> None:
    result = run("--format", "csv", stdin="time,machine,x\n" + "".join(f"{t},a,1\n{t},b,1\n" for t in range(20)))
    assert result.return_value == 1
    assert result.stdout == ""
    assert "only 20 s of readings" in result.stderr
    assert "2 machines" in result.stderr


def test_an_empty_stream_is_an_error() -> None:
    with pytest.raises(UserError, match="no row"):
        raise run().exception or AssertionError


def test_a_name_cannot_steer_the_terminal() -> None:
    evil = "\x1b[2Jevil"
    lines = []
    for t in range(260):
        for name in ("a", "b", "c", "d", evil):
            cpu = 2.0 if name == evil and t > 200 else 30.0 + (t * 7 + len(name)) % 3
            lines.append(json.dumps({"time": t, "machine": name, "cpu_percent": cpu}))
    result = run(stdin="\n".join(lines))
    assert result.return_value == 0
    assert "\x1b" not in result.stdout
    assert r"\x1b[2Jevil" in result.stdout


@pytest.mark.parametrize(
    ("option", "value"), [("--interval", "0"), ("--apart", "nan"), ("--hold", "-1"), ("--settle", "1e9")]
)
def test_options_out_of_range(option: str, value: str) -> None:
    with pytest.raises(UserError, match=option):
        raise run(option, value).exception or AssertionError


def test_a_run_directory_shows_who_stood_out_in_that_job(tmp_path: Path) -> None:
    lines = [
        {"schema": 1, "job": {}},
        {"at": 1.0, "mono": 1.0, "event": {"type": "node_joined", "node": {"id": "1f", "name": "gpu-7", "nproc": 8}}},
        {"event": {"type": "health_seen", "node": "1f", "event": {"name": "gpu.hot", "kind": "alert", "detail": "x"}}},
        {
            "event": {
                "type": "health_seen",
                "node": "1f",
                "event": {"name": "outlier.cpu_percent", "kind": "alert", "subject": "", "detail": "cpu is 9 \x1b[2J"},
                "at_unix_s": 1.8e9,
            }
        },
    ]
    (tmp_path / "journal.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"event":{"type":"health')
    shown, as_json = run(str(tmp_path)), run(str(tmp_path), "--json")
    assert shown.return_value == 0
    assert shown.stdout == "gpu-7  cpu is 9 \\x1b[2J, at 2027-01-15T08:00:00Z\n"
    assert json.loads(as_json.stdout)["machine"] == "gpu-7"


def test_a_run_in_which_nobody_stood_out(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_text('{"schema": 1}\n')
    assert run(str(tmp_path)).return_value == 1


def test_a_folder_that_is_no_run_directory_is_refused(tmp_path: Path) -> None:
    assert isinstance(run(str(tmp_path)).exception, UserError)
