"""The plugin and the driver, compiled once for all tests, and ranks to play in."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tracer.nccl.playing import VERSIONS, Rank, StartRank, compile_driver

from robust_run.tracer.plugin import build, layout


@pytest.fixture(scope="session")
def compiler() -> str:
    found = next((path for path in map(shutil.which, build.COMPILERS) if path), None)
    if found is None:
        pytest.skip("no C compiler here")
    return found


@pytest.fixture(scope="session")
def plugin(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    found = build.ensure(str(tmp_path_factory.mktemp("plugin") / "cache"), shipped="")
    assert found.path, found.reason
    return found.path


@pytest.fixture(scope="session")
def driver(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    target = str(tmp_path_factory.mktemp("driver") / "driver")
    assert compile_driver(compiler, target) == ""
    return target


@pytest.fixture(params=VERSIONS, ids=lambda version: f"v{version}")
def version(request: pytest.FixtureRequest) -> int:
    assert isinstance(request.param, int)
    return request.param


@pytest.fixture
def start_rank(driver: str, plugin: str, tmp_path: Path) -> Iterator[StartRank]:
    """Starts processes with the plugin in them; those that are left over are ended."""
    started: list[Rank] = []

    def start(version: int = 6, path: str | None = None, environment: dict[str, str] | None = None) -> Rank:
        if path is None:
            path = str(tmp_path / f"rank{len(started)}.nccl")
            layout.create(path)
        started.append(Rank(driver, plugin, version, path, environment))
        return started[-1]

    yield start
    for rank in started:
        rank.close()


@pytest.fixture
def rank(start_rank: StartRank, version: int) -> Rank:
    """One rank, through each version of the interface."""
    return start_rank(version)
