"""ARCHITECTURE.md and CONTRIBUTING.md: rooms, modules, functions and files that they name are there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest
from shown_commands import DOCS

ROOT = DOCS.parent
PACKAGE = ROOT / "robust_run"
PAGE = ROOT / "ARCHITECTURE.md"  # its text mentions imports of torch, and who names such a text is in that tier

#: Paths are below the repository, below robust_run/, or, on a walk, below robust_run/launcher/.
PLACES = (ROOT, PACKAGE, PACKAGE / "launcher")
#: `launcher/core/step.py: step` or `agent/attempt.py: Attempt.watch`, in text and in drawings.
FUNCTION = re.compile(r"([\w/]+\.py): ([\w.]+)")
#: A file or folder by its path.
PATH = re.compile(r"`((?:[\w.]+/)+[\w.]*)[`:]")
#: What all rooms may import, so it is not said.
BELOW_ALL = {
    "errors",
    "clock",
    "signals",
    "version",
    "harmless",
    "atomic_file",
    "imported_ahead",
    "installation",
    "settings_file",
    "terminal",
    "json_output",
    "decoders",
    "secret_file",
    "tls",
    "own_folder",
    "own_process",
    "process_start",
    "forking",
    "robust_run",
}


MOST_MODULES = 25
"""In one folder; where there are more, some belong together."""
MANY_LINES, MOST_LONG, MOST_LINES = 300, 15, 400


def _module_or_folder(path: Path) -> bool:
    return path.with_suffix(".py").is_file() or (path.is_dir() and any(path.rglob("*.py")))


def _found(path: str) -> Path:
    return next((place / path for place in PLACES if (place / path).exists()), ROOT / path)


def _names_in(path: Path) -> set[str]:
    """Return the functions and classes of a module, and the methods as `Class.method`."""
    found: set[str] = set()
    for node in ast.parse(path.read_text() if path.exists() else "").body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (each for each in node.body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)))
            found |= {f"{node.name}.{method.name}" for method in methods}
    return found


def _tables() -> Iterator[tuple[str, list[str]]]:
    """Yield the names in the first cells of each table of rooms: the heading's folder, and paths below it."""
    for part in PAGE.read_text().partition("## The rooms")[2].split("\n### ")[1:]:
        cells = re.findall(r"^\| (`.*?) \|", part, re.MULTILINE)
        yield part.splitlines()[0].rstrip("/"), [name for cell in cells for name in _names_of(cell)]


def _names_of(cell: str) -> Iterator[str]:
    for group in cell.split(" · "):
        folder = ""
        for name in re.findall(r"`([^`]+)`", group):
            folder = name if name.endswith("/") else folder
            yield name if name.endswith("/") else f"{folder}{name}"


def _rooms_drawn() -> set[str]:
    """Return the rooms in the floor plan, as paths below the package."""
    plan = PAGE.read_text().partition("    robust_run/")[2].partition("\n\n")[0].splitlines()[1:]
    found: set[str] = set()
    for line in plan:
        if line.startswith("    │"):
            found.add("launcher/" + re.findall(r"[├└]─ (\w+)/", line)[0])
        else:
            names = re.match(r"    [├└]─ ((?:\w+/?)(?:, \w+)*)", line)
            assert names is not None, line
            found |= {name.rstrip("/") for name in names[1].split(", ")}
    return found


def _stated_imports() -> dict[str, set[str]]:
    """Return what each room of the launcher is said to import: rooms and packages, in the drawing's words."""
    drawing = (
        PAGE.read_text().partition("What the rooms of the launcher import")[2].partition("\n\n")[2].partition("\n\n")[0]
    )
    return {words[0]: set(words[1:]) - {"·"} for words in (line.split() for line in drawing.splitlines())}


def _imports_of(room: str) -> set[str]:
    found: set[str] = set()
    for path in (PACKAGE / "launcher" / room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for parts in (module.split(".") for module in modules if module.startswith("robust_run")):
                found.add(parts[2] if parts[1:2] == ["launcher"] else parts[1] if len(parts) > 1 else parts[0])
    return found - BELOW_ALL - {room}


def test_the_floor_plan_shows_all_rooms_and_no_others() -> None:
    folders = {path.parent for path in PACKAGE.rglob("__init__.py")}
    rooms = {str(path.relative_to(PACKAGE)) for path in folders if path.parent in (PACKAGE, PACKAGE / "launcher")}
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    assert _rooms_drawn() == rooms | modules


@pytest.mark.parametrize("room", sorted(_stated_imports()))
def test_a_room_imports_what_the_plan_says_and_nothing_else(room: str) -> None:
    assert _imports_of(room) == _stated_imports()[room]


def test_the_plan_says_what_each_room_of_the_launcher_imports() -> None:
    assert {f"launcher/{room}" for room in _stated_imports()} == {
        room for room in _rooms_drawn() if room.startswith("launcher/")
    }


@pytest.mark.parametrize(("base", "names"), list(_tables()), ids=lambda value: value if isinstance(value, str) else "")
def test_what_stands_in_the_tables_of_rooms_is_there(base: str, names: list[str]) -> None:
    assert names
    assert [name for name in names if not _module_or_folder(PACKAGE / base / name)] == []


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_functions_that_walks_and_recipes_name_are_there(page: str) -> None:
    named = set(FUNCTION.findall((ROOT / page).read_text()))
    assert named
    assert [(path, name) for path, name in sorted(named) if name not in _names_in(_found(path))] == []


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_paths_lead_to_files(page: str) -> None:
    """First cells of tables have a test of their own."""
    named = set(PATH.findall(re.sub(r"^\| `.*? \|", "", (ROOT / page).read_text(), flags=re.MULTILINE)))
    assert named
    assert [path for path in sorted(named) if not _found(path).exists()] == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports in functions and those for types alone are counted: who reads a circle has to know all of it at once."""
    graph = grimp.build_graph("robust_run", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as circle:
        pytest.fail(" <- ".join(circle.args[1]))


def test_no_folder_has_more_than_a_screen_of_modules() -> None:
    counts = {folder: len(list(folder.glob("*.py"))) for folder in PACKAGE.rglob("*") if folder.is_dir()}
    assert {str(folder): count for folder, count in counts.items() if count > MOST_MODULES} == {}


def test_few_modules_are_long() -> None:
    lines = {str(path): len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py")}
    long = {path: count for path, count in lines.items() if count > MANY_LINES}
    assert len(long) <= MOST_LONG, long
    assert max(lines.values()) <= MOST_LINES, long
