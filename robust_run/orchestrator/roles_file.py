"""Reading of a file of roles (`--roles FILE`, TOML).

name = "dapo"

[roles.trainer]
command = "train.py --lr 1e-3"        # as after robust-run; or a list
nproc = 2
ends = "job"                          # the job is done when it is
depends_on = ["reward"]
options = ["--ckpt-dir", "ckpt"]      # further options of robust-run

[roles.rollout]
command = ["rollout.py"]
members = 4                           # or "2..8", and members = 4 to begin with
restart = "alone"

[roles.reward]
command = "reward.py"
ready = "called"                      # when each rank has called robust_run.roles.ready()
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Mapping
from typing import Annotated, get_args

import msgspec
from msgspec import Meta

from robust_run import settings_file
from robust_run.errors import UserError
from robust_run.orchestrator.model.spec import Ends, Ready, Restart, RoleSpec, RolesSpec, Scale
from robust_run.orchestrator.rules.labels import is_label
from robust_run.roles.queue_words import MOST_BYTES, MOST_ITEMS

MOST_ROLES = 64
MOST_MEMBERS = 4096

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_RANGE = re.compile(r"([0-9]{1,4})\.\.([0-9]{1,4})")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
#: Of `robust-run`, what a role says in its own words, or what the job says for all.
_OWN = {
    "--roles": "of the job",
    "--nproc-per-node": "nproc",
    "--nproc_per_node": "nproc",
    "--nnodes": "nodes",
    "--max-restarts": "max_restarts",
    "--max_restarts": "max_restarts",
    "--run-id": "of the job",
    "--log-dir": "of the job",
    "--log_dir": "of the job",
    "--resume": "of the job",
    "--role": "the table's name",
    "--node-label": "of the job",
}
#: What each worker is told by its launcher, whatever its role says.
_TOLD = frozenset(
    "RANK LOCAL_RANK GROUP_RANK ROLE_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_WORLD_SIZE ROLE_WORLD_SIZE ROLE_NAME"
    " TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_RUN_ID TORCHELASTIC_ERROR_FILE"
    " TORCHELASTIC_USE_AGENT_STORE MASTER_ADDR MASTER_PORT ROBUST_JOB ROBUST_RUN_DIR ROBUST_SLURM".split()
)
Count = Annotated[int, Meta(ge=1, le=MOST_MEMBERS)]


class _Role(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file."""

    command: str | list[str]
    members: Count | str = 1
    fewest: Count | None = None
    most: Count | None = None
    nproc: Annotated[int, Meta(ge=1, le=1024)] = 1
    nodes: Annotated[int, Meta(ge=1, le=MOST_MEMBERS)] = 1
    restart: Restart = "together"
    depends_on: list[str] = []
    ready: Ready = "started"
    ends: Ends = "role"
    options: list[str] = []
    env: dict[str, str] = {}
    devices: Annotated[int, Meta(ge=0, le=64)] = 0
    cpus: Annotated[int, Meta(ge=0, le=4096)] = 0
    where: str = ""
    max_restarts: Annotated[int, Meta(ge=0, le=1_000_000)] = 3
    scale: Scale = "asked"


