"""robust-run: a torchrun replacement that starts large training jobs fast and heals them by itself.

Importing this package imports nothing else: the path to the first worker is measured in milliseconds.

A training script may say how it does, in one line: `robust_run.report(step=step, loss=loss, grad_norm=norm)`.
"""

from robust_run.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from robust_run.health.metrics.reporting import report as report

__all__ = ["__version__", "report"]


def __getattr__(name: str) -> object:
    """Give scripts `report` when it is first asked for. The package of that name, once imported, can be called too."""
    if name == "report":
        from robust_run.health.metrics.reporting import report

        return report
    raise AttributeError(f"module 'robust_run' has no attribute {name!r}")
