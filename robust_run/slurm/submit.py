"""`robust slurm submit`: from its command line to a job in the queue and the files beside its log."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

import msgspec

from robust_run.errors import PlatformError, UserError
from robust_run.launcher.start.options.command import Answered, parse
from robust_run.launcher.start.options.options import Options
from robust_run.launcher.start.options.rendezvous import parse_nnodes
from robust_run.slurm.rules.role_needs import RoleNeed, component_of, nodes_for
from robust_run.slurm.rules.sbatch_options import Option, has, last_value, read_options
from robust_run.slurm.rules.script import JobWanted, Script
from robust_run.slurm.tools import Tools
from robust_run.version import __version__

FOLDER = "robust-runs"
SBATCH_S = 120.0
"""A slurmctld that is overloaded answers late; one that takes longer is down."""
OVERRULING = frozenset(
    {"SBATCH_OPEN_MODE", "SBATCH_NO_REQUEUE", "SBATCH_REQUEUE", "SBATCH_NO_KILL", "SBATCH_OUTPUT", "SBATCH_WAIT"}
)
"""Variables that sbatch believes more than the script."""
INPUT = {"time": "timelimit", "nodes": "nnodes", "cluster-constraint": "cluster_constraint"}
"""Input variables of sbatch that are not called as the option."""
KEPT = frozenset({"SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT"})


RolesOf = Callable[[str], tuple[str, tuple[RoleNeed, ...]]]
"""Reads a file of roles: what the job is called, and what its roles need. Raises UserError."""


class Submitted(msgspec.Struct, frozen=True, kw_only=True):
    """A job in the queue."""

    job: str
    script: str
    """Where its batch script is kept."""
    log: str
    """Where its output goes, as sbatch was told: `%j` in an option of the user's stays."""


Standbys = Callable[[int, str], tuple[int, str]]
"""Returns how many standbys `--standby auto` is for so many nodes, with this folder of runs, and why."""


def plan(
    options: Sequence[str],
    step_options: Sequence[str],
    command: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    standbys: Standbys | None = None,
    roles: RolesOf | None = None,
) -> JobWanted:
    """Return the job that a command line asks for. Raises UserError for one that makes no sense.

    `standbys`: None: `--standby auto` asks for no node more. `roles`: reads a file of roles.
    """
    if not command:
        raise UserError(
            "nothing to run: robust slurm submit [sbatch options] -- robust-run [options] SCRIPT [options of SCRIPT]"
        )
    words = _words_of_robust_run(command)
    try:
        ours = parse(words, {})
    except Answered:
        raise UserError("robust-run --help and --version start no job; call them here") from None
    read, *components = (read_options(words) for words in _components(options))
    if components and ours.roles is None:
        raise UserError("components of a job (:) are for --roles FILE; all nodes of one training are alike")
    if has(read, "wait"):
        raise UserError("--wait: robust slurm submit returns when the job is queued; squeue shows how it goes")
    folder = os.path.join(cwd, last_value(read, "chdir") or "")
    log_dir = os.path.normpath(os.path.join(folder, ours.log_dir or env.get("ROBUST_LOG_DIR") or FOLDER))
    if log_dir == os.devnull:
        log_dir = os.path.normpath(folder)
    nodes, standby_why = _nodes(ours), ""
    # Whoever says how many nodes there are has counted, and is not to be refused for what a folder holds today.
    if standbys is not None and nodes is not None and ours.standby.strip() == "auto" and not has(read, "nodes"):
        more, standby_why = standbys(nodes, log_dir)
        nodes += more
    name = _name(ours)
    if ours.roles is not None and roles is not None:
        name, needs = roles(os.path.join(folder, ours.roles))
        read, *components = with_nodes(needs, (read, *components), parse_labels(ours.node_label))
    return JobWanted(
        options=read,
        components=tuple(components),
        step_options=tuple(step_options),
        command=tuple(command),
        nodes=nodes,
        standby_why=standby_why,
        name=name,
        requeues=ours.requeue != "never",
        log_dir=log_dir,
        version=__version__,
    )


