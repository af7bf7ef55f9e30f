"""Tracebacks of users' programs show no frame of ours, and are as they were in all else."""

from __future__ import annotations

import runpy
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from jobs import run, script

from robust_run.tracer.files import steps
from robust_run.tracer.files.arming import ARM_FOLDER

TRACEBACKS = f"{ARM_FOLDER}/tracebacks.py"

PROGRAM = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("t", sys.argv[1])
tracebacks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tracebacks)
tracebacks.install(*sys.argv[2:])
sys.path.insert(0, sys.argv[2])
import ours
{body}
"""


def printed(tmp_path: Path, body: str) -> str:
    """Return what a program prints whose calls go through a module of ours."""
    folder = tmp_path / "ours_folder"
    folder.mkdir()
    (folder / "ours.py").write_text("def wrap(call):\n    return call()\n")
    (tmp_path / "program.py").write_text(PROGRAM.format(body=textwrap.dedent(body)))
    steps.create(str(tmp_path / "steps"))
    argv = [sys.executable, "program.py", TRACEBACKS, str(folder), "steps"]
    return subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False).stderr


def test_our_frames_are_left_out_of_a_chain_of_exceptions(tmp_path: Path) -> None:
    told = printed(
        tmp_path,
        """
        def first(): raise ValueError("inner")
        def second():
            try: ours.wrap(first)
            except ValueError as error: raise KeyError("outer") from error
        ours.wrap(second)
        """,
    )
    assert "ValueError: inner" in told and "KeyError: 'outer'" in told and "direct cause" in told
    assert told.count("in first") == 1 and told.count("in second") == 2
    assert "ours_folder" not in told


def test_an_exception_that_is_its_own_context_is_printed_all_the_same(tmp_path: Path) -> None:
    told = printed(tmp_path, "error = ValueError('round')\nerror.__context__ = error.__cause__ = error\nraise error")
    assert "ValueError: round" in told


def test_a_program_with_a_hook_of_its_own_keeps_it(tmp_path: Path) -> None:
    told = printed(tmp_path, "sys.excepthook = lambda *_: print('mine', file=sys.stderr)\nours.wrap(lambda: 1 / 0)")
    assert told.strip() == "mine"


def raised(tmp_path: Path) -> bool:
    """Return whether the process said that it ends by an exception, which is not long ago then."""
    count = steps.read(str(tmp_path / "steps"))
    assert count is not None
    at_s = count.raised_monotonic_s
    assert at_s is None or time.monotonic() - 60 < at_s <= time.monotonic()
    return at_s is not None


def test_an_exception_that_nobody_caught_is_noted_with_its_time(tmp_path: Path) -> None:
    assert "boom" in printed(tmp_path, "raise ValueError('boom')")
    assert raised(tmp_path)


NOT_THE_END = {
    "one that was caught and shown by the program's own call": """
        try: 1 / 0
        except ZeroDivisionError: sys.excepthook(*sys.exc_info())
        """,
    "one of another thread": """
        import threading
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start(); thread.join()
        """,
    "one of a child": """
        import os
        if os.fork() == 0: 1 / 0
        os.wait()
        """,
    "the end that the program asks for": "sys.exit('enough')",
    "no exception": "print('well', file=sys.stderr)",
}


@pytest.mark.parametrize("body", NOT_THE_END.values(), ids=NOT_THE_END)
def test_nothing_else_is(tmp_path: Path, body: str) -> None:
    assert printed(tmp_path, body)
    assert not raised(tmp_path)


def test_a_steps_file_that_is_gone_changes_nothing(tmp_path: Path) -> None:
    told = printed(tmp_path, "import os\nos.remove('steps')\nraise ValueError('boom')")
    assert told.strip().endswith("ValueError: boom") and "OSError" not in told and "FileNotFound" not in told


def test_what_is_ours_alone_is_shown_rather_than_nothing() -> None:
    names = runpy.run_path(TRACEBACKS)
    try:
        raise ValueError
    except ValueError as error:
        trace = names["without"](error.__traceback__, lambda _: True)
    assert trace is not None and trace.tb_lineno


def test_in_a_job_the_traceback_of_a_failed_collective_is_the_programs(tmp_path: Path) -> None:
    program = """
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        def step(): dist.all_reduce("no tensor")
        step()
    """
    code, job = run(tmp_path, "--no-warm", "--max-restarts", "0", script(tmp_path, program))
    assert code == 1
    assert "in step" in job.err and "distributed_c10d.py" in job.err
    assert "tracer/arm" not in job.err