_WORDS = {"restart": get_args(Restart), "ready": get_args(Ready), "ends": get_args(Ends), "scale": get_args(Scale)}
"""Keys that have one of a few words."""


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of it."""

    roles: dict[str, dict[str, object]]
    name: str = ""
    queue_items: Annotated[int, Meta(ge=1, le=MOST_ITEMS)] = 1024
    queue_bytes: Annotated[int, Meta(ge=1, le=MOST_BYTES)] = 256 << 20
    lease_s: Annotated[float, Meta(gt=0, le=86400)] = 600.0
    scale_after_s: Annotated[float, Meta(ge=10, le=86400)] = 600.0


def load(path: str) -> RolesSpec:
    """Return what a file says. Raises UserError: it cannot be read, or what it says cannot be."""
    return parse(settings_file.read(path, "--roles"), path)


def parse(text: str, path: str = "roles.toml") -> RolesSpec:
    """Return what a text says; `path` is for messages. Raises UserError."""
    is_json = text.lstrip().startswith("{")  # as `roles.launch` writes it
    content = settings_file.parsed(text, f"--roles {path}", "JSON" if is_json else "TOML")
    try:
        found = msgspec.convert(content, _File)
    except msgspec.ValidationError as error:
        raise UserError(f"--roles {path}: {error}") from error
    if not 1 <= len(found.roles) <= MOST_ROLES:
        raise UserError(f"--roles {path} has {len(found.roles)} roles; 1 to {MOST_ROLES} are possible: [roles.NAME]")
    tables = {name: _table(name, table, path) for name, table in found.roles.items()}
    roles = tuple(_role(name, table, tables, path) for name, table in tables.items())
    _check_order(roles, path)
    name = found.name or path.rsplit("/", 1)[-1].removesuffix(".toml")
    name = "roles" if name.isdecimal() else name  # of a descriptor
    return RolesSpec(
        name=name,
        roles=roles,
        queue_items=found.queue_items,
        queue_bytes=found.queue_bytes,
        lease_s=found.lease_s,
        scale_after_s=found.scale_after_s,
    )


def _table(name: str, found: dict[str, object], path: str) -> _Role:
    """Return a table of the file. Raises UserError, which names the key, its value and what is possible."""
    where = f"--roles {path}: [roles.{name}]"
    for key in found:
        if key not in _Role.__struct_fields__:
            near = difflib.get_close_matches(key, _Role.__struct_fields__, 1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(_Role.__struct_fields__)}"
            raise UserError(f"{where} has no key {key}; {hint}")
    try:
        return msgspec.convert(found, _Role)
    except msgspec.ValidationError as error:
        why, _, at = str(error).partition(" - at `$")
        key = at.strip("`.").partition("[")[0]
        words = _WORDS.get(key)
        if words is not None and isinstance(found.get(key), str):
            raise UserError(f"{where} {key} = {found[key]!r}: it is one of {', '.join(words)}") from error
        value = found.get(key)
        given = (
            "" if value is None else f" {key}:" if isinstance(value, dict) else f" {key} = {value!r}:"
        )  # env may be secret
        raise UserError(f"{where}{given} {why[:1].lower()}{why[1:]}") from error


def _check_env(table: _Role, where: str) -> None:
    for variable in table.env:
        if not _VARIABLE.fullmatch(variable):
            raise UserError(f"{where} env has {variable[:80]!r}, which is no name of a variable")
        if variable in _TOLD:
            raise UserError(f"{where} env has {variable}, which each worker is told by robust-run: leave it out")
    if table.devices and "CUDA_VISIBLE_DEVICES" in table.env:
        raise UserError(
            f"{where} env has CUDA_VISIBLE_DEVICES, which devices = {table.devices} sets: leave one of them out"
        )


def _role(name: str, table: _Role, roles: Mapping[str, _Role], path: str) -> RoleSpec:
    where = f"--roles {path}: [roles.{name}]"
    if not _NAME.fullmatch(name):
        raise UserError(f"{where} is no name: small letters, digits, - and _, at most 32, a letter first")
    command = tuple(table.command) if isinstance(table.command, list) else _split(table.command, where)
    if not command or not all(command):
        raise UserError(f"{where} command is empty; write what you would type after robust-run")
    fewest, members, most = _members(table, where)
    if table.restart != "alone" and (members, most) != (1, 1):
        raise UserError(
            f"{where} has {most} members, and restart = {table.restart!r} means one world: write nproc = {most} for so many"
            ' ranks in it, or restart = "alone" for so many worlds'
        )
    for other in table.depends_on:
        if other not in roles or other == name:
            near = difflib.get_close_matches(other, [each for each in roles if each != name], 1)
            raise UserError(
                f"{where} depends_on {other!r}, which is no other role" + (f"; did you mean {near[0]}?" if near else "")
            )
    for option in table.options:
        own = _OWN.get(option.partition("=")[0])
        if own is not None:
            raise UserError(f"{where} options has {option}: leave it out, that is said elsewhere ({own})")
    if table.where and not is_label(table.where):
        raise UserError(f"{where} where = {table.where[:80]!r} is no label: letters, digits, dots, - and _, at most 63")
    if any("\0" in word for word in (*command, *table.options, *table.env.values())):
        raise UserError(f"{where} has a zero byte in its command, options or env; no program can be given one")
    _check_env(table, where)
    return RoleSpec(
        name=name,
        command=command,
        members=members,
        fewest=fewest,
        most=most,
        nproc=table.nproc,
        nodes=table.nodes,
        restart=table.restart,
        depends_on=tuple(table.depends_on),
        ready=table.ready,
        ends=table.ends,
        options=tuple(table.options),
        env=tuple(table.env.items()),
        devices=table.devices,
        cpus=table.cpus,
        where=table.where,
        max_restarts=table.max_restarts,
        scale=table.scale,
    )


def _split(command: str, where: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command))
    except ValueError as error:
        raise UserError(f"{where} command {command[:80]!r}: {error}; a list of words needs no quotes") from error


def _members(table: _Role, where: str) -> tuple[int, int, int]:
    """Return the fewest members, those to begin with, and the most."""
    members, fewest, most = table.members, table.fewest, table.most
    if isinstance(members, str):
        found = _RANGE.fullmatch(members)
        if found is None or fewest is not None or most is not None:
            raise UserError(f'{where} members = {members!r}: write a number, or "2..8" without fewest and most')
        fewest, most = int(found[1]), int(found[2])
        members = most
    fewest = members if fewest is None else fewest
    most = members if most is None else most
    if not 1 <= fewest <= members <= most <= MOST_MEMBERS:
        raise UserError(
            f"{where} has fewest {fewest}, members {members}, most {most}: each may be at most the next,"
            f" and {MOST_MEMBERS} is the most"
        )
    if table.scale == "demand" and fewest == most:
        raise UserError(f'{where} scale = "demand" needs room to scale in: members = "2..8", not {members}')
    return fewest, members, most


def _check_order(roles: tuple[RoleSpec, ...], path: str) -> None:
    """Raise UserError where roles wait for each other in a circle: none of them would ever start."""
    waits = {role.name: set(role.depends_on) for role in roles}
    while waits:
        free = [name for name, on in waits.items() if not on]
        if not free:
            circle = ", ".join(sorted(waits))
            raise UserError(f"--roles {path}: {circle} wait for each other (depends_on): none of them would ever start")
        for name in free:
            del waits[name]
        for on in waits.values():
            on.difference_update(free)
