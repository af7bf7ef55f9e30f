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
    "reason = ensure().reason; print(f'robust-run: calls are recorded in Python: {reason}') if reason else None"
)


class RecorderBuild:
    """The recorder in C on one node. Where it lies workers find by themselves (`tracer/arm/place.py`)."""

    def __init__(self, env: Mapping[str, str], start_helper: StartsHelpers, *, is_wanted: bool) -> None:
        """`env` is what the workers' environments are made of. `is_wanted`: they are Python programs."""
        off = env.get("ROBUST_TRACE") == "0" or env.get("ROBUST_TRACE_NATIVE") == "0"
        self._env = env
        self._start_helper = start_helper
        self._is_decided = off or not is_wanted

    def build_beside(self, python: str, age_s: float) -> None:
        """Have it built in a process of its own, once, unless it is there. Call now and then; `age_s`: of the attempt."""
        if self._is_decided or age_s < TRY_AFTER_S:
            return
        from robust_run.tracer.native import build

        is_ready = build.is_ready()
        if not is_ready and age_s < COMPILE_AFTER_S and not build.is_shipped():
            return
        self._is_decided = True
        if not is_ready:
            with suppress(PlatformError):  # calls are recorded in Python
                self._start_helper((python, "-c", _BUILD), self._env, ())
