"""What may be imported from outside: it is there, says what it is, and is what docs/python.md names."""

from __future__ import annotations

import importlib
import inspect
import pydoc
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

if sys.version_info >= (3, 11):
    from tomllib import loads
else:
    from tomli import loads

ROOT = Path(__file__).resolve().parents[1]
PUBLIC = (
    "robust_run",
    "robust_run.checkpoint",
    "robust_run.ckpt_io.dcp",
    "robust_run.ckpt_io.catalog",
    "robust_run.ckpt_io.errors",
    "robust_run.roles",
    "robust_run.errors",
)


def public(module: str) -> dict[str, object]:
    found = importlib.import_module(module)
    return {name: getattr(found, name) for name in found.__all__}


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_there_and_documented(module: str) -> None:
    assert inspect.getdoc(importlib.import_module(module))
    for name, value in public(module).items():
        if not isinstance(value, str):
            assert inspect.getdoc(value), f"{module}.{name}"


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_function_and_method_is_annotated(module: str) -> None:
    functions = [value for value in public(module).values() if inspect.isfunction(value)]
    for kind in (value for value in public(module).values() if isinstance(value, type)):
        functions += [
            each for name, each in vars(kind).items() if inspect.isfunction(each) and not name.startswith("_")
        ]
    for function in functions:
        signature = inspect.signature(function)
        bare = [
            each.name
            for each in signature.parameters.values()
            if each.annotation is each.empty and each.name not in ("self", "cls")
        ]
        assert (bare, signature.return_annotation is signature.empty) == ([], False), function


def test_the_page_explains_what_is_public_and_nothing_else() -> None:
    table = (ROOT / "docs" / "python.md").read_text().partition("|---|---|\n")[2].partition("\n\n")[0]
    parts = re.split(r"^\| \*\*`([\w.]+)`\*\* \| \|$", table, flags=re.MULTILINE)[1:]
    assert parts[::2] == list(PUBLIC)
    for module, rows in zip(parts[::2], parts[1::2], strict=True):
        named = [
            name for cell in re.findall(r"^\| (`.+?) \|", rows, re.MULTILINE) for name in re.findall(r"`(\w+)`", cell)
        ]
        assert sorted(named) == sorted(importlib.import_module(module).__all__)


def test_help_says_what_is_public_and_that_the_rest_is_not() -> None:
    import robust_run

    said = pydoc.plain(pydoc.render_doc(robust_run))
    assert all(module in said for module in PUBLIC)
    assert "Everything else is private" in said


def test_the_modules_of_checkpoints_are_those_of_the_package() -> None:
    import robust_run.ckpt_io

    assert {f"robust_run.ckpt_io.{name}" for name in robust_run.ckpt_io.__all__} < set(PUBLIC)
    assert all(isinstance(value, ModuleType) for value in map(_module, robust_run.ckpt_io.__all__))


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"robust_run.ckpt_io.{name}")


@pytest.mark.parametrize(
    ("package", "loaded"),
    [
        ("robust_run", {"robust_run", "robust_run.version"}),
        (
            "robust_run.checkpoint",
            {
                "robust_run",
                "robust_run.version",
                "robust_run.checkpoint",
                "robust_run.checkpoint.errors",
                "robust_run.errors",
            },
        ),
        ("robust_run.ckpt_io", {"robust_run", "robust_run.version", "robust_run.ckpt_io"}),
    ],
)
def test_importing_a_package_imports_nothing_else(package: str, loaded: set[str]) -> None:
    program = f"import sys, {package}; print(*(name for name in sys.modules if name.startswith('robust_run')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert set(done.stdout.split()) == loaded


def test_the_package_says_that_it_is_typed_and_all_its_files_are_shipped() -> None:
    told = loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert (ROOT / "robust_run" / "py.typed").is_file()
    assert told["packages"] == ["robust_run"]
    assert not {"exclude", "include", "only-include"} & set(told)
