"""A run's facts, left for the fleet when it is over: for `robust fleet`, `--standby auto` and `robust plan --from`. And what a
job of several nodes says at its beginning of what others have left.

The node that has the journal does it, after the job's last word; a run that is resumed replaces what it left before. A controller
that dies leaves nothing: its run directory says what there was. Whatever goes wrong here is one line, and no failure of the job.

It takes 60 ms, almost all of it imports. Jobs that were done within seconds, without an incident, are not held up by it: a fleet
learns nothing from them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from robust_run.errors import RobustRunError

if TYPE_CHECKING:
    import asyncio

    from robust_run.clock import Clock
    from robust_run.fleet.words import RunFacts
    from robust_run.launcher.controller.config import ControllerConfig
    from robust_run.launcher.controller.remembered_nodes import RememberedNodes
    from robust_run.launcher.records.run_directory import RunDirectory


#: A job that was done sooner, without an incident, leaves nothing.
SHORT_S = 10.0


def is_trifle(outcome: str, lived_s: float, incidents: int) -> bool:
    """Whether a fleet learns nothing from a run."""
    return outcome == "done" and not incidents and lived_s < SHORT_S


def leave_facts(
    run_directory: RunDirectory, say: Callable[[str], None], read: Callable[[str], RunFacts] | None = None
) -> None:
    """Leave the facts of a run that is over beside its run directory; of one that keeps nothing, none. Never raises.

    `read`: what returns the facts of a run directory, in place of what does.
    """
    if run_directory.temporary:
        return
    try:
        from robust_run.fleet.files import index
        from robust_run.own_folder import check_way

        log_dir = os.path.dirname(run_directory.path)
        check_way(index.folder_of(log_dir))
        index.keep(log_dir, (read or _read)(run_directory.path))
    except OSError as error:
        say(f"{_where(run_directory)}: {error.strerror or error}; {_INSTEAD}")
    except RobustRunError as error:
        say(f"{_where(run_directory)}: {error}; {_INSTEAD}")
    except Exception as error:
        say(
            f"{_where(run_directory)}, by a fault of robust-run: {type(error).__name__}: {error}; please report it. "
            f"Until then {_INSTEAD}"
        )


def look_back(
    config: ControllerConfig, clock: Clock, say: Callable[[str], None], loop: asyncio.AbstractEventLoop
) -> RememberedNodes | None:
    """Say why there are so many standbys, where nobody said how many; return what looks for nodes with a past, None: nothing."""
    if config.spec.many is not None and config.spec.many.standby_why:
        say(config.spec.many.standby_why)
    if config.temporary:
        return None
    from robust_run.launcher.controller.remembered_nodes import MOST_RUNS, RememberedNodes
    from robust_run.launcher.records.fleet_index import read_trusted

    folder, name = os.path.split(config.run_path)
    return RememberedNodes(lambda: read_trusted(folder, MOST_RUNS), clock, say, loop.call_soon_threadsafe, name)


_INSTEAD = "robust fleet reads its run directory instead, as long as it is there"


def _where(run_directory: RunDirectory) -> str:
    return f"the fleet does not keep this run ({run_directory.shown(os.path.dirname(run_directory.path))}/.fleet)"


def _read(path: str) -> RunFacts:
    import time

    from robust_run.launcher.operator.reading.run_facts import nobody_lives, read_facts

    return read_facts(path, time.time(), nobody_lives)
