"""What people read: incidents, verdicts and summaries. Never decides anything.

Its name is also that of the function by which scripts report how training goes, so the package can be called like it. That call
is public; nothing in the package is.
"""

import sys
from types import ModuleType


class _Reporting(ModuleType):
    """This package, when a script calls it: `robust_run.report(step=..., loss=...)`."""

    def __call__(self, **values: object) -> None:
        from robust_run.health.metrics.reporting import report

        report(**values)  # type: ignore[arg-type]


sys.modules[__name__].__class__ = _Reporting
