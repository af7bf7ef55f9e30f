"""Warm processes inside an image or environment: that needs robust_run and msgspec for the Python there.

It is asked of that Python, in a process of its own, beside the first attempt.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from robust_run.errors import PlatformError
from robust_run.launcher.agent.workers.starter import Starter, StartPlan
from robust_run.launcher.agent.workers.store import StartsHelpers
from robust_run.version import __version__

#: The workers' imports go first: they ask an image for the same blocks.
ASK_AFTER_S = 1.0
_NONE = "none"
_CODE = (
    "import os, sys; del sys.path[0]\n"
    "try:\n"
    "    import msgspec, robust_run.version as found\n"
    "    version = found.__version__\n"
    "except ImportError:\n"
    f"    version = {_NONE!r}\n"
    "os.write(int(sys.argv[1]), version.encode())\n"
)
_LONGEST = 100


def reason(found: str, where: str = "the image") -> str:
    """Return why no warm process can be in a place, by the version of robust_run that it has; empty: one can. Pure."""
    if found == __version__:
        return ""
    if found == _NONE:
        return f"{where} has no robust_run for its Python (with robust_run {__version__} in it, restarts are faster)"
    if not found:
        return f"{where}'s Python could not be asked whether it has robust_run (store.log says why)"
    return f"{where} has robust_run {found!r}, and this one is {__version__}"


class ImageWarmth:
    """Asks once, and tells the starter."""

    def __init__(
        self,
        starter: Starter,
        enter: Callable[[tuple[str, ...]], tuple[str, ...]],
        start_helper: StartsHelpers,
        where: str,
    ) -> None:
        """`where`: for messages. `starter.off` may hold a reason of its own already: then the image is not asked."""
        self._starter, self._enter, self._start_helper, self._where = starter, enter, start_helper, where
        self._answer: int | None = None
        """Descriptor where the answer arrives."""
        self._is_settled = bool(starter.off)
        if not self._is_settled:
            starter.off = f"it is not known yet whether {where} has robust_run"

    def is_possible(self, twin: StartPlan, age_s: float) -> bool:
        """Whether a warm process may be started now; call now and then. `age_s`: of the attempt."""
        if self._is_settled:
            return not self._starter.off
        if self._answer is None:
            if age_s >= ASK_AFTER_S:
                self._ask(twin)
            return False
        try:
            found = os.read(self._answer, _LONGEST)
        except BlockingIOError:
            return False
        os.close(self._answer)
        self._settle(reason(found.decode(errors="replace"), self._where))
        return not self._starter.off

    def _ask(self, twin: StartPlan) -> None:
        self._answer, theirs = os.pipe()
        os.set_blocking(self._answer, False)
        try:
            self._start_helper(self._enter((twin.argv[0], "-c", _CODE, str(theirs))), twin.plain_env, (theirs,))
        except PlatformError as error:
            os.close(self._answer)
            self._settle(str(error))
        finally:
            os.close(theirs)

    def _settle(self, why_not: str) -> None:
        self._starter.settle(why_not)
        self._is_settled = True