def submit(wanted: JobWanted, script: Script, env: Mapping[str, str], tools: Tools) -> Submitted:
    """Keep the script and put the job into the queue. Raises PlatformError if Slurm does not take it."""
    if not tools.find("sbatch"):
        raise PlatformError("sbatch is not in PATH: submit on a login node; --dry-run writes the script without it")
    program = wanted.command[0]
    if not tools.find(program):
        raise UserError(f"{program!r} is not found here, so the nodes will not find it either; write its whole path")
    draft = _write(wanted.log_dir, script.text)
    ran = tools.run(["sbatch", "--parsable", draft], _clean(env, wanted.options), SBATCH_S)
    job = ran.out.strip().partition(";")[0]
    if ran.code != 0 or not job.isdecimal():
        os.unlink(draft)
        raise PlatformError(f"sbatch did not take the job: {ran.sentence or f'it ended with {ran.code}'}")
    kept = os.path.join(wanted.log_dir, f"slurm-{job}.sh")
    try:
        os.replace(draft, kept)
    except OSError:
        kept = draft  # a folder is called so; the job is in the queue all the same
    pattern = "slurm-%A_%a.out" if has(wanted.options, "array") else f"slurm-{job}.out"
    return Submitted(
        job=job, script=kept, log=last_value(wanted.options, "output") or os.path.join(wanted.log_dir, pattern)
    )


def with_nodes(
    roles: Sequence[RoleNeed], components: Sequence[tuple[Option, ...]], labels: Sequence[str]
) -> list[tuple[Option, ...]]:
    """Return each component's options with its number of nodes, where they have none. Raises UserError where one is too small."""
    all_said = [component_of(options) for options in components]
    found = []
    for place, nodes in enumerate(nodes_for(roles, all_said, labels)):
        options, said = components[place], all_said[place]
        if said.nodes is not None and said.nodes < nodes:
            which = f"component {place}: " if len(components) > 1 else ""
            raise UserError(f"{which}--nodes={said.nodes}: the roles need {nodes} nodes there; write -N {nodes}")
        found.append(options if has(options, "nodes") else (*options, Option("nodes", str(nodes))))
    return found


def parse_labels(text: str | None) -> tuple[str, ...]:
    """Return the labels of --node-label."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _components(words: Sequence[str]) -> list[list[str]]:
    """Split at words that are a colon, as sbatch does."""
    found: list[list[str]] = [[]]
    for word in words:
        if word == ":":
            found.append([])
        else:
            found[-1].append(word)
    return found


def _words_of_robust_run(command: Sequence[str]) -> list[str]:
    """Return the options of robust-run in a command. Raises UserError for one that is none."""
    base = os.path.basename(command[0])
    if base == "robust-run":
        return list(command[1:])
    if base.startswith("python") and "robust_run" in command[:8]:
        place = list(command).index("robust_run")
        if command[place - 1] == "-m":
            return list(command[place + 1 :])
    raise UserError(f"{command[0]!r} is not robust-run: after -- comes robust-run, its options and the training script")


def _nodes(options: Options) -> int | None:
    """Return how many nodes were asked for, standbys included; None if the job takes those that it is given."""
    standby = int(options.standby) if options.standby.isdecimal() and len(options.standby) < 6 else 0
    if "nnodes" not in options.given:
        return None
    return parse_nnodes(options.nnodes)[1] + standby


def _name(options: Options) -> str:
    name = os.path.basename(options.training_script).rpartition(".")[0] or os.path.basename(options.training_script)
    return "".join(each if each.isalnum() or each in "-_." else "-" for each in name)[:64] or "robust-run"


def _write(folder: str, text: str) -> str:
    """Write a script under a name of its own, for its owner to read and change."""
    import tempfile

    try:
        os.makedirs(folder, exist_ok=True)
        descriptor, path = tempfile.mkstemp(prefix=".slurm-", suffix=".sh", dir=folder)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
            os.fchmod(descriptor, 0o700)
            file.write(text)
    except OSError as error:
        raise PlatformError(f"{folder!r}: {error.strerror}; choose another --log-dir") from None
    return path


def _clean(env: Mapping[str, str], options: Sequence[Option]) -> dict[str, str]:
    """Return the environment without what overrules the script and typed options, and what a job we are in would hand on."""
    typed = {f"SBATCH_{INPUT.get(each.name, each.name).replace('-', '_').upper()}" for each in options}
    return {
        name: value
        for name, value in env.items()
        if name not in OVERRULING | typed
        and (name in KEPT or not name.startswith(("SLURM_", "SLURMD_", "SRUN_", "PMI")))
    }
