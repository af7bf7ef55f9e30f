"""Has the recorder in C built beside an attempt, for later ones: until it is there, workers record in Python."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from robust_run.errors import PlatformError

if TYPE_CHECKING:
    from robust_run.launcher.agent.workers.store import StartsHelpers

#: How long an attempt has run when it is compiled beside it, later than the imports of its workers; and when one from the wheel
#: is only tried, which takes 0.05 s: before they import torch.
COMPILE_AFTER_S, TRY_AFTER_S = 10.0, 0.5

_BUILD = (
    "import sys; del sys.path[0]; from robust_run.tracer.native.build import ensure; "
    "reason = ensure(sys.argv[1]).reason; print(f'robust-run: calls are recorded in Python: {reason}') if reason else None"
)


class RecorderBuild:
    """The recorder in C on one node, from attempt to attempt."""

    def __init__(self, env: Mapping[str, str], start_helper: StartsHelpers, *, is_wanted: bool) -> None:
        """`env` is what the workers' environments are made of. `is_wanted`: they are Python programs."""
        off = env.get("ROBUST_TRACE") == "0" or env.get("ROBUST_TRACE_NATIVE") == "0"
        self._env = env
        self._start_helper = start_helper
        self._path: str | None = None if is_wanted and not off else ""
        self._is_decided = False

    @property
    def path(self) -> str:
        """Where it is or will be; empty: it is not wanted, or cannot be built."""
        if self._path is None:
            from robust_run.tracer.native import build

            try:
                self._path = build.target_path()
            except OSError:
                self._path = ""
        return self._path

    def build_beside(self, python: str, age_s: float) -> None:
        """Build it in a process of its own, once, unless that was done. Call now and then."""
        if self._is_decided or age_s < TRY_AFTER_S or not self.path:
            return
        import os

        from robust_run.tracer.native import build

        folder = os.path.dirname(self.path)
        is_ready = build.is_ready(folder)
        if not is_ready and age_s < COMPILE_AFTER_S and not build.is_shipped():
            return
        self._is_decided = True
        if not is_ready:
            with suppress(PlatformError):  # calls are recorded in Python
                self._start_helper((python, "-c", _BUILD, folder), self._env, ())
