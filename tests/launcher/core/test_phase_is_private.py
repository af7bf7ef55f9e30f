"""What a phase means is said once: others ask `JobState` by its questions, and name the phase only to show it."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

from robust_run import launcher
from robust_run.launcher.core.state import JobState

PACKAGE = Path(launcher.__file__).parent.parent
CORE = PACKAGE / "launcher" / "core"
#: It has a state of its own, with phases of its own.
ORCHESTRATOR = PACKAGE / "orchestrator"

#: Where the phase is named for people and for metrics.
SHOWN_IN = {
    "launcher/operator/views/status.py",
    "launcher/operator/views/page_data.py",
    "launcher/operator/views/operations.py",
}


def reads(tree: ast.Module) -> Iterator[ast.Attribute]:
    """Yield where `.phase` of a job's state is read: of something called state, or that is annotated as one."""
    states = {"state", "_state"}
    for node in ast.walk(tree):
        annotated = node.annotation if isinstance(node, (ast.arg, ast.AnnAssign)) else None
        if annotated is not None and "JobState" in ast.unparse(annotated):
            states.add(node.arg if isinstance(node, ast.arg) else ast.unparse(node.target).rpartition(".")[2])
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute | ast.Name | ast.Call):
            named = ast.unparse(node.value).removesuffix("()").rpartition(".")[2]
            states.update(ast.unparse(target) for target in node.targets if named in states)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "phase":
            owner = node.value.func if isinstance(node.value, ast.Call) else node.value
            if ast.unparse(owner).rpartition(".")[2] in states:
                yield node


@functools.cache
def outside() -> dict[str, ast.Module]:
    """Return every module that speaks of a phase and is no part of the core, by its path."""
    return {
        path.relative_to(PACKAGE).as_posix(): ast.parse(text)
        for path in sorted(PACKAGE.rglob("*.py"))
        if not {CORE, ORCHESTRATOR} & set(path.parents) and ".phase" in (text := path.read_text())
    }


def test_only_the_core_reads_the_phase_and_a_view_shows_it() -> None:
    found = {name for name, tree in outside().items() if any(reads(tree))}
    assert found <= SHOWN_IN, f"ask JobState instead of reading its phase: {sorted(found - SHOWN_IN)}"
    assert found == SHOWN_IN, f"it is not shown here any more: {sorted(SHOWN_IN - found)}"


def test_who_shows_the_phase_does_not_compare_it() -> None:
    for name, tree in outside().items():
        mine = set(reads(tree))
        for node in ast.walk(tree):
            if isinstance(node, (ast.Compare, ast.Match)):
                assert mine.isdisjoint(ast.walk(node)), f"{name}:{node.lineno} compares the phase of a job"


def test_the_walk_finds_what_it_is_for() -> None:
    for text in (
        "if self._state.phase == 'running': ...",
        "controller.state().phase",
        "def f(one: JobState): return one.phase",
        "now = self.state\nnow.phase",
    ):
        assert len(list(reads(ast.parse(text)))) == 1, text
    assert not list(reads(ast.parse("view.phase; span.phase")))


def test_every_question_is_asked() -> None:
    """A property that nobody reads is a second meaning of the phase in waiting."""
    questions = {name for name, what in vars(JobState).items() if isinstance(what, property)}
    asked = {word for path in PACKAGE.rglob("*.py") for word in re.findall(r"\.(\w+)", path.read_text())}
    assert questions <= asked, f"nobody asks {sorted(questions - asked)}"
