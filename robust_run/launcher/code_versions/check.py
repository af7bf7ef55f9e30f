"""Whether a version of code may be taken: its Python files compile, and a command of the user's passes. Before it is staged.

Compiling executes nothing of the code. It is done by the Python that will run it, since syntax differs between versions.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import msgspec

from robust_run.errors import UserError
from robust_run.launcher.code_versions.errors import CodeError

COMPILE_S = 60.0
#: Of a command's output that is quoted when it fails.
QUOTED_LINES = 8
#: Errors that are named.
NAMED = 3

_COMPILE = r"""
import json, sys, warnings
warnings.simplefilter("ignore")
errors = []
for path in json.load(sys.stdin):
    try:
        with open(path, "rb") as file:
            compile(file.read(), path, "exec", dont_inherit=True)
    except SyntaxError as error:
        errors.append([path, error.lineno or 0, type(error).__name__ + ": " + str(error.msg)])
    except (ValueError, RecursionError, MemoryError, OSError) as error:
        errors.append([path, 0, type(error).__name__ + ": " + str(error)])
json.dump(errors, sys.stdout)
"""


def compile_all(folder: str, paths: Sequence[str], python: str) -> None:
    """Check the syntax of Python files below a folder. Raises CodeError naming the first that are wrong."""
    if not paths:
        return
    if os.path.realpath(python) == os.path.realpath(sys.executable):
        _refuse(folder, list(_errors_here(folder, paths)))
        return
    request = msgspec.json.encode([os.path.join(folder, path) for path in paths])
    try:
        done = subprocess.run(
            [python, "-I", "-S", "-c", _COMPILE],
            input=request,
            capture_output=True,
            timeout=COMPILE_S,
            check=False,
            cwd="/",
        )
        errors = msgspec.json.decode(done.stdout, type=list[tuple[str, int, str]])
    except subprocess.TimeoutExpired as error:
        raise CodeError(f"compiling {len(paths)} files took longer than {COMPILE_S:g} s") from error
    except OSError as error:
        raise UserError(f"cannot run {python!r}, which checks the syntax: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise CodeError(f"{python!r} could not check the syntax: {said[-1] if said else done.returncode}") from error
    _refuse(folder, errors)


def _errors_here(folder: str, paths: Sequence[str]) -> Iterator[tuple[str, int, str]]:
    """Compile in this process: it is the same Python, and starting another takes longer than all the rest."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for path in (os.path.join(folder, each) for each in paths):
            try:
                with open(path, "rb") as file:
                    compile(file.read(), path, "exec", dont_inherit=True)
            except SyntaxError as error:
                yield path, error.lineno or 0, f"{type(error).__name__}: {error.msg}"
            except (ValueError, RecursionError, MemoryError, OSError) as error:
                yield path, 0, f"{type(error).__name__}: {error}"


def _refuse(folder: str, errors: Sequence[tuple[str, int, str]]) -> None:
    if errors:
        named = [f"{os.path.relpath(path, folder)}:{line}: {text}" for path, line, text in errors[:NAMED]]
        more = f" and {len(errors) - NAMED} more" if len(errors) > NAMED else ""
        raise CodeError(f"the code does not compile: {'; '.join(named)}{more}; nothing was changed")


def smoke(command: str, folder: str, limit_s: float, env: Mapping[str, str]) -> None:
    """Run a command in the folder of a version; no shell. Raises CodeError unless it ends with 0 in time.

    Whatever it has started in its process group ends with it.
    """
    try:
        argv = shlex.split(command)
    except ValueError as error:
        raise UserError(f"--check {command!r} is no command: {error}") from error
    if not argv:
        raise UserError("--check is empty; give a command, or leave it out")
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                argv,
                cwd=folder,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        except OSError as error:
            raise UserError(f"--check {command!r} cannot be run: {error.strerror}") from error
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        lines = output.read()[-8192:].decode(errors="replace").rstrip().splitlines()
    if code == 0:
        return
    how = f"did not end within {limit_s:g} s" if code is None else f"ended with {code}"
    said = " | ".join(line.strip() for line in lines[-QUOTED_LINES:] if line.strip())
    raise CodeError(f"--check {command!r} {how}; nothing was changed{': ' + said if said else ''}")
