"""Command line and environment of a member's launcher. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from robust_run.orchestrator.words import RoleSpec, StartMember, StopMember
from robust_run.roles import INDEX, PLACE, ROLE, SERIAL

#: What a launcher inside a job of several roles must not take over from the environment of the whole.
_NOT_HANDED_ON = ("ROBUST_RUN_ID", "PET_RUN_ID", "ROBUST_LOG_DIR", "PET_LOG_DIR", "PET_NPROC_PER_NODE", "PET_NNODES")


def run_name(start: StartMember | StopMember) -> str:
    """Return the name of a launcher's run directory: `rollout-3.1` is the first launcher of rollout/3."""
    return f"{start.member.role}-{start.member.index}.{start.serial}"


def command_line(role: RoleSpec, start: StartMember, log_dir: str, python: str) -> list[str]:
    """Return what starts a member: `robust-run` with what the file says, in the interpreter that runs us."""
    restarts = role.max_restarts if role.restart != "job" else 0
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
        *role.options,
        *role.command,
    ]


def environment(role: RoleSpec, start: StartMember, base: Mapping[str, str], place: str) -> dict[str, str]:
    """Return the environment of a member's launcher, which its workers inherit. `place`: path of the file for `roles`."""
    env = {name: value for name, value in base.items() if name not in _NOT_HANDED_ON}
    env.update(role.env)
    if start.devices:
        env["CUDA_VISIBLE_DEVICES"] = _devices(start.devices, base.get("CUDA_VISIBLE_DEVICES"))
    env.update({PLACE: place, ROLE: role.name, INDEX: str(start.member.index), SERIAL: str(start.serial)})
    return env


def _devices(devices: tuple[int, ...], visible: str | None) -> str:
    """Return which GPUs a member sees, of those that the job sees."""
    names = visible.split(",") if visible else []
    return ",".join(names[device] if device < len(names) else str(device) for device in devices)
