"""The recorder in C, built once for all workers of pytest."""

from __future__ import annotations

import os
import shutil

import pytest

from robust_run.tracer.native import build
from robust_run.tracer.plugin.build import COMPILERS


@pytest.fixture(scope="session")
def recorder_in_c(tmp_path_factory: pytest.TempPathFactory) -> str:
    if not any(map(shutil.which, COMPILERS)):
        pytest.skip("no C compiler here")
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    found = build.ensure(str(shared / "recorder-in-c"), shipped="")
    if "Python.h" in found.reason:
        pytest.skip(found.reason)
    assert found.path, found.reason
    return found.path
