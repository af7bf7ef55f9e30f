"""What tests are marked by, which promises are kept by which tests, and which skips are let pass."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import forks
import jobs
import pytest
import skips
from guarantees import GUARANTEES, TESTS_OF_GUARANTEES
from tiers import reached

ROOT = Path(__file__).parents[1]
ROBUST = partial(jobs.running, prefix=jobs.PATIENT)


def starts_one(tmp_path: Path) -> None:
    with ROBUST(tmp_path, "train.py"):
        pass


class Site:
    """Something that starts a job when it is asked to."""

    def begin(self, tmp_path: Path) -> None:
        starts_one(tmp_path)


def through_a_class(tmp_path: Path) -> None:
    Site().begin(tmp_path)


def inside(tmp_path: Path) -> None:
    def begin() -> None:
        starts_one(tmp_path)

    begin()


def by_a_module(tmp_path: Path) -> None:
    jobs.run(tmp_path, "train.py")


def waits_only() -> None:
    jobs.wait_for(lambda: True, "nothing")


@pytest.fixture
def a_job(tmp_path: Path) -> None:
    starts_one(tmp_path)


@pytest.mark.parametrize("function", [starts_one, through_a_class, inside, by_a_module, a_job])
def test_whoever_comes_to_start_a_job_is_a_test_with_a_job(function: object) -> None:
    assert "job" in reached(function)


def test_who_uses_the_same_module_for_something_else_is_not() -> None:
    assert reached(waits_only) == frozenset()


def test_a_program_that_imports_torch_counts_as_much_as_an_import() -> None:
    def program() -> str:
        return "import torch\n"

    def forker(tmp_path: Path) -> None:
        with forks.warm_process(tmp_path):
            pass

    assert reached(program) == frozenset({"torch"})
    assert "torch" in reached(forker)


def promises() -> list[str]:
    """Return what the README promises, in bold, in its list of what one gets."""
    listed = (ROOT / "README.md").read_text().partition("What you get:")[2].partition("\n## ")[0]
    return [" ".join(found.split()) for found in re.findall(r"^- \*\*(.+?)\*\*", listed, re.MULTILINE | re.DOTALL)]


def test_each_promise_of_the_readme_has_a_test_in_the_guarantee_set() -> None:
    assert promises() == list(GUARANTEES)
    assert all(GUARANTEES.values())


@pytest.mark.parametrize("test", sorted(TESTS_OF_GUARANTEES))
def test_each_test_of_the_guarantee_set_exists(test: str) -> None:
    file, _, name = test.partition("::")
    source = (ROOT / "tests" / file).read_text()
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    assert name.partition("[")[0] in {function.name for function in functions}
    assert f'"{name.partition("[")[2]}' in source, "the case"


CASE = """
import pytest

@pytest.mark.parametrize("reason", {reasons!r})
def test_one(reason):
    pytest.skip(reason)

def test_another():
    pass
"""


def run_with(tmp_path: Path, *reasons: str, wanted: str = "expected") -> subprocess.CompletedProcess[str]:
    """Run tests that are skipped for these reasons."""
    (tmp_path / "conftest.py").write_text("import skips\npytest_configure = skips.watch\n")
    (tmp_path / "test_case.py").write_text(CASE.format(reasons=reasons))
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "1",
        "--rootdir",
        str(tmp_path),
        "-c",
        "/dev/null",
        str(tmp_path),
    ]
    env = {**forks.environment(), "TEST_SKIPS": wanted}
    return subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)


NO_GPU = "there is no NVIDIA GPU here (/dev/nvidiactl)"


def test_a_skip_that_is_expected_is_counted_and_lets_the_run_pass(tmp_path: Path) -> None:
    done = run_with(tmp_path, NO_GPU, NO_GPU)
    assert done.returncode == 0, done.stdout
    assert re.search(r"^ +2 expected: ", done.stdout, re.MULTILINE)


def test_a_skip_that_is_not_fails_the_run_and_says_whose(tmp_path: Path) -> None:
    done = run_with(tmp_path, NO_GPU, "no jars of Hadoop")
    assert done.returncode == 1, done.stdout
    assert "1 NOT EXPECTED: no jars of Hadoop: test_case.py::test_one[no jars of Hadoop]" in done.stdout
    assert "no jars of Hadoop" in (tmp_path / ".pytest_cache/v/skips/unexpected").read_text(), "where .ci/run looks"


def test_a_run_that_does_not_ask_for_it_lets_all_pass(tmp_path: Path) -> None:
    assert run_with(tmp_path, "no jars of Hadoop", wanted="").returncode == 0


def test_a_file_that_is_skipped_as_a_whole_is_a_skip(tmp_path: Path) -> None:
    (tmp_path / "test_whole.py").write_text("import pytest\npytest.skip('no such part', allow_module_level=True)\n")
    done = run_with(tmp_path, NO_GPU)
    assert done.returncode == 1, done.stdout
    assert "1 NOT EXPECTED: no such part" in done.stdout


def test_each_expected_skip_says_why() -> None:
    for pattern, why in skips.EXPECTED.items():
        assert re.compile(pattern)
        assert len(why) > 5, pattern
