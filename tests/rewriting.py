"""Test files as pytest rewrites them, for what `assert` says: each file once, where several processes of xdist read them all.

pytest keeps what it has rewritten. But on a fresh checkout all processes begin with the same file at the same time, and each
rewrites all of them: half of what reading costs. So each first rewrites a share of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest


def share(arguments: Sequence[str], number: int, of: int) -> list[Path]:
    """Return the test files that a process rewrites, of all that it is asked to read."""
    places = [Path(argument.partition("::")[0]) for argument in arguments]
    found = {file for place in places for file in (place.rglob("test_*.py") if place.is_dir() else [place])}
    return sorted(found)[number::of]


def rewrite_share(config: pytest.Config) -> None:
    """Rewrite it, in a process of xdist. pytest has no public name for this: where it does it otherwise, nothing is gained."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if not hasattr(config, "workerinput") or not worker.startswith("gw") or sys.dont_write_bytecode:
        return
    files = share(config.args, int(worker.removeprefix("gw")), int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))
    with suppress(ImportError, AttributeError, LookupError, TypeError, OSError):
        from _pytest.assertion import rewrite

        state = config.stash[rewrite.assertstate_key]
        for file in map(Path.absolute, files):
            folder = rewrite.get_cache_dir(file)
            kept = folder / f"{file.stem}{rewrite.PYC_TAIL}"
            if rewrite._read_pyc(file, kept) is None and rewrite.try_makedirs(folder):
                known, code = rewrite._rewrite_test(file, config)
                rewrite._write_pyc(state, code, known, kept)
