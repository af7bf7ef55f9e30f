"""Identity of a worker as data, and which workers a fork can stand in for. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a forked process must take on to be one particular worker."""

    argv: tuple[str, ...]
    """What follows the interpreter and its `-u`: `("train.py", "--lr", "1")`, `("-m", "pkg.mod")`, `("-c", code, ...)`,
    `("--", "-dash.py")`."""
    env: dict[str, str]
    """Complete, and just as a worker that is started from nothing gets it: armed for the tracer, if it is to be counted."""
    cwd: str
    """Absolute."""
    umask: int
    cpus: tuple[int, ...] = ()
    """CPUs it may run on; empty: those of the agent."""
    agent_pid: int
    """Whose priority, scheduling policy and OOM score it has."""


def interpreter_arguments(argv: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Split a worker's command line `[python, "-u", ...]` into the interpreter's flags and what follows them.

    None if a fork cannot stand in for it: the interpreter would get another flag than `-u`, or read its standard input.
    """
    words = argv[1:]
    if words[:1] != ("-u",):
        return None
    rest = words[1:]
    if not rest or rest[0] in ("", "-"):
        return None
    if rest[0] == "--":
        return (("-u",), rest) if len(rest) > 1 and rest[1] not in ("", "-") else None
    if rest[0] in ("-m", "-c"):
        return (("-u",), rest) if len(rest) > 1 else None
    return None if rest[0].startswith("-") else (("-u",), rest)


#: Variables that nothing reads before the user's program runs, so that each worker may have its own. Any other variable
#: may have been read while torch was imported, and is then not read again.
FREE_VARIABLES = frozenset(
    "RANK LOCAL_RANK GROUP_RANK ROLE_RANK ROLE_NAME WORLD_SIZE LOCAL_WORLD_SIZE GROUP_WORLD_SIZE ROLE_WORLD_SIZE "
    "MASTER_ADDR MASTER_PORT USE_LIBUV TORCH_DIST_INIT_BARRIER TORCH_GLOO_LAZY_INIT "
    "CUDA_VISIBLE_DEVICES PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF "
    # Read at import, but what was read can be changed afterwards, and is.
    "OMP_NUM_THREADS MKL_NUM_THREADS TMPDIR TEMP TMP TZ PWD OLDPWD".split()
)
FREE_PREFIXES = ("TORCHELASTIC_", "ROBUST_", "NCCL_", "TORCH_NCCL_", "TORCH_FR_", "GLOO_")


def frozen_changes(at_start: Mapping[str, str], wanted: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables whose values differ although the imports may have acted on the first, sorted."""
    before, after = unarmed(at_start), unarmed(wanted)
    return tuple(
        sorted(
            name
            for name in {*before, *after}
            if before.get(name) != after.get(name) and name not in FREE_VARIABLES and not name.startswith(FREE_PREFIXES)
        )
    )


def unarmed(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment as the user's program sees it: without what `arm_environment` adds."""
    result = dict(env)
    noted = result.pop("ROBUST_ARM_PYTHONPATH", None)
    result.pop("ROBUST_STEPS_FILE", None)
    if noted:  # "=" and the value; only "" where there was none
        result["PYTHONPATH"] = noted[1:]
    elif noted is not None:
        result.pop("PYTHONPATH", None)
    return result


def identity_of(
    argv: tuple[str, ...], env: Mapping[str, str], umask: int, cpus: frozenset[int], *, cwd: str, agent_pid: int
) -> Identity:
    """Return what a standby worker is to become. `argv`: of a Python, options first, see `interpreter_arguments`."""
    split = interpreter_arguments(argv)
    assert split is not None
    return Identity(argv=split[1], env=dict(env), cwd=cwd, umask=umask, cpus=tuple(sorted(cpus)), agent_pid=agent_pid)
