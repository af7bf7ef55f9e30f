"""What a job needs long after its start is imported ahead: nothing that these rooms import late is forgotten."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import robust_run
from robust_run import clock
from robust_run.imported_ahead import import_all, modules_of
from robust_run.installation import ROOT
from robust_run.launcher.start.needed_later import ELSEWHERE

#: Modules that a process has when its job runs, and the rooms that it imports ahead.
PROCESSES = {
    "one node": (
        "robust_run.launcher.start.main robust_run.launcher.start.one_node_job robust_run.launcher.agent.loop "
        "robust_run.launcher.agent.health",
        "CONTROLLER + AGENT",
    ),
    "agent of several nodes": ("robust_run.launcher.start.many.node_of_many robust_run.launcher.agent.health", "AGENT"),
    "controller of several nodes": ("robust_run.launcher.start.controller_process", "CONTROLLER"),
}

#: What is imported late all the same: at the start of a job, or by few jobs, which have it from their start.
AT_THE_START = (
    "robust_run.launcher.start.place_opening",
    "robust_run.launcher.start.warm.",
    "robust_run.prefetch.record",
    "robust_run.prefetch.window",
    "robust_run.ckpt_io.address",
    "robust_run.store.",
    "robust_run.ckpt_io.ahead.process",
    "robust_run.ckpt_io.mount.",
    "robust_run.ckpt_io.memory.keeper.",  # in a process of its own, as the next two
    "robust_run.ckpt_io.memory_dir.",
    "robust_run.ckpt_io.views.",
    "robust_run.prefetch.server.",
)

#: What modules that an agent shares with controllers import for these alone.
OF_CONTROLLERS = (
    "robust_run.launcher.operator.pages.incident_pages",
    "robust_run.report.files.incident",
    "robust_run.launcher.core.",
)

IMPORT = """
import importlib, sys
from robust_run.imported_ahead import import_all, modules_of
from robust_run.launcher.start.needed_later import AGENT, CONTROLLER, ELSEWHERE
for name in sys.argv[2:]:
    importlib.import_module(name)
import_all(modules_of({"AGENT": AGENT, "CONTROLLER": CONTROLLER, "CONTROLLER + AGENT": CONTROLLER + AGENT}[sys.argv[1]],
                      ELSEWHERE), lambda s: None)
print(*sorted(name for name in sys.modules if name.partition(".")[0] == "robust_run"))
print(*{"torch", "numpy"} & set(sys.modules))
"""


def path_of(module: str) -> Path:
    place = Path(ROOT).joinpath(*module.split(".")[1:])
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


def imported_late(module: str) -> set[str]:
    """Return the modules of ours that functions of a module import."""
    tree = ast.parse(path_of(module).read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    found = set()
    for node in (each for function in functions for each in ast.walk(function)):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{each.name}" for each in node.names}
            modules = {each for each in names if each.startswith("robust_run.") and path_of(each).exists()}
            found |= modules or {node.module}
    return {each for each in found if each.startswith("robust_run.")}


@pytest.mark.parametrize("process", PROCESSES)
def test_what_a_process_may_import_late_it_imports_ahead(process: str) -> None:
    loaded, rooms = PROCESSES[process]
    done = subprocess.run(
        [sys.executable, "-c", IMPORT, rooms, *loaded.split()], capture_output=True, text=True, check=True
    )
    ours, heavy = done.stdout.splitlines()
    assert not heavy, "torch is imported by workers and their like only"
    modules = set(ours.split())
    left_out = tuple(f"robust_run.{room}." for room in ELSEWHERE)
    forgotten = {
        f"{needed}, by {module}"
        for module in modules
        for needed in imported_late(module) - modules
        if not f"{needed}.".startswith((*left_out, *AT_THE_START))
        and not (rooms == "AGENT" and needed.startswith(OF_CONTROLLERS))
    }
    assert not forgotten, "a room in needed_later.py lacks them"


def test_rooms_that_are_named_exist() -> None:
    from robust_run.launcher.start.needed_later import AGENT, CONTROLLER

    for room in (*AGENT, *CONTROLLER, *ELSEWHERE):
        assert modules_of([room], []), room


def test_rooms_are_all_modules_below_a_folder_or_one_module_and_what_is_left_out_is_not_among_them() -> None:
    assert modules_of(["clock"], []) == ["robust_run.clock"]
    names = modules_of(["tracer"], ["tracer.arm"])
    assert {"robust_run.tracer", "robust_run.tracer.types", "robust_run.tracer.files.arming"} <= set(names)
    assert not [name for name in names if name.startswith("robust_run.tracer.arm")]


def test_a_module_that_cannot_be_imported_keeps_none_after_it_from_being_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rests: list[float] = []
    monkeypatch.setattr(robust_run, "clock", clock)  # others go on with the one they have
    monkeypatch.delitem(sys.modules, "robust_run.clock")
    import_all(["robust_run.there_is_no_such_module", "robust_run.clock"], rests.append)
    assert "robust_run.clock" in sys.modules
    assert len(rests) == 1


def test_nothing_is_imported_of_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(robust_run, "clock", clock)
    monkeypatch.delitem(sys.modules, "robust_run.clock")
    import_all(["robust_run.clock"], lambda s: None, lambda: "it was replaced")
    assert "robust_run.clock" not in sys.modules
