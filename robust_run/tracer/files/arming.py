"""How a worker is made to count its steps and to note its calls: through its environment alone, with nothing changed in its
program.

Python imports a module named `sitecustomize` at its start, wherever on the path it finds one. Ours lies alone in the folder
`arm`, which goes first on PYTHONPATH. A worker that ignores PYTHONPATH (`python -I`, `-E`, `-S`, no Python at all) runs as
ever and is not counted.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

from robust_run.tracer.files import ring_format, steps

_TRACER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ARM_FOLDER = os.path.join(_TRACER, "arm")
#: In a job's folder in memory, with the names that they have here: what arms its later workers, whatever becomes of this package.
KEPT = "tracer"


def create_files(
    steps_file: str,
    rank: int,
    world_size: int,
    *,
    times_start: bool = True,
    times_phases: bool = False,
    check_reduced: int = 0,
) -> None:
    """Make the files beside its steps file that a rank writes to. Raises OSError.

    `times_start`: it is to note what its start is spent on; `times_phases`: and what its steps consist of on its GPU;
    `check_reduced`: and checksums of reduced values, every so many steps; 0: none.
    """
    if times_start:
        steps.create_marks(steps_file)
    ring_format.create(f"{steps_file}.ring", rank, world_size)
    if times_phases:
        from robust_run.tracer.files import phases

        phases.create(f"{steps_file}{phases.SUFFIX}")
    if check_reduced:
        from robust_run.tracer.files import reduced

        reduced.create(f"{steps_file}{steps.REDUCED_SUFFIX}", check_reduced)
    descriptor = os.open(f"{steps_file}.stacks", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    os.close(descriptor)


def keep(memory: str) -> None:
    """Keep what arms workers in a job's folder in memory: rings and counts of a later worker are those that this version reads.

    Never raises: without it, workers are armed by what lies here then.
    """
    import shutil

    kept, made = os.path.join(memory, KEPT), os.path.join(memory, f".{KEPT}")
    with suppress(OSError, shutil.Error):
        for name in ("native", "arm"):  # with what Python has compiled of it, which takes each worker 50 ms
            shutil.copytree(os.path.join(_TRACER, name), os.path.join(made, name), dirs_exist_ok=True)
        os.rename(made, kept)


def arm_folder(memory: str) -> str:
    """Return the folder that arms workers of a job: what was kept for it, where something was."""
    kept = os.path.join(memory, KEPT, "arm")
    return kept if os.path.isdir(kept) else ARM_FOLDER


def arm_environment(env: Mapping[str, str], steps_file: str) -> dict[str, str]:
    """Return the variables to set for a worker that would otherwise run with `env`; none if ROBUST_TRACE=0 is in it.

    `steps_file` is an absolute path that `robust_run.tracer.files.steps.create` has been given. The worker takes these variables
    out of its environment again before its program starts.
    """
    folder = arm_folder(os.path.dirname(steps_file))
    if env.get("ROBUST_TRACE") == "0" or os.pathsep in folder:
        return {}
    original = env.get("PYTHONPATH")
    if original is not None and {ARM_FOLDER, folder} & set(original.split(os.pathsep)):
        # A launcher inside a worker whose Python ignored PYTHONPATH: what was before us is what that one noted.
        noted = env.get("ROBUST_ARM_PYTHONPATH", "")
        original = noted[1:] if noted else None
    return {
        # An empty PYTHONPATH adds nothing to the path, but an empty entry in one would add the working directory.
        "PYTHONPATH": f"{folder}{os.pathsep}{original}" if original else folder,
        "ROBUST_ARM_PYTHONPATH": "" if original is None else f"={original}",
        "ROBUST_STEPS_FILE": steps_file,
    }
