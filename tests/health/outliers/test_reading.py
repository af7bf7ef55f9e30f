"""Files and streams: what is read, what is refused in one clear line, what is passed over."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.errors import PlatformError, RobustRunError, UserError
from robust_run.health.commands.outlier_files import open_rows
from robust_run.health.outliers.readings import MOST_AHEAD, Readings
from robust_run.health.outliers.rows import MOST_LINE_BYTES, Columns, MachineRow, Oddities


def rows(text: str | bytes, kind: str = "csv", oddities: Oddities | None = None) -> list[MachineRow]:
    data = text if isinstance(text, bytes) else text.encode()
    return list(open_rows("-", kind, Columns(), oddities or Oddities(), io.BytesIO(data)))


def test_a_row_of_csv() -> None:
    (row,) = rows("time,machine,role,cpu_percent,x\n12,node-1,stage-0,31.5,\n")
    assert row == MachineRow(12.0, "node-1", "stage-0", {"cpu_percent": 31.5})


def test_a_line_of_json() -> None:
    (row,) = rows('{"time": 12, "machine": "node-1", "cpu_percent": 31.5, "x": null}\n', "jsonl")
    assert row == MachineRow(12.0, "node-1", "", {"cpu_percent": 31.5})


def test_one_value_a_row() -> None:
    (row,) = rows("time,machine,metric,value\n1,a,cpu_percent,3\n")
    assert row.values == {"cpu_percent": 3.0}


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-31T12:00:00",
        "2026-01-31T12:00:00Z",
        "2026-01-31 13:00:00+01:00",
        "1769860800",
        "2026-01-31T12:00:00.0Z",
        "2026-01-31T12:00:00.000000000",
        "2026-01-31T13:00:00.0+0100",
        "2026-01-31 13:00+0100",
    ],
)
def test_times(text: str) -> None:
    assert rows(f"time,machine,x\n{text},a,1\n")[0].at_s == 1769860800


def test_nan_is_missing_and_infinity_is_missing_and_counted() -> None:
    oddities = Oddities()
    row, other = rows("time,machine,x,y,z\n1,a,nan,inf,2\n2,a,1e300,-1e31,5\n", oddities=oddities)
    assert row.values == {"z": 2.0}
    assert other.values == {"z": 5.0}
    assert oddities.infinite == 3


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("csv", "when,machine,x\n", "no column 'time'"),
        ("csv", "time,machine\n1,a\n", "no metric"),
        ("csv", "time,machine,x\n1,a\n", "line 2: 2 cells, the header has 3"),
        ("csv", "time,machine,x,x\n", "the same name"),
        ("csv", "time,machine,x\n1,a,many\n", "line 2: x is 'many', which is no number"),
        ("csv", "time,machine,x\nnan,a,1\n", "line 2: time is 'nan', which is no time"),
        ("csv", "time,machine,x\n1,,1\n", "line 2: machine is ''"),
        ("csv", "time,machine,x\n1," + "a" * 300 + ",1\n", "1 to 256 characters"),
        ("csv", "time,machine," + ",".join(f"m{n}" for n in range(300)) + "\n", "300 metrics, at most 200"),
        ("csv", 'time,machine,x\n1,"a,1\n', "line 2"),
        ("csv", b"time,machine,x\n1,\xff,1\n", "not UTF-8"),
        ("csv", b"\x00\x01", "binary data"),
        ("csv", b"x" * (MOST_LINE_BYTES + 5), "longer than 1 MiB"),
        ("jsonl", "[1]\n", "no flat JSON object"),
        ("jsonl", '{"time": 1, "machine": "a", "x": {}}\n', "no flat JSON object"),
        ("jsonl", '{"time": 1, "machine": "a", "x": ' + "[" * 100000 + "\n", "no flat JSON object"),
        ("jsonl", '{"time": 1, "x": 2}\n', "line 1: no column 'machine'"),
        ("jsonl", '{"time": 1e300, "machine": "a", "x": 2}\n', "no time"),
        ("parquet", "", "Parquet"),
    ],
)
def test_what_is_refused(kind: str, text: str | bytes, words: str) -> None:
    with pytest.raises(UserError) as caught:
        rows(text, kind)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.binary(max_size=300), st.sampled_from(["csv", "jsonl"]))
def test_garbage_raises_nothing_but_our_errors(data: bytes, kind: str) -> None:
    with contextlib.suppress(RobustRunError):
        assert all(math.isfinite(row.at_s) for row in rows(data, kind))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for name in ("x.csv", "x"):
        with pytest.raises(PlatformError, match="No such file"):
            list(open_rows(str(tmp_path / name), "auto", Columns(), Oddities(), io.BytesIO()))
    (tmp_path / "x.dat").touch()
    with pytest.raises(UserError, match="--format"):
        list(open_rows(str(tmp_path / "x.dat"), "auto", Columns(), Oddities(), io.BytesIO()))


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = str(tmp_path / "x.parquet")
    parquet.write_table(pyarrow.table({"time": [1, 2], "machine": ["a", "a"], "x": [1.5, None]}), path)
    found = list(open_rows(path, "auto", Columns(), Oddities(), io.BytesIO()))
    assert [row.values for row in found] == [{"x": 1.5}, {}]
    Path(path).write_bytes(b"PAR1 nothing of the kind")
    with pytest.raises(UserError, match="no readable Parquet"):
        list(open_rows(path, "auto", Columns(), Oddities(), io.BytesIO()))


def stream(times: range, machines: str = "abc") -> Iterator[MachineRow]:
    for second in times:
        for machine in machines:
            yield MachineRow(float(second), machine, "", {"x": float(second)})


def test_rows_of_one_interval_are_one_reading() -> None:
    found = list(Readings(1.0, Oddities()).of(stream(range(20))))
    assert [reading.at_s for _, reading in found] == list(range(20))
    assert all(reading.values.tolist() == [[reading.at_s]] * 3 for _, reading in found)
    assert len({id(fleet) for fleet, _ in found}) == 1


def test_rows_may_come_a_little_out_of_order() -> None:
    oddities = Oddities()
    mixed = sorted(stream(range(20)), key=lambda row: row.at_s + (1.5 if row.machine == "b" else 0))
    found = list(Readings(1.0, oddities).of(mixed))
    assert oddities.late == 0
    assert all(reading.values.tolist() == [[reading.at_s]] * 3 for _, reading in found)


def test_a_wrong_clock_moves_nobody_elses_time() -> None:
    oddities = Oddities()
    ahead = {True: 10.0 * MOST_AHEAD, False: 0.0}
    wrong = (replace(row, at_s=row.at_s + ahead[row.machine == "b" and row.at_s > 8]) for row in stream(range(20)))
    found = list(Readings(1.0, oddities).of(wrong))
    assert [reading.at_s for _, reading in found] == list(range(20))
    assert oddities.ahead == 11
    assert oddities.late == 0


def test_a_new_machine_makes_a_new_fleet() -> None:
    oddities = Oddities()
    found = list(Readings(1.0, oddities).of([*stream(range(20)), *stream(range(20, 40), "abcd")]))
    assert [len(fleet.machines) for fleet, _ in found] == [3] * 19 + [4] * 21
    assert oddities.relearnt == 1


def test_a_short_gap_is_time_that_passes_and_a_long_one_a_new_start() -> None:
    short = list(Readings(1.0, Oddities()).of([*stream(range(10)), *stream(range(15, 30))]))
    assert [reading.at_s for _, reading in short] == list(range(30))
    oddities = Oddities()
    long = list(Readings(1.0, oddities).of([*stream(range(10)), *stream(range(10**9, 10**9 + 10))]))
    assert len(long) <= 20
    assert oddities.skipped_s > 1e8


def test_rows_without_a_single_value_are_no_reading() -> None:
    assert list(Readings(1.0, Oddities()).of(MachineRow(float(second), "a", "", {}) for second in range(50))) == []


def test_more_values_than_memory_allows_are_refused() -> None:
    wide = {f"m{number}": 1.0 for number in range(200)}
    with pytest.raises(UserError, match="more than 400000 values"):
        list(Readings(1.0, Oddities()).of(MachineRow(0.0, f"n{number}", "", wide) for number in range(2001)))


def test_more_machines_than_allowed_are_refused() -> None:
    with pytest.raises(UserError, match="more than 20000 machines"):
        list(Readings(1.0, Oddities()).of(MachineRow(0.0, f"n{number}", "", {"x": 1.0}) for number in range(20001)))
