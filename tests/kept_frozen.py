"""Warm processes of tests whose workers end without a last look for garbage among what was imported before the fork.

A job's do look (`robust_run.launcher.agent.warm.run`): what torch has made costs each worker a third of a second of CPU at its
end, as it costs any Python. What a program sees of that is asked in tests/launcher/warm/test_equal_to_plain.py.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

TESTS = str(Path(__file__).parent)


def keep_frozen() -> None:
    """Have what is forked from this process from now on keep what is frozen."""
    gc.unfreeze = lambda: None


def start() -> None:
    """Be `robust warm start`, and have what it starts call `daemon` below."""
    from robust_run.launcher.start.warm import manage
    from robust_run.robust_cli import main

    as_ever = manage.start_environment

    def start_environment(*arguments: object) -> dict[str, str]:
        env = as_ever(*arguments)  # type: ignore[arg-type]
        return {**env, "PYTHONPATH": env["PYTHONPATH"] + os.pathsep + TESTS}

    manage.start_environment, manage._MAIN = start_environment, "kept_frozen:daemon"
    main()


def daemon(descriptor: str) -> None:
    """Be a user's warm process that keeps what is frozen."""
    sys.path.remove(TESTS)
    sys.path_importer_cache.pop(TESTS, None)
    sys.modules.pop(__name__, None)  # no program is to find us
    keep_frozen()
    from robust_run.launcher.start.warm.daemon import main

    main(descriptor)
