"""What every test gets: an environment free of launchers above it, and the marks of its tier."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is, not whether the code is right. The same examples each time: whether a
# change is right must not depend on what was drawn. `pytest --hypothesis-profile search` draws others.
# A quarter of the examples by default, a hundred at most; all of them with TEST_EXAMPLES=all.
ALL_EXAMPLES = os.environ.get("TEST_EXAMPLES") == "all"
UNTIMED = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=100 if ALL_EXAMPLES else 25
)
settings.register_profile("same", UNTIMED, derandomize=True, database=None)
settings.register_profile("search", UNTIMED, derandomize=False)
settings.load_profile("same")


def draw_nothing_from_imported_modules() -> None:
    """Hypothesis mixes in constants of those modules of ours that are imported by then: the order of tests decides which."""
    with suppress(ImportError, AttributeError):  # a release that does not
        from hypothesis.internal.conjecture import providers

        found, none = providers._get_local_constants, providers.Constants()
        providers._get_local_constants = lambda: none if settings.default.derandomize else found()  # type: ignore[union-attr]


draw_nothing_from_imported_modules()

sys.path.insert(0, str(Path(__file__).parent))


def start_programs_that_can_be_ended() -> None:
    """Go on ignoring what we were started with ignored (`nohup`, the background of a script), but hand that on to no program.

    A program inherits what is ignored, and has in its default state what is handled.
    """
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


start_programs_that_can_be_ended()

import cpu  # noqa: E402 - lies below tests/
import forks  # noqa: E402
import host_warmth  # noqa: E402
import order  # noqa: E402
import rewriting  # noqa: E402
import skips  # noqa: E402
import tiers  # noqa: E402
import warm_ground  # noqa: E402
from guarantees import TESTS_OF_GUARANTEES  # noqa: E402
from warm_ground import warm_folder  # noqa: E402, F401 - a fixture


def pytest_configure(config: pytest.Config) -> None:
    for mark, meaning in tiers.MARKERS.items():
        config.addinivalue_line("markers", f"{mark}: {meaning}")
    skips.watch(config)
    cpu.watch(config)
    rewriting.rewrite_share(config)
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        gc.disable()  # what reads 14,000 tests keeps all it makes: looking for garbage among them takes a quarter of its CPU


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Look for garbage from now on, but not among what was read: it stays to the end."""
    gc.freeze()
    gc.enable()


FEW, MANY = 25, 100
_SETTINGS = "_hypothesis_internal_use_settings"


def draw_fewer(test: object) -> None:
    """Draw a quarter of the examples that a property test asks for, a hundred at most; once for each test, whatever its cases."""
    asked = getattr(test, _SETTINGS, None)
    if asked is not None and asked.max_examples > FEW and not hasattr(test, "draws_fewer"):
        setattr(test, _SETTINGS, settings(asked, max_examples=min(MANY, max(FEW, asked.max_examples // 4))))
        setattr(test, "draws_fewer", True)  # noqa: B010 - a function, as far as types know


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None, object, object]:
    """Mark tests before any of them is selected by its marks; then put what is left in the order in which it is shared."""
    for item in items:
        if isinstance(item, pytest.Function):
            if not ALL_EXAMPLES:
                draw_fewer(item.function)
            for mark in tiers.marks_of(item, TESTS_OF_GUARANTEES):
                item.add_marker(mark)
    result = yield
    if shares := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
        items[:] = [items[place] for place in order.dealt([in_short(*each) for each in enumerate(items)], shares)]
    return result


def in_short(place: int, item: pytest.Item) -> order.Test:
    """What the order needs to know of a test."""
    tier = next((each for each in tiers.TIERS if item.get_closest_marker(each)), "")
    return order.Test(place, tiers.below(str(item.path)), item.name.partition("[")[0], tier)


@pytest.fixture(scope="session")
def forker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[forks.Forker]:
    """One warm process in each process of tests for all programs that are forked: importing torch is what takes long."""
    with forks.warm_process(tmp_path_factory.mktemp("elsewhere")) as forker:
        yield forker


@pytest.fixture(autouse=True)
def clean_environment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test must not depend on being run inside a job."""
    warm_ground.take_away(monkeypatch)
    monkeypatch.setenv("ROBUST_WARM_DAEMON", "off")  # a developer's own warm process is none of a test's business
    if warm_ground.fits(request.node):
        monkeypatch.setenv("ROBUST_WARM_FOLDER", str(request.getfixturevalue("warm_folder")))
        monkeypatch.setenv("ROBUST_WARM_DAEMON", warm_ground.PATIENT_S)
        for name, value in warm_ground.SEVERAL.items():
            monkeypatch.setenv(name, value)
    if warm_ground.fits_on_hosts(request.node):
        monkeypatch.setenv(host_warmth.WANTED, "yes")
