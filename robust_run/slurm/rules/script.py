"""The batch script of a job: from sbatch options and a robust-run command line to its text. Pure.

What is in it and why (measured with Slurm 22.05, see docs/slurm-submit.md):

- `--no-kill` for the job and for the step: a step does not inherit it, and without it the loss of a node ends all of them.
- `-K0 -W0`: a site's KillOnBadExit or WaitTime would end the step when the task of one node ends.
- `--requeue` and `--open-mode=append`: the job may start again, and what it said before is kept.
- options on CPUs and GPUs are given to srun again: since 22.05 it no longer takes `--cpus-per-task` from the job.
- `--cpu-bind=none`, `--gpu-bind=none`: the one task of a node starts the workers of all its GPUs.
- `ROBUST_SLURM_EXIT_FILE`: srun fails if one of its tasks was lost, and the job with it, though another node took over.
- `trap`: the warning signals of a job reach this shell too, and would end it, and with it the job.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import msgspec

from robust_run.errors import UserError
from robust_run.slurm.rules.role_needs import component_of, fragile
from robust_run.slurm.rules.sbatch_options import Option, has, last_value
from robust_run.slurm.rules.srun_options import check_step_options

TRAPPED = "HUP INT TERM USR1 USR2"
REPEATED = ("cpus-per-task", "cpus-per-gpu", "gpus", "gpus-per-node", "gpus-per-task", "gres", "tres-per-task")
"""Options of sbatch that srun is given again."""
GPUS = ("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "cpus-per-gpu", "mem-per-gpu")
CPUS = (
    "cpus-per-task",
    "cpus-per-gpu",
    "exclusive",
    "mincpus",
    "core-spec",
    "extra-node-info",
    "overcommit",
    "cores-per-socket",
)
TASKS = ("ntasks-per-node", "ntasks-per-gpu", "ntasks-per-socket", "ntasks-per-core")
_WIDTH = 110


class JobWanted(msgspec.Struct, frozen=True, kw_only=True):
    """A job to be submitted."""

    options: tuple[Option, ...]
    """For sbatch, as typed."""
    components: tuple[tuple[Option, ...], ...] = ()
    """The same for the second and later components of a heterogeneous job."""
    step_options: tuple[str, ...] = ()
    """More for srun, one word each: `--container-image=...`."""
    command: tuple[str, ...]
    """`robust-run ... train.py ...`."""
    nodes: int | None = None
    """How many nodes the command line of robust-run needs, standbys included; None: it takes all there are."""
    standby_why: str = ""
    """Why there are so many standbys, where nobody said how many."""
    name: str = "robust-run"
    requeues: bool = True
    """robust-run has the job go back into the queue where that helps (`--requeue`)."""
    log_dir: str
    """Absolute; standard output goes there unless an option says otherwise."""
    version: str


class Script(msgspec.Struct, frozen=True):
    """A batch script, and what its author should know."""

    text: str
    notes: tuple[str, ...] = ()


def make_script(wanted: JobWanted) -> Script:
    """Return the script. Raises UserError, one line with what to write instead, for options that such a job cannot have."""
    _check(wanted)
    check_step_options(wanted.step_options)
    ours = _completed(wanted)
    lines = [
        "#!/bin/bash",
        f"# Written by `robust slurm submit` (robust-run {wanted.version}). It can be changed and submitted with sbatch.",
        *(f"#SBATCH {_quoted_for_sbatch(option)}" for option in ours),
        *(line for component in wanted.components for line in _component(component)),
        "",
        "# robust-run gets the job's signals itself; this shell only outlives them.",
        f"trap : {TRAPPED}",
        "",
        "# One task per node, which starts the workers there. It goes on when a node, or its task, is lost.",
        "unset ${!SLURM_CPU_BIND@} ${!SLURM_MEM_BIND@}",
        f"export ROBUST_SLURM_EXIT_FILE={shlex.quote(wanted.log_dir)}/slurm-$SLURM_JOB_ID.exit",
        ': > "$ROBUST_SLURM_EXIT_FILE"',
        "code=0",
        *_step(wanted),
        "",
        "# srun fails if a node was lost, also if another took its place: robust-run's own word, if there is one, comes first.",
        'said=$(cat "$ROBUST_SLURM_EXIT_FILE" 2>/dev/null || true); rm -f "$ROBUST_SLURM_EXIT_FILE"',
        *_early(wanted),
        'exit "${said:-$code}"',
    ]
    nodes = [component_of(options).nodes for options in (wanted.options, *wanted.components)]
    notes = (*_notes(wanted.options), *filter(None, [fragile(nodes)]))
    return Script("\n".join(lines) + "\n", notes)


def _early(wanted: JobWanted) -> list[str]:
    """Return the lines for a step that had to make room before Python ran in it: Slurm requeues only a job that is not over."""
    if not wanted.requeues or has(wanted.options, "no-requeue"):
        return []
    return [
        "job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}  # the number alone may mean the whole array",
        "job=${job:-$SLURM_JOB_ID}",
        "if [ $code != 0 ] && [ -z \"$said\" ] && scontrol show job $job | grep -q ' PreemptTime=[0-9]'; then",
        "    scontrol requeue $job  # it was preempted before robust-run was there",
        "fi",
    ]


def _completed(wanted: JobWanted) -> tuple[Option, ...]:
    """Return the options of the job: those that were typed, without what we say ourselves, and ours."""
    typed = wanted.options
    added = []
    if not has(typed, "job-name"):
        added.append(Option("job-name", wanted.name))
    if not has(typed, "nodes") and wanted.nodes is not None:
        added.append(Option("nodes", str(wanted.nodes)))
    if not has(typed, "output"):
        number = "%A_%a" if has(typed, "array") else "%j"
        added.append(Option("output", f"{wanted.log_dir.replace('%', '%%')}/slurm-{number}.out"))
    if not has(typed, "no-requeue"):
        added.append(Option("requeue"))
    dropped = ("ntasks", "ntasks-per-node", "requeue", "no-kill", "open-mode", "parsable")
    kept = [option for option in typed if option.name not in dropped]
    ours = (Option("ntasks-per-node", "1"), Option("no-kill"), Option("open-mode", "append"))
    return (*kept, *added, *ours)


def _component(options: Sequence[Option]) -> list[str]:
    """Return the lines of another component; what is not said there is as in the first."""
    kept = [option for option in options if option.name not in ("ntasks", "ntasks-per-node", "no-kill")]
    ours = (*kept, Option("ntasks-per-node", "1"), Option("no-kill"))
    return ["#SBATCH hetjob", *(f"#SBATCH {_quoted_for_sbatch(option)}" for option in ours)]


def _step(wanted: JobWanted) -> list[str]:
    """Return the lines of srun and its command: one step, over all components."""
    command = "    " + " ".join(shlex.quote(word) for word in wanted.command)
    if not wanted.components:
        return [
            *_wrapped(["srun", *_step_words(wanted, wanted.options, "$SLURM_JOB_NUM_NODES")]),
            f"{command} || code=$?",
        ]
    lines = []
    for group, options in enumerate((wanted.options, *wanted.components)):
        words = [f"--het-group={group}", *_step_words(wanted, options, f"$SLURM_JOB_NUM_NODES_HET_GROUP_{group}")]
        lines += [*_wrapped(["srun" if not group else "   :", *words]), f"{command} \\"]
    return [*lines[:-1], f"{command} || code=$?"]


def _step_words(wanted: JobWanted, options: Sequence[Option], nodes: str) -> list[str]:
    words = [f'--nodes="{nodes}"', f'--ntasks="{nodes}"', "--ntasks-per-node=1"]
    words += ["--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--mpi=none", "--cpu-bind=none", "--export=ALL"]
    repeated = [option for option in options if option.name in REPEATED and option.value is not None]
    words += [shlex.quote(str(option)) for option in repeated]
    if _asks_for_gpus(options):
        words.append("--gpu-bind=none")
    return words + [shlex.quote(word) for word in wanted.step_options]


def _wrapped(words: Sequence[str]) -> list[str]:
    lines, line = [], ""
    for word in words:
        if line and len(line) + len(word) + 3 > _WIDTH:
            lines.append(f"{line} \\")
            line = f"    {word}"
        else:
            line = f"{line} {word}" if line else word
    return [*lines, f"{line} \\"]


def _quoted_for_sbatch(option: Option) -> str:
    """Return an option as sbatch reads it in a script: a backslash takes the meaning of the next character away, # begins a
    comment, and so on; shells' other characters mean nothing to it."""
    text = str(option)
    if option.value is None or all(char.isalnum() or char in "-_=.,:/%@+[]*&|!^~" for char in text):
        return text
    value = option.value.replace("\\", "\\\\").replace('"', '\\"')
    return f'--{option.name}="{value}"'


