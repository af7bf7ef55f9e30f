"""The files that run in workers, loaded into a test under names with which they arm nothing."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from robust_run.tracer.files import arming


def load_worker_side() -> ModuleType:
    """Return a fresh `sitecustomize`; its `load` returns the files beside it."""
    spec = importlib.util.spec_from_file_location("worker_side", Path(arming.ARM_FOLDER) / "sitecustomize.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
