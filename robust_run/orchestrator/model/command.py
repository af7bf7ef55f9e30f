"""Command line and environment of a member's launcher. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from robust_run.orchestrator.model.names import MemberName
from robust_run.orchestrator.model.spec import RoleSpec
from robust_run.orchestrator.model.words import RestartMember, StartMember, StopMember
from robust_run.roles import INDEX, PLACE, ROLE, SERIAL

#: What a launcher inside a job of several roles must not take over from the environment of the whole.
_NOT_HANDED_ON = ("ROBUST_RUN_ID", "PET_RUN_ID", "ROBUST_LOG_DIR", "PET_LOG_DIR", "PET_NPROC_PER_NODE", "PET_NNODES")


class Meets(msgspec.Struct, frozen=True):
    """Where the nodes of one member meet, and which of them this is."""

    address: str
    port: int
    place: int

    def options(self, nodes: int, name: str) -> list[str]:
        """Return what its launcher is told of it."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        told = {"nnodes": nodes, "node-rank": self.place, "rdzv-endpoint": f"{host}:{self.port}", "rdzv-id": name}
        return [word for option, value in told.items() for word in (f"--{option}", str(value))]


def run_name(start: StartMember | StopMember | RestartMember) -> str:
    """Return the name of a launcher's run directory: `rollout-3.1` is the first launcher of rollout/3."""
    return f"{start.member.role}-{start.member.index}.{start.serial}"


def parsed(name: str) -> tuple[MemberName, int]:
    """Return the member and the serial of `run_name`."""
    member, _, serial = name.rpartition(".")
    role, _, index = member.rpartition("-")
    return MemberName(role, int(index)), int(serial)


def command_line(
    role: RoleSpec, start: StartMember, log_dir: str, python: str, meets: Meets | None = None, trust: Sequence[str] = ()
) -> list[str]:
    """Return what starts a member: `robust-run` with what the file says, in the interpreter that runs us. `trust`: with which
    options the launchers of a member of several nodes know each other.
    """
    restarts = role.max_restarts if role.restart != "job" else 0
    several = [] if meets is None else [*meets.options(role.nodes, run_name(start)), *trust]
    return [
        python,
        "-m",
        "robust_run",
        "--log-dir",
        log_dir,
        "--run-id",
        run_name(start),
        "--role",
        role.name,
        "--nproc-per-node",
        str(role.nproc),
        "--max-restarts",
        str(restarts),
        *several,
        *role.options,
        *role.command,
    ]


def environment(role: RoleSpec, start: StartMember, base: Mapping[str, str], place: str) -> dict[str, str]:
    """Return the environment of a member's launcher, which its workers inherit. `place`: path of the file for `roles`."""
    env = {name: value for name, value in base.items() if name not in _NOT_HANDED_ON}
    env.update(role.env)
    if start.devices:
        env["CUDA_VISIBLE_DEVICES"] = _devices(start.devices, base.get("CUDA_VISIBLE_DEVICES"))
    env["ROBUST_SLURM"] = "off"  # it is no task of a step by itself: where it runs is said here
    env.update({PLACE: place, ROLE: role.name, INDEX: str(start.member.index), SERIAL: str(start.serial)})
    return env


def _devices(devices: tuple[int, ...], visible: str | None) -> str:
    """Return which GPUs a member sees, of those that the job sees."""
    names = visible.split(",") if visible else []
    return ",".join(names[device] if device < len(names) else str(device) for device in devices)