def _asks_for_gpus(options: Sequence[Option]) -> bool:
    return has(options, *GPUS) or "gpu" in (last_value(options, "gres") or "")


# --- what cannot be --------------------------------------------------------------------------------------------------

_REFUSED = {
    "wrap": "the script is written from what follows --; leave it out",
    "help": "sbatch --help lists the options of sbatch",
    "usage": "sbatch --usage lists the options of sbatch",
    "version": "sbatch --version says it",
    "batch": "the first node runs the script whatever its features are; leave it out",
    "ignore-pbs": "there are no #PBS lines; leave it out",
}  # fmt: skip
_OF_SRUN = frozenset(
    "mpi cpu-bind label kill-on-bad-exit multi-prog unbuffered overlap exact task-epilog task-prolog pty bcast het-group".split()
)


def _check(wanted: JobWanted) -> None:
    for component in wanted.components:
        _check_options(component)
    _check_options(wanted.options)
    if wanted.components and ":" in wanted.command:
        raise UserError("a word : of its own in the command would begin another component's for srun; leave it out")
    nodes = last_value(wanted.options, "nodes")
    if wanted.nodes is not None and nodes is not None and nodes.isdecimal() and int(nodes) < wanted.nodes:
        raise UserError(
            f"--nodes={nodes}: robust-run's --nnodes and --standby are {wanted.nodes} nodes; write -N {wanted.nodes}"
        )


