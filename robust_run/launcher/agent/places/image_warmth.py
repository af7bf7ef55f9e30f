"""Warm processes inside an image or environment: made of the robust_run there, or else of this one, which is bound in.

The Python there is asked what it has and whether it can import ours, in a process of its own, beside the first attempt.
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
_NONE, _YES = "none", "yes"
#: Says which version the Python there has, and on a second line whether it can be warm with ours, where that is wanted.
_CODE = f"""
import os, sys
del sys.path[0]
try:
    import msgspec, robust_run.version as found
    version = found.__version__
except Exception:
    version = {_NONE!r}
ours = ""
if version != {__version__!r} and sys.argv[2]:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("robust_run", "msgspec")]:
        del sys.modules[name]
    sys.path.insert(0, sys.argv[2])
    try:
        import robust_run.launcher.agent.warm.process
        ours = {_YES!r}
    except BaseException as error:
        ours = " ".join(("%s: %s" % (type(error).__name__, error)).split())
os.write(int(sys.argv[1]), ("%s\\n%s" % (version, ours)).encode("utf-8", "replace")[:400])
"""
_LONGEST = 400


def reason(found: str, where: str = "the image") -> str:
    """Return why no warm process can be in a place, by what its Python says; empty: one can. Pure."""
    version, _, ours = found.partition("\n")
    if version == __version__ or ours == _YES:
        return ""
    if not version:
        return f"{where}'s Python could not be asked whether it has robust_run (store.log says why)"
    cannot = f", and cannot use this one: {ours}" if ours else ""
    if version == _NONE:
        better = "" if ours else f" (with robust_run {__version__} in it, restarts are faster)"
        return f"{where} has no robust_run for its Python{cannot}{better}"
    return f"{where} has robust_run {version!r}, and this one is {__version__}{cannot}"


class ImageWarmth:
    """Asks once, and tells the starter."""

    def __init__(
        self,
        starter: Starter,
        enter: Callable[[tuple[str, ...]], tuple[str, ...]],
        start_helper: StartsHelpers,
        where: str,
        library: str = "",
    ) -> None:
        """`where`: for messages; `library`: see `HeldPlace`.

        `starter.off` may hold a reason of its own already: then the image is not asked."""
        self._starter, self._enter, self._start_helper, self._where = starter, enter, start_helper, where
        self._library = library
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
        said = found.decode(errors="replace")
        self._settle(reason(said, self._where), self._library if said.endswith(f"\n{_YES}") else "")
        return not self._starter.off

    def _ask(self, twin: StartPlan) -> None:
        self._answer, theirs = os.pipe()
        os.set_blocking(self._answer, False)
        try:
            self._start_helper(
                self._enter((twin.argv[0], "-c", _CODE, str(theirs), self._library)), twin.plain_env, (theirs,)
            )
        except PlatformError as error:
            os.close(self._answer)
            self._settle(str(error))
        finally:
            os.close(theirs)

    def _settle(self, why_not: str, library: str = "") -> None:
        self._starter.settle(why_not, library)
        self._is_settled = True
