"""What a job can do without is switched off by its first fault, which is said once and on one line."""

from __future__ import annotations

from robust_run.harmless import Harmless


def breaks() -> None:
    raise KeyError("two\nlines")


def test_a_fault_switches_it_off_and_is_said_once() -> None:
    said: list[str] = []
    calls: list[int] = []
    harmless = Harmless("looking", said.append)
    assert harmless.run(lambda: calls.append(1))
    assert not harmless.run(breaks)
    assert not harmless.run(lambda: calls.append(2))
    harmless.failed(ValueError("another"))
    assert calls == [1]
    (line,) = said
    assert line.startswith(
        "looking is off for the rest of this job, by a fault of robust-run (test_harmless.py:9): KeyError"
    )
    assert "\n" not in line
