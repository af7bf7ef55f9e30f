"""Which packages of a program may be imported before it runs: only what would be found in the same place and be the same."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from robust_run.launcher.agent.warm.identity import FREE_PREFIXES, FREE_VARIABLES
from robust_run.tracer.arm.startup import early_imports
from robust_run.tracer.arm.startup.early_imports import changed, folder_of, kept

STDLIB, SITE, PROJECT = "/usr/lib/python3.11", "/env/lib/python3.11/site-packages", "/home/me/project"
AT_START = [STDLIB, SITE]
NOW = [PROJECT, STDLIB, SITE]
LEFT_ALONE = {"PATH": "/bin", "HF_HOME": "/scratch", "RANK": "0"}
BUILT_IN = SimpleNamespace(__spec__=SimpleNamespace(origin="built-in", submodule_search_locations=None))
INSTALLED = {f"{SITE}/transformers", f"{SITE}/datasets", f"{STDLIB}/json", f"{SITE}/numpy"}


def package(folder: str, name: str) -> SimpleNamespace:
    spec = SimpleNamespace(origin=f"{folder}/{name}/__init__.py", submodule_search_locations=[f"{folder}/{name}"])
    return SimpleNamespace(__spec__=spec)


def module(folder: str, name: str) -> SimpleNamespace:
    return SimpleNamespace(__spec__=SimpleNamespace(origin=f"{folder}/{name}.py", submodule_search_locations=None))


USUAL = {
    "sys": BUILT_IN,
    "__main__": SimpleNamespace(__spec__=None),
    "json": package(STDLIB, "json"),
    "transformers": package(SITE, "transformers"),
    "transformers.models": package(f"{SITE}/transformers", "models"),
    "model": module(PROJECT, "model"),
}


def names(modules: dict[str, object], now: list[str] = NOW) -> list[str]:
    return kept(modules, AT_START, now, INSTALLED.__contains__)


def test_what_is_installed_is_kept_with_its_parts_and_the_programs_own_is_not() -> None:
    assert names(USUAL) == ["transformers", "transformers.models"]


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"datasets": package(PROJECT, "datasets")}, id="its own package hides one that is installed"),
        pytest.param({"json": module(PROJECT, "json")}, id="its own module hides one of Python"),
        pytest.param({"datasets": SimpleNamespace()}, id="a stand-in made by hand"),
        pytest.param({"flash_attn": None}, id="an import is forbidden"),
    ],
)
def test_a_program_that_prepares_its_imports_has_nothing_imported_for_it(more: dict[str, object]) -> None:
    assert names({**USUAL, **more}) == []


def test_a_path_in_another_order_finds_other_modules() -> None:
    assert names(USUAL, [PROJECT, SITE, STDLIB]) == []
    assert names(USUAL, [PROJECT, STDLIB]) == []
    assert names(USUAL, ["/env/more", *NOW]) == ["transformers", "transformers.models"]


def test_parts_of_packages_under_other_names_are_no_modules_of_the_program() -> None:
    more = {
        "distutils": package(f"{SITE}/setuptools", "distutils"),
        "_moduleTNC": module(f"{SITE}/scipy", "_moduleTNC"),
    }
    assert names({**USUAL, **more}) == ["transformers", "transformers.models"]


def test_code_beside_what_is_installed_may_be_another_one_tomorrow() -> None:
    with_project = [PROJECT, *AT_START]  # PYTHONPATH
    assert kept(USUAL, with_project, with_project, INSTALLED.__contains__) == ["transformers", "transformers.models"]


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"HF_HOME": "/other"}, ["HF_HOME"]),
        ({"MY_OWN": "1"}, ["MY_OWN"]),
        ({"RANK": "1", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "a", "CUDA_VISIBLE_DEVICES": "1"}, []),
        ({"WANDB_MODE": "offline", "TOKENIZERS_PARALLELISM": "false"}, []),
        ({"TORCHINDUCTOR_CACHE_DIR": "/tmp/t", "PYTORCH_NVML_BASED_CUDA_CHECK": "1", "PL_GLOBAL_SEED": "0"}, []),
    ],
)
def test_only_variables_that_the_program_has_set_count(changes: dict[str, str], found: list[str]) -> None:
    assert changed(LEFT_ALONE, {**LEFT_ALONE, **changes}) == found


def test_a_variable_that_the_program_removed_counts() -> None:
    assert changed(LEFT_ALONE, {"PATH": "/bin", "RANK": "0"}) == ["HF_HOME"]


def test_workers_and_the_launcher_agree_on_what_no_import_reads() -> None:
    assert early_imports.FREE == FREE_VARIABLES
    assert early_imports.FREE_PREFIXES == FREE_PREFIXES


def test_modules_that_are_really_there_have_folders() -> None:
    import json
    import os

    assert folder_of(os) == os.path.dirname(os.__file__) or folder_of(os) == ""  # frozen since 3.11
    assert folder_of(json) == os.path.dirname(os.path.dirname(json.__file__))
    assert folder_of(sys) == ""
    assert folder_of(ModuleType("stand_in")) is None
