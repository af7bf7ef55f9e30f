"""CPU time of tests: by test, by file, by tier, and of reading them in each process. It means the same on a busy machine.

TEST_CPU=1 prints the sums and the costliest tests at the end; TEST_CPU=FILE writes all of it there as JSON as well.

Where a cgroup of cpuacct can be made, each process of tests runs in one: all is counted that its tests start. Elsewhere it is the
time of the process and of the children that somebody waited for: daemons (jobs of a warm process!) and what was killed with its
parent are missed. The summary says which of the two it is. What a test leaves running counts for the tests after it.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import tiers

WANTED = os.environ.get("TEST_CPU", "")
MOST = 30
CPUACCT = Path("/sys/fs/cgroup/cpuacct")
KEY = "cpu"
TESTS = Path(__file__).parent


class Meter:
    """CPU time of this process and of what it started, since it began."""

    def __init__(self) -> None:
        self.cgroup: Path | None = None
        self.before_s = self._of_children_s()  # a cgroup counts from when we enter it
        with suppress(OSError):
            cgroup = CPUACCT / f"tests-{os.getpid()}"
            cgroup.mkdir()
            self.cgroup = cgroup
            (cgroup / "cgroup.procs").write_text(str(os.getpid()))

    @staticmethod
    def _of_children_s() -> float:
        return sum(os.times()[:4])

    def read_s(self) -> float:
        """Return it."""
        if self.cgroup is None:
            return self._of_children_s()
        return self.before_s + int((self.cgroup / "cpuacct.usage").read_text()) / 1e9

    def close(self) -> None:
        """Leave the cgroup; who still runs in it keeps it."""
        if self.cgroup is not None:
            with suppress(OSError):
                (CPUACCT / "cgroup.procs").write_text(str(os.getpid()))
                self.cgroup.rmdir()


class Marker:
    """Adds to each report what its phase took; a plugin of each process that runs tests."""

    def __init__(self) -> None:
        self.meter = Meter()
        self.last_s = self.own_s = 0.0
        self.reading_s = 0.0

    def pytest_collection_finish(self) -> None:
        """All is read; tests begin."""
        self.last_s = self.reading_s = self.meter.read_s()
        self.own_s = time.process_time()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Any:
        """Take note of a phase. What lies between two tests counts for the latter."""
        report = yield
        now_s, own_s = self.meter.read_s(), time.process_time()
        tier = next((each for each in tiers.TIERS if item.get_closest_marker(each)), "")
        report.user_properties.append((KEY, (now_s - self.last_s, own_s - self.own_s, tier)))
        self.last_s, self.own_s = now_s, own_s
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Tell the process that sums up what reading took, and what it took to end."""
        total_s = self.meter.read_s()
        told = {"reading_s": self.reading_s, "ending_s": total_s - self.last_s, "all": self.meter.cgroup is not None}
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[KEY] = told
        elif sums := session.config.pluginmanager.get_plugin("cpu"):
            sums.processes.append(told)
        self.meter.close()


class Sums:
    """Adds up; a plugin of the process that sums up."""

    def __init__(self) -> None:
        self.tests: Counter[tuple[str, str]] = Counter()
        self.own: Counter[str] = Counter()
        self.processes: list[dict[str, float]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A phase of a test has ended."""
        for key, value in report.user_properties:
            if key == KEY:
                cpu_s, own_s, tier = value
                self.tests[report.nodeid, tier] += cpu_s
                self.own[report.nodeid] += own_s

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A process of xdist has ended."""
        if told := getattr(node, "workeroutput", {}).get(KEY):
            self.processes.append(told)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say it."""
        terminalreporter.section("CPU seconds")
        for line in lines(self.tests, self.own, self.processes):
            terminalreporter.line(line)
        if WANTED != "1":
            tests = [
                {"test": test, "tier": tier, "cpu_s": cpu_s, "own_s": self.own[test]}
                for (test, tier), cpu_s in self.tests.most_common()
            ]
            Path(WANTED).write_text(json.dumps({"processes": self.processes, "tests": tests}, indent=0))


def lines(tests: Counter[tuple[str, str]], own: Counter[str], processes: Iterable[dict[str, float]]) -> list[str]:
    """Return what is said of (test, tier), of what the tests' own process took for each, and of the processes."""
    by_tier: Counter[str] = Counter()
    by_file: Counter[str] = Counter()
    count: dict[str, int] = defaultdict(int)
    for (test, tier), cpu_s in tests.items():
        by_tier[tier or "(none)"] += cpu_s
        count[tier or "(none)"] += 1
        by_file[test.partition("::")[0]] += cpu_s
    told = list(processes)
    reading_s, ending_s = (sum(each[key] for each in told) for key in ("reading_s", "ending_s"))
    kind = "all that ran" if all(each["all"] for each in told) else "without daemons and what nobody waited for"
    return [
        f"{sum(tests.values()) + reading_s + ending_s:8.1f} in all ({kind})",
        f"{reading_s:8.1f} reading tests, in {len(told)} processes",
        f"{ending_s:8.1f} ending them",
        f"{sum(own.values()):8.1f} of tests was in the process of the tests itself, the rest in what they start",
        *(f"{cpu_s:8.1f} tier {tier}, {count[tier]} tests" for tier, cpu_s in by_tier.most_common()),
        *(f"{cpu_s:8.1f} {file}" for file, cpu_s in by_file.most_common(MOST)),
        *(f"{cpu_s:8.1f} ({own[test]:.1f} own) {test}" for (test, _), cpu_s in tests.most_common(MOST)),
    ]


def watch(config: pytest.Config) -> None:
    """Count, if that is asked for. Call it early: a cgroup counts from then."""
    if not WANTED:
        return
    worker = hasattr(config, "workerinput")
    if not worker:
        config.pluginmanager.register(Sums(), "cpu")
    if worker or not config.getoption("numprocesses", None):
        config.pluginmanager.register(Marker(), "cpu-marker")
