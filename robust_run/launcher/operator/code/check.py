"""Whether a version of code may be taken: its Python files compile, and a command of the user's passes. Before it is staged.

Compiling executes nothing of the code. It is done by the Python that will run it, since syntax differs between versions.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence

import msgspec

import robust_run
from robust_run.errors import UserError
from robust_run.launcher.agent.workers.process_tree import KILL_S
from robust_run.launcher.operator.code.supervise import PROGRAM
from robust_run.launcher.records.code.errors import CodeError

COMPILE_S = 60.0
#: What watches over a command gets this long beyond the command's limit: to start, and to end what that left.
SUPERVISOR_S = KILL_S + 20.0
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

    All that it has started ends with it, daemons too.
    """
    try:
        argv = shlex.split(command)
    except ValueError as error:
        raise UserError(f"--check {command!r} is no command: {error}") from error
    if not argv:
        raise UserError("--check is empty; give a command, or leave it out")
    result = _supervised(argv, folder, limit_s, env)
    if result.error:
        raise UserError(f"--check {command!r} cannot be run: {result.error}")
    if result.code == 0:
        return
    how = f"did not end within {limit_s:g} s" if result.code is None else f"ended with {result.code}"
    lines = result.said.rstrip().splitlines()
    said = " | ".join(line.strip() for line in lines[-QUOTED_LINES:] if line.strip())
    raise CodeError(f"--check {command!r} {how}; nothing was changed{': ' + said if said else ''}")


class _Result(msgspec.Struct):
    code: int | None
    said: str
    error: str = ""


def _supervised(argv: Sequence[str], folder: str, limit_s: float, env: Mapping[str, str]) -> _Result:
    """Run a command below a process that ends all that it leaves behind: see `supervise`."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(robust_run.__file__)))
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", PROGRAM, package, str(limit_s), *argv],
        cwd=folder,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        answer, errors = process.communicate(timeout=limit_s + SUPERVISOR_S)
        return msgspec.json.decode(answer, type=_Result)
    except subprocess.TimeoutExpired:
        return _Result(None, "")
    except msgspec.MsgspecError:
        last = errors.decode(errors="replace").strip().splitlines()[-1:]
        return _Result(None, "", error=f"what watches over it ended with {process.returncode}: {''.join(last)}")
    finally:
        if process.poll() is None:  # the time is over, or the user's patience: it still ends what it has started
            process.terminate()
            try:
                process.wait(SUPERVISOR_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
