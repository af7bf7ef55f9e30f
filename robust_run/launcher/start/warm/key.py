"""Compatibility key of per-user warm processes and jobs: as data, and as sentences where it does not. Pure.

A job can be forked from a warm process only if all that importing read is the same for both: the interpreter, the files that
were imported, and the environment variables that are read at import. What a worker reads later does not matter here. Where
the two run (limits, namespaces, CPUs) is the business of `surroundings`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from robust_run.launcher.agent.warm.identity import FREE_PREFIXES, FREE_VARIABLES, unarmed

#: Version of the announcement and of the messages. Processes of different ones do not talk to each other.
PROTOCOL = 1

#: Beginnings of names that Python, the loader, the C library, torch or common packages around it read when imported.
READ_AT_IMPORT = tuple(
    "PYTHON LD_ GLIBC_TUNABLES MALLOC_ LANG LC_ HOME XDG_CACHE_HOME XDG_CONFIG_HOME CXX "
    "OMP_ GOMP_ KMP_ MKL_ OPENBLAS_ GOTO_ BLIS_ VECLIB_ DNNL_ ONEDNN_ MKLDNN_ NPY_ NUMPY_ NUMBA_ "
    "TORCH PYTORCH_ KINETO ATEN_ TRITON_ HF_ HUGGINGFACE_ TRANSFORMERS_ ACCELERATE_ DATASETS_".split()
)
#: Free from worker to worker because a fork can catch up with them, but only where they were set at the import, too.
COUNTED_AT_IMPORT = frozenset({"OMP_NUM_THREADS", "MKL_NUM_THREADS"})
#: Ends of names whose values are secrets. They are read when they are used, and must not stand in a file.
SECRETS = ("TOKEN", "SECRET", "PASSWORD", "_KEY")
#: Variables of the launcher, read by nobody at import.
LAUNCHERS = frozenset({"TORCH_ELASTIC_SHUTDOWN_TIMEOUT"})

#: Torch's compiler puts its own default here as it is imported, so whoever has imported it hands it to the jobs it starts.
COMPILER_CACHE = "TORCHINDUCTOR_CACHE_DIR"

LONGEST_VALUE = 60


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """What the workers of a job are before their program begins, or what a warm process is."""

    executable: str
    """As it is typed: it decides about the virtual environment."""
    real_executable: str
    python: str
    """`sys.version`: an interpreter may be replaced in its place."""
    variables: dict[str, str]
    """Those read at import."""
    folder: str = ""
    """The working directory, where PYTHONPATH depends on it."""
    preload: tuple[str, ...]
    """Modules that a job wants imported, or that are."""


class Announcement(msgspec.Struct, frozen=True, kw_only=True):
    """What a warm process writes about itself for those who look for one."""

    protocol: int
    version: str
    """Of robust-run."""
    pid: int
    fingerprint: Fingerprint
    wanted: tuple[str, ...]
    """Modules asked for; those that could not be imported are missing from the fingerprint."""
    started_unix_s: float
    idle_limit_s: float | None
    """None: no limit."""
    folders: dict[str, int]
    """Where packages are installed, with their times of change in nanoseconds."""
    files: dict[str, tuple[int, int]]
    """What was imported from elsewhere, with its time of change in nanoseconds and its size in bytes."""


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The part of an announcement that every version can read."""

    protocol: int
    version: str
    pid: int


def variables_read_at_import(
    env: Mapping[str, str], omp_threads_defaulted: bool, compiler_cache: str = ""
) -> dict[str, str]:
    """Return the variables of a worker that its imports read. `env` is the launcher's.

    `compiler_cache`: the folder that torch's compiler takes where the environment names none.
    """
    seen = unarmed(env)
    if compiler_cache and seen.get(COMPILER_CACHE) == compiler_cache:
        del seen[COMPILER_CACHE]
    if omp_threads_defaulted:
        seen.setdefault("OMP_NUM_THREADS", "1")
    return {name: value for name, value in sorted(seen.items()) if _is_read(name)}


def _is_read(name: str) -> bool:
    if name in COUNTED_AT_IMPORT:
        return True
    if name in FREE_VARIABLES or name in LAUNCHERS or name.startswith(FREE_PREFIXES) or name.endswith(SECRETS):
        return False
    return name.startswith(READ_AT_IMPORT)


def name_of(fingerprint: Fingerprint) -> str:
    """Return the letters and digits that two warm processes have in common only if one of them is superfluous."""
    import hashlib

    fields = msgspec.to_builtins(fingerprint)
    fields["variables"] = sorted(fields["variables"].items())
    return hashlib.sha256(msgspec.json.encode(fields)).hexdigest()[:16]


def difference(theirs: Fingerprint, mine: Fingerprint) -> str:
    """Return the first thing in which a warm process is not what the workers of a job must be; empty if there is none."""
    for what, there, here in (
        ("Python", theirs.executable, mine.executable),
        ("Python", theirs.real_executable, mine.real_executable),
        ("Python", theirs.python, mine.python),
        ("folder of a relative PYTHONPATH", theirs.folder, mine.folder),
    ):
        if there != here:
            return f"its {what} is {_short(there)}, this job's is {_short(here)}"
    for name in sorted({*theirs.variables, *mine.variables}):
        if theirs.variables.get(name) != mine.variables.get(name):
            return f"{name} is {_value(theirs, name)} there and {_value(mine, name)} here{_hint(name, mine)}"
    if not mine.preload:
        return "the job asks for no preloaded modules"
    if missing := [module for module in mine.preload if module not in theirs.preload]:
        return f"it has not imported {', '.join(missing)}"
    return ""


def _value(of: Fingerprint, name: str) -> str:
    value = of.variables.get(name)
    return "unset" if value is None else _short(value)


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return repr(flat if len(flat) <= LONGEST_VALUE else f"{flat[:LONGEST_VALUE]}...")


def _hint(name: str, mine: Fingerprint) -> str:
    if name != "OMP_NUM_THREADS":
        return ""
    if name in mine.variables:
        return f" (robust warm start with {name}={mine.variables[name]} makes one that fits)"
    return " (robust warm start --one-worker makes one for jobs of one worker)"


def closest(theirs: Sequence[Announcement], mine: Fingerprint) -> tuple[Announcement | None, str]:
    """Return the warm process with the fewest modules that fits, or None and why the first one does not."""
    reasons = [difference(each.fingerprint, mine) for each in theirs]
    fitting = [each for each, reason in zip(theirs, reasons, strict=True) if not reason]
    if fitting:
        return min(fitting, key=lambda each: (len(each.fingerprint.preload), each.pid)), ""
    return None, f"the warm process (pid {theirs[0].pid}) was not used: {reasons[0]}" if theirs else ""
