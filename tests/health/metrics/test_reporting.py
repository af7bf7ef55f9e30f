"""`robust_run.report`: what a script says arrives, and whatever goes wrong, the script goes on."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.health.metrics.reporting import Reporter
from robust_run.health.metrics.reports import ReportsRead, file_of, parse, read
from robust_run.health.metrics.ring_format import FILE_BYTES, HEADER_BYTES, MOST_VALUES, SLOT_BYTES, SLOTS

ROOT = Path(__file__).parents[3]
LIMIT_S = 60.0


@pytest.fixture
def path(tmp_path: Path) -> str:
    return file_of(str(tmp_path), 3)


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script of its own, as a worker does."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_what_a_script_says_in_one_line_arrives(path: str) -> None:
    done = run(
        "import robust_run\nfor step in range(3): robust_run.report(step=step, loss=2.5 - step, grad_norm=1, tokens=7)",
        ROBUST_REPORT=path,
    )
    assert (done.returncode, done.stderr) == (0, "")
    points = read(path).points
    assert [point.step for point in points] == [0, 1, 2]
    assert points[2].values == {"loss": 0.5, "grad_norm": 1.0, "tokens": 7.0}


def test_it_works_beside_the_package_of_the_same_name(path: str) -> None:
    """`robust_run.report` is a package too: once that is imported, it can be called all the same."""
    code = "import robust_run\nimport robust_run.report.summary\nrobust_run.report(step=1, loss=2.0)"
    done = run(code, ROBUST_REPORT=path)
    assert done.returncode == 0, done.stderr
    assert [point.values for point in read(path).points] == [{"loss": 2.0}]


@pytest.mark.parametrize("value", ["", "off"])
def test_without_a_launcher_or_switched_off_it_does_nothing(value: str) -> None:
    done = run("import robust_run\nrobust_run.report(step=1, loss=2.0)", ROBUST_REPORT=value)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_it_imports_nothing_but_the_standard_library(path: str) -> None:
    code = """if True:
        import sys
        before = set(sys.modules)
        import robust_run
        assert not {name for name in set(sys.modules) - before if name.startswith("robust_run.health")}
        robust_run.report(loss=1.0)
        ours = {name for name in set(sys.modules) - before if not name.startswith("robust_run")}
        print(*sorted(name for name in ours if name.partition(".")[0] not in sys.stdlib_module_names))
        """
    done = run(code, ROBUST_REPORT=path)
    assert (done.stdout.strip(), done.stderr) == ("", "")


BROKEN = {
    "no file": ("/nowhere/x", "FileNotFoundError"),
    "a folder": ("/tmp", "IsADirectoryError"),
    "another file": (__file__, "is no report file"),
}


@pytest.mark.parametrize(("path_", "words"), BROKEN.values(), ids=list(BROKEN))
def test_a_report_that_cannot_be_made_is_said_once_and_the_script_goes_on(path_: str, words: str) -> None:
    code = "import robust_run\nfor _ in range(3): robust_run.report(loss=1.0)\nprint('trained')"
    done = run(code, ROBUST_REPORT=path_)
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr


def test_a_value_that_is_no_number_is_left_out_and_the_rest_is_reported(path: str) -> None:
    code = (
        "import robust_run\nfor _ in range(2): robust_run.report(step=1, loss='high', grad_norm=1.0)\nprint('trained')"
    )
    done = run(code, ROBUST_REPORT=path)
    assert done.stdout == "trained\n"
    assert done.stderr.count("\n") == 1 and "leaves 'loss' out" in done.stderr
    assert [point.values for point in read(path).points] == [{"grad_norm": 1.0}] * 2


def test_anything_that_float_takes_is_a_number(path: str) -> None:
    class Tensor:
        def __float__(self) -> float:
            return 4.0

    Reporter(path).write(1, {"loss": Tensor(), "grad_norm": math.nan, "left out": None})
    (point,) = read(path).points
    assert point.values["loss"] == 4.0
    assert math.isnan(point.values["grad_norm"])
    assert "left out" not in point.values


def test_a_fork_of_the_worker_writes_nothing(path: str) -> None:
    code = """if True:
        import os, robust_run
        robust_run.report(step=1)
        if os.fork() == 0:
            robust_run.report(step=2)
            os._exit(0)
        os.wait()
        robust_run.report(step=3)
        """
    assert run(code, ROBUST_REPORT=path).returncode == 0
    assert [point.step for point in read(path).points] == [1, 3]


def test_a_fork_of_a_process_that_had_no_launcher_looks_for_its_own(path: str) -> None:
    """A warm process has no report file; the workers that are forked from it have."""
    code = f"""if True:
        import os, robust_run
        robust_run.report(step=1)
        if os.fork() == 0:
            os.environ["ROBUST_REPORT"] = {path!r}
            robust_run.report(step=2)
            os._exit(0)
        os.wait()
        """
    assert run(code).returncode == 0
    assert [point.step for point in read(path).points] == [2]


def test_what_a_worker_started_and_reported_first_gives_the_file_to_the_worker(path: str) -> None:
    code = """if True:
        import os, robust_run
        ours, theirs = os.pipe(), os.pipe()
        if os.fork() == 0:
            robust_run.report(step=1)
            os.write(ours[1], b"x")
            os.read(theirs[0], 1)
            robust_run.report(step=2)
            os._exit(0)
        os.read(ours[0], 1)
        robust_run.report(step=3)
        os.write(theirs[1], b"x")
        os.wait()
        """
    done = run(code, ROBUST_REPORT=path)
    assert (done.returncode, done.stderr) == (0, "")
    assert [point.step for point in read(path).points] == [1, 3]


def test_a_file_whose_owner_is_dead_goes_to_who_reports_next(path: str) -> None:
    for step in (1, 2):
        assert run(f"import robust_run\nrobust_run.report(step={step})", ROBUST_REPORT=path).stderr == ""
    assert [point.step for point in read(path).points] == [1, 2]


def test_another_process_does_not_take_the_file_over(path: str) -> None:
    Reporter(path)
    done = run("import robust_run\nrobust_run.report(step=2)", ROBUST_REPORT=path)
    assert f"process {os.getpid()} writes" in done.stderr


def test_only_what_is_new_is_read_and_what_was_overwritten_is_passed_over(path: str) -> None:
    reporter = Reporter(path)
    reporter.write(0, {"loss": 1.0})
    first = read(path)
    assert first.last == 1
    assert read(path, first.last).points == ()
    for step in range(1, 200):
        reporter.write(step, {"loss": 1.0})
    new = read(path, first.last)
    assert [point.step for point in new.points] == list(range(200 - SLOTS, 200))
    assert new.last == 200


def test_names_and_numbers_of_values_are_bounded(path: str) -> None:
    Reporter(path).write(1, {f"a very long name of a value {number}": number for number in range(40)})
    (point,) = read(path).points
    assert 1 <= len(point.values) <= MOST_VALUES
    assert all(len(name.encode()) <= 24 for name in point.values)


def test_threads_may_report_at_once(path: str) -> None:
    reporter = Reporter(path)
    threads = [threading.Thread(target=lambda: [reporter.write(1, {"x": 1}) for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read(path).last == 200


def test_a_slot_that_is_being_written_is_not_read(path: str) -> None:
    Reporter(path).write(1, {"loss": 1.0})
    content = bytearray(Path(path).read_bytes())
    content[HEADER_BYTES + 40] ^= 0xFF
    assert parse(bytes(content)).points == ()


def test_no_file_or_no_plain_one_is_nothing_new(tmp_path: Path, path: str) -> None:
    assert read(str(tmp_path / "none"), 7) == ReportsRead(last=7)
    link = tmp_path / "link"
    link.symlink_to(path)
    assert read(str(link), 7) == ReportsRead(last=7)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert read(str(fifo), 7) == ReportsRead(last=7)


@given(st.binary(max_size=SLOT_BYTES), st.integers(0, SLOTS - 1), st.integers(0, 1 << 70))
def test_whatever_a_worker_writes_can_be_read(rubbish: bytes, slot: int, after: int) -> None:
    content = bytearray(FILE_BYTES)
    content[:16] = b"RBREPRT\n" + (1).to_bytes(4, sys.byteorder) + SLOTS.to_bytes(4, sys.byteorder)
    at = HEADER_BYTES + slot * SLOT_BYTES
    content[at : at + len(rubbish)] = rubbish
    assert len(parse(bytes(content), after).points) <= SLOTS
    assert parse(rubbish).points == ()
