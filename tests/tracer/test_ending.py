"""The end of a program is noted where it is known to be one: it ended by itself or for success, and Python cleans up."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from jobs import run, script

from robust_run.tracer.files import steps
from robust_run.tracer.files.arming import ARM_FOLDER, arm_environment

ENDING = runpy.run_path(f"{ARM_FOLDER}/ending.py")
NOT_TORCH = "import ctypes, os, sys, threading, time, types\nsys.modules['torch'] = types.ModuleType('torch')\n"


def ended(tmp_path: Path, body: str, *python: str, exit_code: int = 0) -> bool:
    """Run a program that is armed as a worker is; return whether it noted its end."""
    path = tmp_path / "steps"
    steps.create(str(path))
    (tmp_path / "program.py").write_text(NOT_TORCH + textwrap.dedent(body))
    env = {**os.environ, **arm_environment(os.environ, str(path))}
    began_s = time.monotonic()
    argv = [sys.executable, *(python or ("program.py",))]
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == exit_code, done.stderr
    assert "robust-run" not in done.stderr
    count = steps.read(str(path))
    at_s = count.ended_monotonic_s if count is not None else None
    assert at_s is None or began_s < at_s <= time.monotonic()
    return at_s is not None


def test_the_last_line_of_a_program_is_its_end(tmp_path: Path) -> None:
    assert ended(tmp_path, "print('well')")


def test_so_it_is_of_a_command(tmp_path: Path) -> None:
    assert ended(tmp_path, "", "-c", NOT_TORCH)


@pytest.mark.parametrize(
    "call", ["sys.exit()", "sys.exit(0)", "sys.exit(None)", "main = lambda: None; sys.exit(main())"]
)
@pytest.mark.parametrize("how", ["program.py", "-m program"])
def test_so_is_an_exit_for_success_on_its_outermost_line(tmp_path: Path, how: str, call: str) -> None:
    assert ended(tmp_path, call, *how.split())


@pytest.mark.parametrize("exit_code", [0, 3])
@pytest.mark.parametrize("how", ["-m program", "."])
def test_of_a_module_or_a_folder_it_is_not_known_otherwise(tmp_path: Path, how: str, exit_code: int) -> None:
    (tmp_path / "__main__.py").write_text("import program")
    assert not ended(tmp_path, f"raise SystemExit({exit_code})", *how.split(), exit_code=exit_code)
    assert not ended(tmp_path, f"sys.exit({exit_code})", ".", exit_code=exit_code)
    assert not ended(tmp_path, "", *how.split())


@pytest.mark.parametrize("how", ["program.py", "-m program"])
def test_an_exit_that_was_caught_is_none(tmp_path: Path, how: str) -> None:
    caught = """
        try:
            sys.exit(0)
        except SystemExit:
            pass
        def main():
            sys.exit(3)
        main()
    """
    assert not ended(tmp_path, caught, *how.split(), exit_code=3)


def test_to_a_program_sys_exit_is_what_it_was(tmp_path: Path) -> None:
    body = """
        import inspect, pickle
        assert pickle.loads(pickle.dumps(sys.exit)) is sys.exit
        assert (sys.exit.__name__, sys.exit.__module__, sys.exit.__doc__ is not None) == ("exit", "sys", True)
        for arguments, code in [((), None), ((3,), 3), (("why",), "why"), ((None,), None), (((1, 2),), (1, 2))]:
            try:
                sys.exit(*arguments)
            except SystemExit as error:
                assert error.code == code and type(error) is SystemExit, (error.code, code)
        try:
            sys.exit(1, 2)
        except TypeError as error:
            assert "exit" in str(error)
        try:
            sys.exit(status=3)
        except TypeError as error:
            assert "no keyword arguments" in str(error)
        import copy
        assert copy.deepcopy(sys.exit) is sys.exit and repr(sys.exit) == "<built-in function exit>"
    """
    assert ended(tmp_path, body)


def test_an_exit_that_a_class_keeps_is_given_no_object_of_it(tmp_path: Path) -> None:
    body = """
        class Menu:
            leave = sys.exit
        try:
            Menu().leave()
        except SystemExit as error:
            assert error.code is None, error.code
        Menu().leave()
    """
    assert ended(tmp_path, body)


def test_a_crash_in_a_destructor_comes_after_it(tmp_path: Path) -> None:
    body = """
        class Last:
            def __del__(self, kill=os.kill, pid=os.getpid()):
                kill(pid, 11)
        sys.kept = Last()
    """
    assert ended(tmp_path, body, exit_code=-11)


NOT_THE_END = {
    "an exit code of its own": ("sys.exit(3)", 3),
    "an exit for success further in, which somebody may catch": ("(lambda: sys.exit(0))()", 0),
    "an exit that sys.exit does not know of": ("raise SystemExit(0)", 0),
    "an exit of code that is run by the program": ("exec('sys.exit(0)')", 0),
    "what is true, and so 1": ("sys.exit(True)", 1),
    "a text": ("sys.exit('')", 1),
    "an exit for success that clean-up turns into a failure": ("try: sys.exit(0)\nfinally: (lambda: sys.exit(3))()", 3),
    "an exit for success in whose course an exception comes": ("try: sys.exit(0)\nfinally: 1 / 0", 1),
    "an exception": ("1 / 0", 1),
    "an interrupt": ("raise KeyboardInterrupt", -2),
    "a crash while it runs": ("os.kill(os.getpid(), 11)", -11),
    "an end that skips all": ("os._exit(0)", 0),
    "exit handlers that it runs itself before it goes on": ("import atexit; atexit._run_exitfuncs(); os._exit(0)", 0),
    "the end of a forked child": ("if os.fork() == 0: sys.exit()\nos.wait(); os._exit(0)", 0),
    "another program in its place": (
        "import atexit; atexit._run_exitfuncs(); os.execv('/bin/sh', ['sh', '-c', 'kill -11 $$'])", -11,
    ),
    "a crash in an exit handler of its own": ("import atexit; atexit.register(os.kill, os.getpid(), 11)", -11),
    "a crash in a thread that it waits for": (
        "threading.Thread(target=lambda: (time.sleep(0.3), os.kill(os.getpid(), 11))).start()", -11,
    ),
    "a child that is about to be waited for": (
        "import atexit, multiprocessing.util\natexit.unregister(multiprocessing.util._exit_function)\n"
        "multiprocessing.get_context('fork').Process(target=time.sleep, args=(1,)).start()", 0,
    ),
    "an exception that a hook of its own makes forgotten": (
        "sys.excepthook = lambda *_: setattr(sys, 'last_value', None)\n1 / 0", 1,
    ),
    "a program without torch": ("del sys.modules['torch']", 0),
}  # fmt: skip


@pytest.mark.parametrize("what", NOT_THE_END)
def test_nothing_else_is(tmp_path: Path, what: str) -> None:
    body, exit_code = NOT_THE_END[what]
    assert not ended(tmp_path, body, exit_code=exit_code)


def test_a_steps_file_that_is_gone_changes_nothing(tmp_path: Path) -> None:
    assert not ended(tmp_path, "os.remove('steps')")


EVAL, VECTOR = "_PyEval_EvalFrameDefault", "_PyFunction_Vectorcall"
INNER = ["", "ffi_call", "_PyObject_MakeTpCall", EVAL]
OUTER = ["Py_RunMain", "Py_BytesMain", "", "_start"]
STACKS = {
    "3.11": ([*INNER, "", "", "Py_FinalizeEx", *OUTER], "Py_RunMain"),
    "Debian's 3.11": ([*INNER, VECTOR, "", "Py_FinalizeEx", *OUTER], "Py_RunMain"),
    "3.10": ([*INNER, "", EVAL, "", "", "Py_FinalizeEx", *OUTER], "Py_RunMain"),
    "3.13": ([*INNER, "", "", *OUTER], "Py_RunMain"),
    "3.11, SystemExit": (
        [*INNER, "", "", "Py_FinalizeEx", "Py_Exit", "", "_PyRun_SimpleFileObject", *OUTER],
        "Py_Exit",
    ),
    "3.13, SystemExit": ([*INNER, "", "", "Py_Exit", "", "", "", *OUTER], "Py_Exit"),
    "an exit by a function of C that the program has called": (
        [*INNER, "", "Py_Exit", "", EVAL, "", "PyEval_EvalCode", "", "_PyRun_SimpleFileObject", *OUTER],
        "",
    ),
    "a build in which all of that is nameless": ([*INNER, "", "", "", "", "", *OUTER], ""),
    "a program that embeds Python": ([*INNER, "", "", "Py_FinalizeEx", "main", "_start"], ""),
    "no names": ([], ""),
    "no frame of Python": (["", "Py_FinalizeEx", *OUTER], ""),
}


@pytest.mark.parametrize("build", STACKS)
def test_which_stacks_show_by_what_python_ends(build: str) -> None:
    names, by = STACKS[build]
    assert ENDING["ended_by"](names) == by


def test_the_cell_is_that_of_the_steps_file() -> None:
    assert ENDING["ENDED_CELL"] == steps.ENDED_CELL


def test_in_a_job_the_others_go_on_and_it_is_not_started_again(tmp_path: Path) -> None:
    program = """
        import os, sys, time, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        class Last:
            def __del__(self, kill=os.kill, pid=os.getpid()):
                kill(pid, 11)
        if dist.get_rank() == 1:
            sys.kept = Last()
        else:
            time.sleep(1)
            open("saved", "w").close()
        sys.exit()
    """
    code, job = run(tmp_path, "--no-warm", "--nproc-per-node", "2", "--max-restarts", "3", script(tmp_path, program))
    assert code == 139, job.err
    assert (tmp_path / "saved").exists()
    (incident,) = job.actions("record_incident")
    assert (incident["verdict"]["rule"], incident["verdict"]["ranks"]) == ("crashed_at_exit", [1])
    assert "; its program had ended before" in job.err
    assert "not restarted: all ranks had come to the end of their program: there is nothing to train again" in job.err
