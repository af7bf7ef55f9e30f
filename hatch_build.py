"""Builds the plugin for NCCL into the wheel, where there is a C compiler. Without one the wheel works, but cannot trace NCCL."""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
import tempfile
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = os.path.join("robust_run", "tracer", "nccl")


class PluginBuildHook(BuildHookInterface[Any]):
    """Adds the compiled plugin to wheels. Editable installs build it when it is first asked for."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and name the wheel after the platform if that worked."""
        if version == "editable":
            return
        build = load(os.path.join(self.root, FOLDER, "build.py"))
        self._work = tempfile.TemporaryDirectory()
        target = os.path.join(self._work.name, build.OBJECT_NAME)
        reason = build.compile_plugin(target)
        if reason:
            print(f"robust-run: the wheel is built without the tracing of NCCL: {reason}", file=sys.stderr)
            return
        build_data["force_include"][target] = f"robust_run/tracer/nccl/{build.OBJECT_NAME}"
        build_data["pure_python"] = False
        build_data["tag"] = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")

    def finalize(self, *_: Any) -> None:
        """Forget what was compiled."""
        if hasattr(self, "_work"):
            self._work.cleanup()


def load(path: str) -> ModuleType:
    """Return a module of the source tree; its package may not be importable here."""
    spec = importlib.util.spec_from_file_location("nccl_build", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