def _check_options(options: Sequence[Option]) -> None:
    for option in options:
        if option.name in _REFUSED:
            raise UserError(f"--{option.name}: {_REFUSED[option.name]}")
        if option.name in _OF_SRUN or option.name.startswith(("container-", "no-container-")):
            raise UserError(f"--{option.name} is an option of srun: write --srun={shlex.quote(str(option))}")
    _check_tasks(options)
    if (last_value(options, "no-kill") or "") == "off":
        raise UserError("--no-kill=off: the loss of a node would end the whole job; leave it out")
    if (last_value(options, "open-mode") or "append") != "append":
        raise UserError("--open-mode=truncate: after a requeue, what the job said before would be lost; leave it out")


def _check_tasks(options: Sequence[Option]) -> None:
    for name in TASKS:
        value = last_value(options, name)
        if value is not None and value != "1":
            raise UserError(
                f"--{name}={value}: one robust-run per node starts all workers of the node; leave it out and write "
                f"robust-run --nproc-per-node {value if name == 'ntasks-per-node' and value.isdecimal() else 'N'}"
            )
    tasks, nodes = last_value(options, "ntasks"), last_value(options, "nodes")
    if tasks is not None and tasks != (nodes or "1"):
        raise UserError(
            f"--ntasks={tasks}: one robust-run per node starts all workers of the node; write -N NODES instead, and "
            "robust-run --nproc-per-node N"
        )


def _notes(options: Sequence[Option]) -> tuple[str, ...]:
    notes = []
    if has(options, "no-requeue"):
        notes.append("--no-requeue: when its time is over, or too few nodes are left, the job ends for good")
    signal = last_value(options, "signal")
    if signal is not None and signal.upper().startswith(("B:", "RB:", "BR:")):
        notes.append(
            f"--signal={signal} reaches only this script, which ignores it; robust-run sees the time limit by itself and warns "
            "the training --warn-before seconds ahead"
        )
    elif signal is not None:
        notes.append(
            f"--signal={signal} reaches every process of the training, and ends those that do not expect it (data loaders); "
            "robust-run sees the time limit by itself: --warn-before SECONDS"
        )
    if not has(options, *CPUS):
        notes.append(
            "no --cpus-per-task and no --exclusive: Slurm may give one CPU per node; write -c N or --exclusive"
        )
    return tuple(notes)
