"""What the workers run, and what is refused before anything is started."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from worlds import PYTHON, Machine

from robust_run.errors import UserError
from robust_run.launcher.agent.workers.this_machine import system_world
from robust_run.launcher.start.options.command import parse
from robust_run.launcher.start.options.entrypoint import Entrypoint, resolve_entrypoint


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def entry(machine: Machine, *argv: str, **env: str) -> Entrypoint:
    world = machine.world()
    return resolve_entrypoint(parse(argv, {}), machine.world(env={**world.env, **env}))


def refusal(machine: Machine, *argv: str, **env: str) -> str:
    with pytest.raises(UserError) as caught:
        entry(machine, *argv, **env)
    message = str(caught.value)
    assert message.isprintable()
    return message


def test_a_script_runs_unbuffered_in_our_python(machine: Machine) -> None:
    assert entry(machine, "train.py", "-x", "--", "y z") == Entrypoint(
        (PYTHON, "-u", "train.py", "-x", "--", "y z"), True
    )


@pytest.mark.parametrize(
    "name", ["my train.py", "it's.py", 'say "hi".py', "two\nlines.py", "träin.py", "$HOME.py", "-x.py"]
)
def test_names_of_scripts_are_left_alone(machine: Machine, name: str) -> None:
    machine.write(f"/job/{name}")
    assert entry(machine, "--", name).argv[-1] == name


def test_a_script_with_a_dash_in_front_is_not_an_option_of_python(machine: Machine) -> None:
    machine.write("/job/-x.py")
    assert entry(machine, "--", "-x.py").argv == (PYTHON, "-u", "--", "-x.py")


def test_a_module_is_found_by_python_not_by_us(machine: Machine) -> None:
    assert entry(machine, "-m", "pkg.train", "a").argv == (PYTHON, "-u", "-m", "pkg.train", "a")


def test_a_folder_with_a_main_is_a_script(machine: Machine) -> None:
    machine.write("/job/app/__main__.py")
    assert entry(machine, "app").argv == (PYTHON, "-u", "app")


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("trian.py", "no such script: 'trian.py' in /job; did you mean 'train.py'?"),
        ("../job/trian.py", "no such script: '../job/trian.py' in /job; did you mean '../job/train.py'?"),
        ("/job/trian.py", "no such script: '/job/trian.py'; did you mean '/job/train.py'?"),
        ("zzz", "no such script: 'zzz' in /job"),
        ("a\nb", "no such script: 'a\\nb' in /job"),
        ("", "the script's name is empty; give a script, or a module after -m"),
        ("train.py/x", "no such script: 'train.py/x' in /job"),
        ("--nnodes 1", "no such script: '--nnodes 1' in /job; if it is an option and its value, take the quotes"),
    ],
)
def test_a_missing_script_is_named_with_the_nearest(machine: Machine, script: str, message: str) -> None:
    assert refusal(machine, script).startswith(message)


def test_a_folder_without_a_main_is_refused(machine: Machine) -> None:
    machine.write("/job/app/")
    assert refusal(machine, "app") == "script 'app' is a folder without a __main__.py; name the script in it"


def test_an_unreadable_script_is_refused(machine: Machine) -> None:
    machine.forbid("/job/train.py", os.R_OK)
    assert refusal(machine, "train.py").startswith("script 'train.py' may not be read by 'ann'")


def test_a_pipe_is_refused_because_every_rank_must_read_it(machine: Machine) -> None:
    os.mkfifo(f"{machine.root}/job/pipe")
    assert refusal(machine, "pipe") == "script 'pipe' is a pipe; every rank must read it: save it to a file first"


def test_a_socket_is_refused(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(f"{machine.root}/job")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("s")
        assert refusal(machine, "s").startswith("script 's' is a socket; every rank must read it")


@pytest.mark.parametrize("script", ["-", "/dev/stdin", "/dev/fd/63", "/proc/self/fd/3"])
def test_files_that_only_this_shell_has_open_are_refused(machine: Machine, script: str) -> None:
    assert "is an open file of this shell; every rank must read it" in refusal(machine, script)


def test_a_device_is_refused() -> None:
    with pytest.raises(UserError, match="script '/dev/zero' is a device"):
        resolve_entrypoint(parse(["/dev/zero"], {}), system_world({"PATH": "/bin"}))


def test_a_program_is_found_on_path_and_started_as_typed(machine: Machine) -> None:
    machine.write("/bin/tool", mode=0o755)
    assert entry(machine, "--no-python", "tool", "-c", "x") == Entrypoint(("tool", "-c", "x"), False)


def test_a_program_is_found_by_its_path(machine: Machine) -> None:
    machine.write("/job/run.sh", mode=0o755)
    assert entry(machine, "--no-python", "./run.sh").argv == ("./run.sh",)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("tool", "no program 'tool' on PATH; check the name, chmod +x it, or leave out --no-python"),
        ("train.py", "no program 'train.py' on PATH; type './train.py' for the one in /job"),
        ("./trian.py", "no such program: './trian.py' in /job; did you mean './train.py'?"),
        (
            "./train.py",
            "program './train.py' may not be executed; check the name, chmod +x it, or leave out --no-python",
        ),
        ("/job", "program '/job' is a folder; check the name"),
    ],
)
def test_a_program_that_cannot_run_is_refused(machine: Machine, program: str, message: str) -> None:
    assert refusal(machine, "--no-python", program).startswith(message)


def test_a_module_needs_python(machine: Machine) -> None:
    assert (
        refusal(machine, "-m", "--no-python", "x") == "-m needs Python and --no-python leaves it out; use one of them"
    )


def test_the_variable_python_exec_chooses_the_python(machine: Machine) -> None:
    machine.write("/opt/py", mode=0o755)
    assert entry(machine, "train.py", PYTHON_EXEC="/opt/py").argv[0] == "/opt/py"
    assert entry(machine, "train.py", PYTHON_EXEC="").argv[0] == PYTHON
    assert entry(machine, "train.py", PYTHON_EXEC="python3").argv[0] == "python3"


@pytest.mark.parametrize("python", ["/opt/none", "nopython", "/job/train.py", "/job"])
def test_a_python_that_cannot_run_is_refused(machine: Machine, python: str) -> None:
    assert repr(python) in refusal(machine, "train.py", PYTHON_EXEC=python)


def test_run_path_wins_over_no_python_and_runs_the_script_as_main(tmp_path: Path) -> None:
    script = tmp_path / "it's 'me'.py"
    script.write_text("import sys; print(__name__, sys.argv)")
    options = parse(["--run-path", "--no-python", str(script), "-a", "b c"], {})
    found = resolve_entrypoint(options, system_world({"PATH": "/bin"}))
    assert found.is_python
    output = subprocess.run(found.argv, capture_output=True, text=True, check=True, timeout=60).stdout
    assert output.strip() == f"__main__ {[str(script), '-a', 'b c']}"


def test_the_real_world_runs_real_scripts(tmp_path: Path) -> None:
    script = tmp_path / "-odd \n nämé.py"
    script.write_text("import sys; print(sys.argv[1:])")
    found = resolve_entrypoint(parse(["--", str(script), "1"], {}), system_world({"PATH": "/bin"}))
    assert found.argv == (sys.executable, "-u", str(script), "1")
    assert subprocess.run(found.argv, capture_output=True, text=True, check=True, timeout=60).stdout == "['1']\n"
