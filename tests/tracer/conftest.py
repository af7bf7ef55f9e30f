"""The recorder in C, built once for all workers of pytest."""

from __future__ import annotations

import os

import pytest

from robust_run.tracer.native import build


@pytest.fixture(scope="session")
def built_in_c(tmp_path_factory: pytest.TempPathFactory) -> build.Recorder:
    """Lies where workers look for it whose XDG_CACHE_HOME is the folder above."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    found = build.ensure(str(shared / "cache-of-recorder" / "robust-run"), shipped="")
    assert found.path or "no C compiler" in found.reason or "Python.h" in found.reason, found.reason
    return found


@pytest.fixture(scope="session")
def recorder_in_c(built_in_c: build.Recorder) -> str:
    return built_in_c.path or pytest.skip(built_in_c.reason)
