"""Fetching of a checkpoint that begins before the image or set-up of its workers is there. Imported where a job has both.

Which one the attempt will start from is not decided then: it is the newest whole one, unless the job has reasons against it, and
then what was fetched is let go. Nodes that share need each other's addresses, and know them when all have their image: so this is
for jobs of one node. What is fetched for a reader who waits, the set-up, and what earlier starts read go first (`store.turns`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from robust_run.clock import Clock
from robust_run.launcher.agent.checkpoint_ahead import CheckpointAhead
from robust_run.launcher.agent.workers import workers
from robust_run.launcher.model.job import JobSpec
from robust_run.launcher.records.run_directory import RunDirectory


class EarlyCheckpoint(NamedTuple):
    """What the node goes on with."""

    helpers: workers.Helpers
    ahead: CheckpointAhead


def is_wanted(spec: JobSpec) -> bool:
    """Whether there is something to be fetched beside an image or set-up. Pure."""
    is_far = spec.ckpt_dir is not None and "://" in spec.ckpt_dir and spec.resume_folder == spec.ckpt_dir
    return is_far and spec.ckpt_ahead and spec.many is None and (spec.image is not None or spec.setup is not None)


def begin(
    spec: JobSpec,
    env: Mapping[str, str],
    clock: Clock,
    run_directory: RunDirectory,
    mask: Iterable[int],
    say: Callable[[str], None],
) -> EarlyCheckpoint:
    """Begin. `mask`: of signals, for processes that are started. What fails is said, and later begun anew."""
    helpers = workers.Helpers(workers.ChildSetup(mask), run_directory.store_log, clock.monotonic_s)
    ahead = CheckpointAhead(
        helpers.start, env, say, spec.ckpt_ahead_bytes, spec.ckpt_ahead_bytes_s, folder=run_directory.memory
    )
    ahead.begin_early(spec.ckpt_dir or "")
    return EarlyCheckpoint(helpers, ahead)
