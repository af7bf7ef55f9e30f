"""What the commands of `robust image` have in common."""

from __future__ import annotations

import os

import click

as_json_option = click.option("--json", "as_json", is_flag=True, help="As JSON.")
cache_option = click.option(
    "--image-cache",
    "cache_root",
    metavar="FOLDER",
    help="Where blocks are kept, on a disk of this node. [default: ROBUST_IMAGE_CACHE, else /var/tmp/robust-run-UID]",
)


def cache_folder(given: str | None) -> str:
    """Return the folder for blocks, made if it was not there. Raises `CacheRefused`."""
    from robust_run.prefetch.launch import default_cache, own_folder

    return own_folder(given or default_cache(os.environ.get))


def this_machine() -> str:
    """Return the architecture, as `uname -m` prints it."""
    return os.uname().machine


def this_python() -> str:
    """Return the interpreter as launch fingerprints name it."""
    import sys

    return f"{sys.implementation.name}-{sys.version_info.major}.{sys.version_info.minor}"
