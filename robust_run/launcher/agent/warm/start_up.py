"""Start of a warm process: as the very command line of a worker, which stops before the user's program begins.

Python imports `sitecustomize` when it is complete but for the user's program. Ours, in the folder `start`, calls the warm
process there. The warm process never gets past that point; what it forks does, once it has become a worker. So it is the
interpreter itself that runs the user's program, with nothing of ours below it: no frames, no code to imitate it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

START_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "start")

#: Variable with the folder from which a warm process imports this package, and nothing else; see `start/sitecustomize.py`.
LIBRARY = "ROBUST_WARM_LIBRARY"


def start_environment(env: Mapping[str, str], function: str, arguments: Sequence[str] = ()) -> dict[str, str]:
    """Return the variables to set for a warm process that would, as a worker, run with `env` (not armed).

    `function` is `package.module:name`. It is called with the arguments (words without spaces) and must return only in a
    process in which `run` has returned; in all others it never returns (`os._exit`).
    """
    original = env.get("PYTHONPATH")
    return {
        "PYTHONPATH": f"{START_FOLDER}{os.pathsep}{original}" if original else START_FOLDER,
        # The names and their meaning are those of robust_run.tracer.files.arming: a warm process is not counted.
        "ROBUST_ARM_PYTHONPATH": "" if original is None else f"={original}",
        "ROBUST_WARM": " ".join((function, *arguments)),
    }
