"""How a worker is made to count its steps and to note its calls: through its environment alone, with nothing changed in its
program.

Python imports a module named `sitecustomize` at its start, wherever on the path it finds one. Ours lies alone in the folder
`arm`, which goes first on PYTHONPATH. A worker that ignores PYTHONPATH (`python -I`, `-E`, `-S`, no Python at all) runs as
ever and is not counted.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from robust_run.tracer.files import ring_format, steps

ARM_FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "arm")


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


def arm_environment(env: Mapping[str, str], steps_file: str) -> dict[str, str]:
    """Return the variables to set for a worker that would otherwise run with `env`; none if ROBUST_TRACE=0 is in it.

    `steps_file` is an absolute path that `robust_run.tracer.files.steps.create` has been given. The worker takes these variables
    out of its environment again before its program starts.
    """
    if env.get("ROBUST_TRACE") == "0" or os.pathsep in ARM_FOLDER:
        return {}
    original = env.get("PYTHONPATH")
    if original is not None and ARM_FOLDER in original.split(os.pathsep):
        # A launcher inside a worker whose Python ignored PYTHONPATH: what was before us is what that one noted.
        noted = env.get("ROBUST_ARM_PYTHONPATH", "")
        original = noted[1:] if noted else None
    return {
        # An empty PYTHONPATH adds nothing to the path, but an empty entry in one would add the working directory.
        "PYTHONPATH": f"{ARM_FOLDER}{os.pathsep}{original}" if original else ARM_FOLDER,
        "ROBUST_ARM_PYTHONPATH": "" if original is None else f"={original}",
        "ROBUST_STEPS_FILE": steps_file,
    }
