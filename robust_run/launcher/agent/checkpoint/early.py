"""Fetching of a checkpoint that begins before the image or set-up of its workers is there, or before the nodes have met. Imported
where a job starts from a URL.

Which one the attempt will start from is not decided then: it is the newest whole one, unless the job has reasons against it, and
then what was fetched is let go. Nodes that share need each other's addresses, and know them when all have met. Until then, one
that was told its place among a fixed number (`--nnodes N --node-rank R`) fetches what falls to it there, and no more: so all of
them fetch the checkpoint once. One that was not would have to fetch it all, and fetches nothing. What is fetched for a reader who
waits, the set-up, and what earlier starts read go first (`store.turns`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from robust_run.clock import Clock
from robust_run.launcher.agent.checkpoint.ahead import CheckpointAhead
from robust_run.launcher.agent.checkpoint.choosing import AssumedShare
from robust_run.launcher.agent.workers import workers
from robust_run.launcher.model.job import JobSpec
from robust_run.launcher.records.run_directory import RunDirectory


class EarlyCheckpoint(NamedTuple):
    """What the node goes on with."""

    helpers: workers.Helpers
    ahead: CheckpointAhead


def is_wanted(spec: JobSpec) -> bool:
    """Whether there is something to be fetched before there is an attempt. Pure."""
    is_far = spec.ckpt_dir is not None and "://" in spec.ckpt_dir and spec.resume_folder == spec.ckpt_dir
    if not is_far or not spec.ckpt_ahead:
        return False
    return _has_place(spec) if spec.many is None else assumed_share(spec) is not None


def assumed_share(spec: JobSpec) -> AssumedShare | None:
    """Return which part of a checkpoint is this node's in the first attempt, as its options promise; None: they do not. Pure.

    Where nodes have other numbers of ranks than this one, others fetch some of it again.
    """
    many = spec.many
    if many is None or many.node_rank is None or many.fewest != many.most or not 0 <= many.node_rank < many.most:
        return None
    return AssumedShare(many.node_rank, many.most, spec.nproc, _has_place(spec))


def _has_place(spec: JobSpec) -> bool:
    return spec.image is not None or spec.setup is not None


def begin(
    spec: JobSpec,
    env: Mapping[str, str],
    clock: Clock,
    run_directory: RunDirectory | None,
    mask: Iterable[int],
    say: Callable[[str], None],
    port: int = -1,
) -> EarlyCheckpoint:
    """Begin. `mask`: of signals, for processes that are started. What fails is said, and later begun anew.

    `run_directory`: None: a node of several, which does not know the run yet. `port`: where others will ask it, a descriptor.
    """
    log, folder = (run_directory.store_log, run_directory.memory) if run_directory is not None else (os.devnull, "")
    helpers = workers.Helpers(workers.ChildSetup(mask), log, clock.monotonic_s)
    ahead = CheckpointAhead(helpers.start, env, say, spec.ckpt_ahead_bytes, spec.ckpt_ahead_bytes_s, folder=folder)
    ahead.begin_early(spec.ckpt_dir or "", assumed_share(spec), port)
    return EarlyCheckpoint(helpers, ahead)
