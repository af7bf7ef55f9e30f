"""Coordinator of a job: etcd if one is named, else the run directory."""

from __future__ import annotations

import os
from collections.abc import Callable

from robust_run.clock import Clock
from robust_run.launcher.controller.leadership.coordinator import Coordinator
from robust_run.launcher.controller.leadership.job_runs import EtcdRuns, FolderRuns, JobRuns
from robust_run.launcher.controller.leadership.types import RunStanding
from robust_run.launcher.model.job import JobSpec
from robust_run.launcher.model.job_identity import identity_of


def open_coordinator(
    coordinator: str, ca_file: str, job: str, run_directory: str, clock: Clock, on_problem: Callable[[str], None]
) -> Coordinator:
    """Return the Coordinator that `--coordinator` names; nothing is asked of it yet.

    `job` names the job for all its agents (etcd may serve many jobs). Raises UserError for an address that makes no sense.
    """
    if coordinator:
        from robust_run.launcher.controller.leadership.address import parse_coordinator
        from robust_run.launcher.controller.leadership.etcd import EtcdCoordinator
        from robust_run.launcher.controller.leadership.etcd_client import EtcdClient

        client = EtcdClient(parse_coordinator(coordinator, ca_file))
        return EtcdCoordinator(client, job, clock, on_problem=on_problem)
    from robust_run.launcher.controller.leadership.folder import FolderCoordinator
    from robust_run.launcher.controller.leadership.folder_files import SharedFolder

    return FolderCoordinator(SharedFolder(os.path.join(run_directory, "leader")), clock, on_problem=on_problem)


def name_in_etcd(spec: JobSpec) -> str:
    """Return what a job of several nodes is called in etcd: the same on all its nodes, before any has joined."""
    is_named = spec.many is not None and bool(spec.many.job)
    return spec.rdzv_id if is_named else f"rendezvous-{identity_of(spec).key}"


def open_runs(spec: JobSpec, clock: Clock) -> JobRuns | None:
    """Return where the runs of a job are on record; nothing is asked of it yet. None: nowhere, since no logs are kept."""
    many = spec.many
    assert many is not None, "a job of one node has no register"
    if many.coordinator:
        name = name_in_etcd(spec)
        return EtcdRuns(open_coordinator(many.coordinator, many.tls_ca, name, "", clock, lambda _: None))
    if spec.log_dir is None:
        return None
    from robust_run.launcher.controller.leadership.folder_files import SharedFolder

    log_dir = spec.log_dir

    async def standing_of(run_id: str) -> RunStanding | None:
        return await open_coordinator("", "", "", os.path.join(log_dir, run_id), clock, lambda _: None).standing()

    folder = SharedFolder(register_of(log_dir))
    named = spec.run_id if many.job == spec.run_id or spec.slurm is not None else ""
    return FolderRuns(folder, identity_of(spec).key, standing_of, named)


def register_of(log_dir: str) -> str:
    """Return the folder that the runs of a user's jobs are on record in."""
    return os.path.join(log_dir, f".rendezvous-{os.geteuid()}")
