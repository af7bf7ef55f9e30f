"""`parse`: options or one clear line, with values from the environment where the command line says nothing."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.errors import UserError
from robust_run.launcher.start.options.command import Answered, parse
from robust_run.launcher.start.options.help_page import EXAMPLES
from robust_run.launcher.start.options.options import OPTIONS, Options
from robust_run.version import __version__


def refusal(*argv: str, **env: str) -> str:
    with pytest.raises(UserError) as caught:
        parse(argv, env)
    return str(caught.value)


def answer(*argv: str) -> str:
    with pytest.raises(Answered) as caught:
        parse(argv, {})
    return caught.value.text


def test_a_script_alone_gets_every_default() -> None:
    assert parse(["train.py", "--lr", "1"], {}) == Options(
        training_script="train.py", training_script_args=("--lr", "1")
    )


def test_what_was_given_is_known_even_where_it_is_the_default() -> None:
    assert parse(["--node-rank", "0", "s.py"], {}).given == {"node-rank"}
    assert parse(["s.py"], {"PET_NODE_RANK": "0", "ROBUST_STANDBY": ""}).given == {"node-rank"}
    assert parse(["--standalone", "--progress-path", "x", "s.py"], {}).given == {"standalone", "progress-path"}


def test_a_resumed_job_needs_no_script() -> None:
    options = parse(["--resume", "robust-runs/x", "--http-port", "8080"], {})
    assert options == Options(
        training_script="", resume="robust-runs/x", http_port="8080", given=frozenset({"resume", "http-port"})
    )


def test_what_the_environment_says_of_jobs_is_not_about_a_resumed_one() -> None:
    env = {"PET_NNODES": "4", "ROBUST_STANDBY": "1", "ROBUST_TOKEN_FILE": "/t"}
    assert parse(["--resume", "x"], env) == Options(
        training_script="", resume="x", token_file="/t", given=frozenset({"resume", "token-file"})
    )


def test_a_job_is_resumed_from_the_command_line_only() -> None:
    assert parse(["s.py"], {"ROBUST_RESUME": "x"}).resume is None


def test_numbers_become_numbers() -> None:
    options = parse(["--max-restarts", "7", "--restart-grace", "0.5", "--master-port=0", "s.py"], {})
    assert (options.max_restarts, options.restart_grace, options.master_port) == (7, 0.5, 0)


def test_the_last_of_two_wins() -> None:
    assert parse(["--role", "a", "--role", "b", "s.py"], {}).role == "b"


def test_progress_paths_add_up() -> None:
    assert parse(["--progress-path", "a", "--progress-path", "b c/*.pt", "s.py"], {}).progress_path == ("a", "b c/*.pt")


def test_the_command_line_wins_over_the_environment() -> None:
    env = {"PET_ROLE": "env", "PET_NNODES": "1", "PET_STANDALONE": "1", "PET_MODULE": "0", "ROBUST_PROGRESS_AFTER": "9"}
    options = parse(["--role", "typed", "s.py"], env)
    assert (options.role, options.nnodes, options.standalone, options.module) == ("typed", "1", True, False)
    assert options.progress_after == 9.0


def test_several_progress_paths_come_from_one_variable() -> None:
    assert parse(["s.py"], {"ROBUST_PROGRESS_PATH": "/a:/b c"}).progress_path == ("/a", "/b c")


def test_an_empty_variable_counts_as_not_set() -> None:
    env = {option.env: "" for option in OPTIONS if option.env}
    assert parse(["s.py"], env) == Options(training_script="s.py")


@pytest.mark.parametrize(
    ("argv", "env", "message"),
    [
        (["--max-restarts", "x", "s.py"], {}, "--max-restarts: 'x' is not a valid integer"),
        (["--max_restarts=1\n2", "s.py"], {}, "--max-restarts: '1\\n2' is not a valid integer"),
        (["--restart-grace", "soon", "s.py"], {}, "--restart-grace: 'soon' is not a valid float"),
        (["--start-method", "spa", "s.py"], {}, "--start-method: 'spa' is not one of 'spawn', 'fork', 'forkserver'"),
        (
            ["s.py"],
            {"PET_MAX_RESTARTS": "x"},
            "PET_MAX_RESTARTS: 'x' is not a valid integer; it stands for --max-restarts",
        ),
        (["s.py"], {"PET_STANDALONE": "yes"}, "PET_STANDALONE must be 1 or 0, not 'yes': it stands for --standalone"),
        ([], {}, "no script given: robust-run [options] SCRIPT [options of SCRIPT]"),
        (
            ["--roles", "r.toml", "s.py", "--lr", "1"],
            {},
            "--roles FILE says what is run; leave 's.py' and what follows it out, or put it into a role's command",
        ),
        (
            ["--resume", "x", "s.py", "--lr", "1"],
            {},
            "--resume takes the job from its journal; leave 's.py' and what follows it out",
        ),
        (
            ["--resume", "x", "--nproc-per-node", "1"],
            {},
            "--resume takes the job from its journal; leave --nproc-per-node out"
            " (only --http-port, --http-host, --prometheus-dir, --notify, --node-name, --token-file, --tls-cert, --tls-key,"
            " --tls-ca may be given)",
        ),
        (["--standalone"], {}, "no script given: robust-run [options] SCRIPT [options of SCRIPT]"),
    ],
)
def test_nonsense_is_one_line_that_names_where_it_stands(argv: list[str], env: dict[str, str], message: str) -> None:
    assert refusal(*argv, **env) == message


@given(st.lists(st.text(max_size=12), max_size=5))
def test_whatever_is_typed_gives_options_an_answer_or_one_line(argv: list[str]) -> None:
    try:
        options = parse(argv, {})
    except (UserError, Answered) as outcome:
        assert isinstance(outcome, Answered) or str(outcome).isprintable()
    else:
        assert options.training_script in argv or options.resume is not None


def test_version() -> None:
    assert answer("--version") == f"robust-run {__version__}"


@pytest.mark.parametrize("name", [option.name for option in OPTIONS])
def test_help_names_every_option(name: str) -> None:
    assert f"--{name}" in answer("--help").replace("[=", " ").split()


def test_help_says_what_is_torchrun_s_and_what_is_ours() -> None:
    page = answer("--help")
    assert page.index("Examples:") < page.index("robust-run's own: ") < page.index("--run-id")
    assert page.index("--run-id") < page.index("torchrun: workers:") < page.index("--nnodes N")
    assert "PET_<NAME>" in page


def test_the_short_help_is_one_screen_of_what_is_typed_most() -> None:
    page = answer("-h")
    assert len(page.splitlines()) <= 60
    assert "robust-run --help" in page and "--standby" in page and "--virtual-local-rank" not in page


@pytest.mark.parametrize("line", [line for line, _ in EXAMPLES])
def test_what_help_shows_can_be_typed(line: str) -> None:
    words = shlex.split(line.partition("robust-run ")[2])
    assert parse(words, {}).training_script == ("" if "--resume" in words else "train.py")


@pytest.mark.parametrize("module", ["robust_run.cli", "robust_run.robust_cli"])
def test_a_pager_that_was_left_is_no_fault(module: str) -> None:
    """`robust-run --help | head -1`: nothing is said about the pipe."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-c", f"import sys; from {module} import main; sys.exit(main())", "--help"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=300, check=False)
    os.close(writing)
    assert done.stderr == ""


def test_robust_looks_for_garbage_seldom_and_not_at_all_among_what_stays() -> None:
    """A fifth of the CPU of most commands was that."""
    program = """
import atexit, gc, sys
usual, full = gc.get_threshold(), []
gc.callbacks.append(lambda phase, facts: full.append(facts["generation"]) if phase == "stop" else None)
from robust_run.robust_cli import main
before = len(full)
atexit.register(lambda: print(gc.get_freeze_count() > 10_000, gc.get_threshold() == usual, len(full) - before <= 2))
sys.argv = ["robust", "status", "--help"]
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.splitlines()[-1] == "True True True"
