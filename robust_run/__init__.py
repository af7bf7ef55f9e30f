"""robust-run: a torchrun replacement that starts large training jobs fast and heals them by itself.

Importing this package imports nothing else: the path to the first worker is measured in milliseconds.

Public, with a promise to keep it (`docs/python.md`):

    robust_run.report(step=..., loss=..., grad_norm=...)    how training goes, from a training script
    robust_run.checkpoint                                   save at every step, load at the start: memory and storage
    robust_run.ckpt_io.dcp                                  save and load through torch.distributed.checkpoint
    robust_run.ckpt_io.catalog                              the checkpoints in a folder: list, latest, prune
    robust_run.roles                                        jobs of several roles: who is there, work queues
    robust_run.ckpt_io.errors, robust_run.errors            what these raise

and of these the names in `__all__`. Everything else is private, also without a leading underscore: any version may change it.
"""

from robust_run.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from robust_run.health.metrics.reporting import report as report

__all__ = ["__version__", "report"]


def __getattr__(name: str) -> object:
    """Give scripts `report` and `checkpoint` when they are first asked for.

    The package `report`, once imported, can be called too.
    """
    if name == "report":
        from robust_run.health.metrics.reporting import report

        return report
    if name == "checkpoint":
        import importlib

        return importlib.import_module("robust_run.checkpoint")
    raise AttributeError(f"module 'robust_run' has no attribute {name!r}")
