"""Which skips are expected, and a run of tests that fails on any other: a missing part must not pass for a passed test.

`.ci/run` asks for that with TEST_SKIPS=expected. Elsewhere a skip is only told, with its reason.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict

import pytest

EXPECTED: dict[str, str] = {
    r"there is no NVIDIA GPU here \(/dev/nvidiactl\)": "machines of tests have none; tests/gpu is run by hand where one is",
    r"(this user|root) may (do anything|write everything|read everything|look into all of them)": "file modes stop others only",
    r"root owns what it wants": "file modes stop others only",
    r"no cgroup of version [12] can be made here": "many machines have one version alone, containers often none to write to",
    r"an image is only built with ROBUST_TEST_IMAGE=1 .*": "its base comes from a registry, which machines of tests do not reach",
    r"this kernel puts no memory into huge pages on request .*": "Linux before 6.1, or where huge pages are forbidden",
    r"no mirror of Debian answers mmdebstrap": "machines of tests may reach no network",
    r"apptainer is not installed": "Debian has no package of it",
    r"hadolint is not installed: .*": "the linter has binaries for few kinds of machines",
    r"Python 3\.\d+ is not here": "the wheel is installed on those of 3.10 to 3.14 that a machine has",
    r"owners of an RLock are read of CPython 3\.10 to 3\.13": "3.14 keeps them otherwise, as docs/tracing.md says",
    r"(torchtitan|megatron-core) needs CUDA: .*": "frameworks that do not train on CPUs; docs/recipes lists them as not tried",
    r"\S+ is only fetched with ROBUST_TEST_PARTS_ALL=1": "other versions of NCCL than the newest are gigabytes",
    r"what is not enclosed is ended by who is left": "a case that cannot be, of a table of cases",
    r"[a-z-]+\.md:\d+: .+": "the page itself says why its command is not run",
}
"""A pattern that a whole reason matches, and why it is no missing part."""


def is_expected(reason: str) -> str:
    """Return the pattern that a reason matches; empty if none does."""
    return next((pattern for pattern in EXPECTED if re.fullmatch(pattern, reason, re.DOTALL)), "")


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return why something was skipped."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


class Skips:
    """Counts the skips of a run; a plugin."""

    def __init__(self) -> None:
        self.expected: Counter[str] = Counter()
        self.unexpected: dict[str, list[str]] = defaultdict(list)

    def note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        """Take note of a report, if it is a skip."""
        if report.skipped and not hasattr(report, "wasxfail"):
            reason = reason_of(report)
            if pattern := is_expected(reason):
                self.expected[pattern] += 1
            else:
                self.unexpected[reason].append(report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test has ended."""
        self.note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file was read."""
        self.note(report)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what was skipped."""
        terminalreporter.section("skips")
        for pattern, count in self.expected.most_common():
            terminalreporter.line(f"{count:5} expected: {pattern} ({EXPECTED[pattern]})")
        for reason, tests in self.unexpected.items():
            terminalreporter.line(
                f"{len(tests):5} NOT EXPECTED: {reason}: {' '.join(sorted(set(tests))[:5])}", red=True
            )
        if self.unexpected:
            terminalreporter.line("a part is missing, or the list in tests/skips.py is to be longer", red=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail if a skip was not expected, and keep it for `.ci/run`: no test that is run again mends it."""
        if not self.unexpected:
            return
        if session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if cache := getattr(session.config, "cache", None):
            cache.set("skips/unexpected", sorted(self.unexpected))


def watch(config: pytest.Config) -> None:
    """Watch over skips, if that is asked for, in the process that sums up."""
    if os.environ.get("TEST_SKIPS") == "expected" and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Skips(), "skips")
