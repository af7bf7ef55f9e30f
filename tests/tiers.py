"""Tiers of tests, as marks: told by what a test reaches, never written by hand.

A test reaches its fixtures and what its function names: functions, classes, programs in strings; and what those name that are
below tests/. So a test that calls a helper that starts a job is a test with a job, wherever it lies. A test is in one tier, the
costliest that it reaches, or in none: then it is pure, or starts small processes.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent
BELOW = f"{TESTS}/"

MARKERS = {
    "torch": "imports torch, in the test's process or in programs, or is of checkpoints",
    "browser": "looks at pages in a real browser",
    "job": "starts real jobs on this host",
    "hosts": "starts jobs on simulated hosts, in namespaces",
    "cluster": "starts a real Slurm or a real HDFS",
    "frameworks": "trains with frameworks of others, in an environment of their own",
    "root": "does less, or nothing, where it is not root",
    "guarantee": "keeps a promise of the README with a real job; see tests/guarantees.py",
}
TIERS = ("torch", "browser", "job", "hosts", "cluster", "frameworks")
"""From the cheapest to the costliest."""

STARTERS = {
    ("jobs.py", "running"): "job",
    ("gpu/ground.py", "Ranks"): "job",
    ("page_ground.py", "need_chromium"): "browser",
    ("hosts.py", "Cluster"): "hosts",
    ("slurm_cluster.py", "SlurmCluster"): "cluster",
    ("servers/hdfs.py", "running_hdfs"): "cluster",
    ("forks.py", "warm_process"): "torch",
    ("prefetch/private_mounts.py", "privately"): "root",
    ("prefetch/private_mounts.py", "_enter"): "root",
}
"""Functions and classes of tests/, by file: who reaches one of them has the mark."""

FOLDERS = {
    "ckpt_io/": "torch",
    "checkpoint/": "torch",
    "health/checks/test_fleet.py": "torch",
    "health/checks/test_nursery.py": "torch",
    "health/checks/test_programs.py": "torch",
    "launcher/agent/test_agent_checks.py": "torch",
    "examples/": "job",
    "gpu/": "job",
    "packaging/": "job",
    "frameworks/": "frameworks",
    "docs/test_commands.py": "job",
    "docs/test_site.py": "job",
    "prefetch/image/test_debian_root.py": "job",
    "planning/test_real_jobs.py": "hosts",
    "snapshot/test_building.py": "job",
    "snapshot/test_property.py": "job",
    "snapshot/test_restoring.py": "job",
    "snapshot/test_round_trip.py": "job",
    "test_public_api.py": "torch",
}
"""Marks of all tests in a folder or file: what they start they start in programs."""

ASKS_FOR_ROOT = frozenset({"geteuid", "chown"})
"""Names of functions that tell of it."""
PROGRAMS_FOR_ROOT = ("mount", "unshare")


def marks_of(item: pytest.Function, guarantees: Collection[str]) -> list[str]:
    """Return the marks of a test. `guarantees`: ids of tests, those with a bracket as far as they are written."""
    place = below(str(item.path))
    found = {mark for folder, mark in FOLDERS.items() if place.startswith(folder)} | reached(item.function)
    for fixtures in item._fixtureinfo.name2fixturedefs.values():
        found.update(*(reached(fixture.func) for fixture in fixtures))
    costliest = [tier for tier in TIERS if tier in found][-1:]
    name = item.nodeid.removeprefix("tests/")
    is_guarantee = name.partition("[")[0] in guarantees or any(
        name.startswith(each) for each in guarantees if "[" in each
    )
    return [*costliest, *sorted(found - {*TIERS}), *(["guarantee"] if is_guarantee else [])]


@functools.cache
def reached(function: Any) -> frozenset[str]:
    """Return the marks of all that a function reaches."""
    found: set[str] = set()
    seen: set[int] = set()
    todo = [function]
    while todo:
        value = _unwrapped(todo.pop())
        if id(value) not in seen:
            seen.add(id(value))
            marks, names = _look_at(value)
            found |= marks
            todo += names
    return frozenset(found)


def _unwrapped(value: Any) -> Any:
    """Return what a partial, a method, a property or a fixture is made of."""
    while True:
        if isinstance(value, functools.partial):
            value = value.func
        elif isinstance(value, (staticmethod, classmethod)):
            value = value.__func__
        elif isinstance(value, property):
            value = value.fget
        elif type(value).__name__ == "FixtureFunctionDefinition":
            value = value._get_wrapped_function()
        else:
            return value


def _look_at(value: Any) -> tuple[frozenset[str], tuple[Any, ...]]:
    """Return the marks that something gives by itself, and what it names."""
    nothing: frozenset[str] = frozenset()
    if isinstance(value, str):
        return _of_text(value), ()
    if isinstance(value, types.ModuleType):
        return frozenset({"torch"} if value.__name__.partition(".")[0] == "torch" else ()), ()
    if isinstance(value, (tuple, list)):
        return nothing, tuple(each for each in value[:100] if isinstance(each, (str, tuple)))
    if isinstance(value, (types.FunctionType, type)):
        return _look_at_code(value)
    return nothing, ()


def _of_text(text: str) -> frozenset[str]:
    torch = {"torch"} if "import torch" in text or "from torch" in text else set()
    return frozenset(torch | ({"root"} if text in PROGRAMS_FOR_ROOT or "mount -t" in text else set()))


@functools.cache
def _look_at_code(value: Any) -> tuple[frozenset[str], tuple[Any, ...]]:
    """The same, of a function or class."""
    file = _file_of(value)
    wrapped = (value.__wrapped__,) if hasattr(value, "__wrapped__") else ()
    if not file:
        return frozenset(), wrapped  # what contextlib makes of a function is not below tests/, the function is
    mark = STARTERS.get((file, value.__name__))
    marks = {mark} if mark else set()
    if isinstance(value, type):
        return _told_apart(marks, (*vars(value).values(), *value.__bases__))
    if ASKS_FOR_ROOT & set(_names(value.__code__)):
        marks.add("root")
    return _told_apart(marks, (*_named(value), *wrapped))


def _told_apart(marks: set[str], values: Iterable[Any]) -> tuple[frozenset[str], tuple[Any, ...]]:
    """Add the marks of what names nothing itself; return them and what is left to look at, for all who come to look."""
    left: dict[int, Any] = {}
    for each in map(_unwrapped, values):
        if isinstance(each, (str, types.ModuleType)):
            marks |= _look_at(each)[0]
        elif isinstance(each, (tuple, list)) or (
            isinstance(each, (types.FunctionType, type)) and (_file_of(each) or hasattr(each, "__wrapped__"))
        ):
            left[id(each)] = each
    return frozenset(marks), tuple(left.values())


def _file_of(value: Any) -> str:
    """Return the file below tests/ in which a function or class was written; empty if it was not."""
    if isinstance(value, type):
        return below(getattr(sys.modules.get(value.__module__), "__file__", None) or "")
    return below(value.__code__.co_filename)


def below(name: str) -> str:
    """Return a file's path below tests/; empty if it is elsewhere. No Path: it is asked for ten thousand functions."""
    return name.removeprefix(BELOW) if name.startswith(BELOW) else ""


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _names(code: types.CodeType) -> Iterator[str]:
    for each in _codes(code):
        yield from each.co_names


def _named(function: types.FunctionType) -> Iterator[Any]:
    """Yield what a function names: globals, parts of modules of tests/, strings."""
    names = sorted(set(_names(function.__code__)))
    for name in names:
        value = function.__globals__.get(name, sys.modules.get(name))
        yield value
        if isinstance(value, types.ModuleType) and str(getattr(value, "__file__", "")).startswith(str(TESTS)):
            yield from (getattr(value, each) for each in names if hasattr(value, each))
    for each in _codes(function.__code__):
        yield from (constant for constant in each.co_consts if isinstance(constant, str))
