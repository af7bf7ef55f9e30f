"""Configuration of the controller's process, handed over when it is started. No behaviour."""

from __future__ import annotations

import msgspec

from robust_run.launcher.model.job import JobSpec


class ControllerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A job to be controlled. It is handed over in memory, never on a command line: it holds the token."""

    spec: JobSpec
    token: str
    run_path: str
    """The run directory."""
    run_memory: str
    listener: int
    """Descriptor of the socket that agents dial: listening, or only bound where `campaigns` is true and others lead."""
    address: str
    """HOST:PORT of it, as agents reach it."""
    host_agent: str
    """Id of the agent whose child this process is."""
    host: str
    guard: int
    """Pid of the guard of that node."""
    resume: bool = False
    """A journal is there."""
    needs: int = 0
    """Nodes without which the first attempt of a new run does not begin; 0: as many as the job needs."""
    hold_s: float = 0.0
    """No attempt of a new run begins before."""
    after: int = 0
    """Number of the run before this one in the register of the job's runs."""
    closes: str = ""
    """Directory of an earlier run of the job, which is ended for good before this one begins; empty: of none."""
    campaigns: bool = False
    """Others may lead: it must be elected before it does anything."""
    setup: bytes = b""
    """The manifest of the snapshot that the host's environment was restored from; empty: there is none, or it is not known."""
    temporary: bool = False
    """Logs are not kept."""
