"""What a worker runs: the script, module or program, checked on disk before anything is started."""

from __future__ import annotations

import os

import msgspec

from robust_run.errors import UserError
from robust_run.launcher.agent.workers.devices import python_of
from robust_run.launcher.model.world import PathKind, World, shown
from robust_run.launcher.start.options.options import Options

_RUN_PATH = "import sys, runpy; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
"""Leaves `sys.argv` as [script, *args], as if the script had been started by name."""

_READ_ONCE: dict[PathKind, str] = {"pipe": "a pipe", "socket": "a socket", "device": "a device"}
_DESCRIPTOR_FOLDERS = ("/dev/fd/", "/proc/self/fd/")
_STANDARD_INPUT = ("-", "/dev/stdin")


class Entrypoint(msgspec.Struct, frozen=True):
    """The part of a job that says what runs."""

    argv: tuple[str, ...]
    is_python: bool


def resolve_entrypoint(options: Options, world: World) -> Entrypoint:
    """Return a worker's command line. Raises UserError for what cannot be run by every rank."""
    script, args = options.training_script, options.training_script_args
    if not script:
        raise UserError("the script's name is empty; give a script, or a module after -m")
    if options.no_python and not options.run_path:
        if options.module:
            raise UserError("-m needs Python and --no-python leaves it out; use one of them")
        if not _is_the_images(script, options, world):
            _check_program(script, "program", "check the name, chmod +x it, or leave out --no-python", world)
        return Entrypoint((script, *args), is_python=False)
    python = python_of(world.env, world.executable)
    if options.image is None:  # else it is the image's
        _check_program(python, "Python", "set PYTHON_EXEC to the Python that shall run the workers", world)
    if options.module and not options.run_path:
        return Entrypoint((python, "-u", "-m", script, *args), is_python=True)
    if not _is_the_images(script, options, world):
        _check_script(script, world)
    if options.run_path:
        return Entrypoint((python, "-u", "-c", _RUN_PATH, script, *args), is_python=True)
    # Python would take a name with a dash in front for one of its own options.
    dashes = ("--",) if script.startswith("-") else ()
    return Entrypoint((python, "-u", *dashes, script, *args), is_python=True)


def _is_the_images(script: str, options: Options, world: World) -> bool:
    """Whether something is looked for in the image: a program on its PATH, or a path that this machine has not."""
    if options.image is None:
        return False
    if options.no_python and "/" not in script:
        return True
    return script.startswith("/") and world.files.kind(script) == "missing"


def _check_script(script: str, world: World) -> None:
    path = os.path.join(world.cwd, script)
    if script in _STANDARD_INPUT or path.startswith(_DESCRIPTOR_FOLDERS):
        raise UserError(
            f"script {script!r} is an open file of this shell; every rank must read it: save it to a file first"
        )
    kind = world.files.kind(path)
    if kind == "missing":
        raise UserError(f"no such script: {script!r}{_where(script, world)}{_suggestion(script, world)}")
    if kind in _READ_ONCE:
        raise UserError(f"script {script!r} is {_READ_ONCE[kind]}; every rank must read it: save it to a file first")
    if kind == "forbidden" or not world.files.access(path, os.R_OK):
        raise UserError(f"script {script!r} may not be read by {world.user!r}; check its permissions and its folders'")
    if kind == "folder" and world.files.kind(os.path.join(path, "__main__.py")) != "file":
        raise UserError(f"script {script!r} is a folder without a __main__.py; name the script in it")


def _check_program(program: str, what: str, next_step: str, world: World) -> None:
    if "/" not in program:
        folders = world.env.get("PATH", os.defpath).split(os.pathsep)
        if any(_runnable(os.path.join(world.cwd, folder, program), world) for folder in folders):
            return
        here = world.files.kind(os.path.join(world.cwd, program)) == "file"
        hint = f"type {'./' + program!r} for the one in {shown(world.cwd)}" if here else next_step
        raise UserError(f"no {what} {program!r} on PATH; {hint}")
    path = os.path.join(world.cwd, program)
    kind = world.files.kind(path)
    if kind == "missing":
        raise UserError(f"no such {what}: {program!r}{_where(program, world)}{_suggestion(program, world)}")
    if not _runnable(path, world):
        obstacle = "is a folder" if kind == "folder" else "may not be executed"
        raise UserError(f"{what} {program!r} {obstacle}; {next_step}")


def _runnable(path: str, world: World) -> bool:
    return world.files.kind(path) == "file" and world.files.access(path, os.X_OK)


def _where(path: str, world: World) -> str:
    return "" if path.startswith("/") else f" in {shown(world.cwd)}"


def _suggestion(path: str, world: World) -> str:
    from difflib import get_close_matches

    if path.startswith("-") and " " in path:
        return "; if it is an option and its value, take the quotes around them away"
    folder, name = os.path.split(path)
    near = get_close_matches(name, world.files.names(os.path.join(world.cwd, folder)), n=1)
    return f"; did you mean {os.path.join(folder, near[0])!r}?" if near else ""
