"""robust-run: a torchrun replacement that starts large training jobs fast and heals them by itself.

Importing this package imports nothing else: the path to the first worker is measured in milliseconds.
"""

from robust_run.version import __version__

__all__ = ["__version__"]
