"""Processes of ours look for garbage seldom until all is imported, and as ever afterwards."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from robust_run.own_process import SELDOM, boot, collect_as_ever, collect_seldom


@pytest.fixture
def thresholds() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    yield before
    gc.set_threshold(*before)


def test_a_child_calls_what_it_is_to_call_and_collects_as_ever_by_then() -> None:
    call = "json.dump([gc.get_threshold(), gc.get_freeze_count() > 1000, sys.argv[1]], sys.stdout)"
    program = f"import json; {boot('robust_run.errors', call, 'UserError')}"
    ran = subprocess.run(
        [sys.executable, "-c", program, "word"], capture_output=True, text=True, check=True, timeout=60
    )
    usual = subprocess.check_output([sys.executable, "-c", "import gc; print(list(gc.get_threshold()))"], text=True)
    assert json.loads(ran.stdout) == [json.loads(usual), True, "word"]


def test_a_module_is_never_found_in_the_folder_that_a_child_is_started_in(tmp_path) -> None:
    (tmp_path / "robust_run").mkdir()
    (tmp_path / "robust_run" / "__init__.py").write_text("raise SystemExit('found here')")
    program = boot("robust_run.errors", "print(UserError.__module__)", "UserError")
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, "robust_run.errors\n")


def test_thresholds_are_back_when_all_is_imported(thresholds: tuple[int, int, int]) -> None:
    collect_seldom()
    assert gc.get_threshold()[:2] == SELDOM[:2]
    collect_as_ever()
    assert gc.get_threshold() == thresholds
    assert gc.get_freeze_count() > 0


def test_thresholds_are_back_where_python_does_not_tell_the_third(
    thresholds: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Python 3.14.0 to 3.14.4, whose collector is another."""
    told = gc.get_threshold
    monkeypatch.setattr(gc, "get_threshold", lambda: (*told()[:2], 0))
    collect_seldom()
    collect_as_ever()
    assert gc.get_threshold() == (*thresholds[:2], 0)


def test_what_lives_for_long_has_its_usual_thresholds() -> None:
    """The command line's own imports are over before anything is launched, whichever kind of job it is."""
    program = (
        "import gc, os, sys\nusual = gc.get_threshold()\nfrom robust_run import cli\n"
        "from robust_run.launcher.start.options import command\n"
        "def parse(argv, env):\n    print(gc.get_threshold() == usual, flush=True)\n    os._exit(0)\n"
        "command.parse = parse\ncli.main()"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True, timeout=60) == "True\n"


def test_nothing_is_frozen_where_nothing_was_begun(thresholds: tuple[int, int, int]) -> None:
    before = gc.get_freeze_count()
    collect_as_ever()
    assert (gc.get_freeze_count(), gc.get_threshold()) == (before, thresholds)


def test_thresholds_of_others_stay(thresholds: tuple[int, int, int]) -> None:
    collect_seldom()
    gc.set_threshold(123, 4, 5)
    collect_as_ever()
    assert gc.get_threshold() == (123, 4, 5)
