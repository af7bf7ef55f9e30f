"""Coordinator of a job: etcd if one is named, else the run directory."""

from __future__ import annotations

import os
from collections.abc import Callable

from robust_run.clock import Clock
from robust_run.launcher.controller.leadership.coordinator import Coordinator


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
