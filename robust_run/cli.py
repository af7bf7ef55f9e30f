"""`robust-run`: the command people type where they typed `torchrun`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from robust_run.own_process import collect_as_ever, collect_seldom


def main() -> None:
    """Entry point of the `robust-run` command; leaves without interpreter teardown, which would cost what it saves."""
    collect_seldom()
    _start_clean()
    exit_code = run(sys.argv[1:], os.environ)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(exit_code)


def _start_clean() -> None:
    """Undo what a parent may leave us with: closed standard streams, ignored SIGCHLD.

    A closed descriptor is filled with /dev/null, so that no log file or socket becomes a program's stdout. A Ctrl-C before
    anything runs ends us as it ends any program, without a traceback of our imports.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - they last as long as we do
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def run(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Run one command line and return its exit code: the job's, or 2 for a command line that makes no sense."""
    from robust_run.errors import RobustRunError

    try:
        from robust_run.launcher.agent.workers.this_machine import system_world
        from robust_run.launcher.start.main import launch
        from robust_run.launcher.start.options.command import Answered, parse
        from robust_run.launcher.start.options.validate import resolve
    except ModuleNotFoundError as error:  # after `pip install --no-deps`, for one
        if not error.name or error.name.partition(".")[0] == "robust_run":
            raise
        print(
            f"robust-run: its Python package {error.name} is not installed in {sys.prefix}: pip install robust-run"
            " again there, without --no-deps",
            file=sys.stderr,
        )
        return 1
    collect_as_ever()

    try:
        options = parse(argv, env)
        if options.resume is not None:
            from robust_run.launcher.start.resume import resume
            from robust_run.slurm.scheduler import watch

            return resume(options, system_world(env), env, watch)
        if options.roles is not None:
            from robust_run.orchestrator.main import launch_roles

            return launch_roles(options, system_world(env), env)
        if "SLURM_JOB_ID" in env:
            from robust_run.slurm.start import start

            return start(options, system_world(env), env)
        return launch(resolve(options, system_world(env)), env)
    except Answered as answer:
        with suppress(BrokenPipeError):  # a pager that was left
            print(answer.text, flush=True)
        return 0
    except RobustRunError as error:
        from robust_run.terminal import plain

        print(f"robust-run: {plain(str(error))}", file=sys.stderr)
        return error.exit_code
