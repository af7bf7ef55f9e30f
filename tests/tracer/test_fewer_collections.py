"""While torch is imported garbage is collected seldom; a program that has settings or data of its own keeps them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from armed_programs import Worker

from robust_run.tracer.arm.startup import fewer_collections

INSIDE = "import gc, sys\nsys.seen = [gc.get_threshold()[:2], gc.isenabled()]\n"
TELLS_NO_THIRD = "told = gc.get_threshold; gc.get_threshold = lambda: (*told()[:2], 0); before = gc.get_threshold()"
"""As Python 3.14.0 to 3.14.4, whose collector is another."""
ASK = """
import gc, json, sys
before = gc.get_threshold()
{first}
try:
    import torch
except ImportError as error:
    print(error)
import importlib.util
print(json.dumps({{
    "inside": sys.seen, "kept": list(before) == list(gc.get_threshold()), "enabled": gc.isenabled(),
    "frozen": gc.get_freeze_count() > 0, "torch": sorted(vars(sys.modules.get("torch", sys).__spec__ or sys)),
}}))
"""
RARE = [list(fewer_collections.SELDOM[:2]), True]


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    return Worker(tmp_path)


@pytest.fixture
def with_torch(worker: Worker) -> Worker:
    worker.use_fake_torch(**{"torch/__init__.py": INSIDE + "__version__ = '2.13.0'\n"})
    return worker


def ask(worker: Worker, first: str = "") -> dict[str, object]:
    """Run a program that does something and then imports torch; return what it saw."""
    ran = worker.python(ASK.format(first=first))
    assert (ran.returncode, ran.stderr) == (0, "")
    return json.loads(ran.stdout.splitlines()[-1])


def test_collections_are_rare_while_torch_is_imported_and_as_before_afterwards(with_torch: Worker) -> None:
    seen = ask(with_torch)
    assert (seen["inside"], seen["kept"], seen["enabled"], seen["frozen"]) == (RARE, True, True, False)


@pytest.mark.parametrize(
    "first",
    [
        "import importlib.util; importlib.util.find_spec('torch')",
        "gc.set_threshold(500, 5, 5); before = gc.get_threshold()",
        TELLS_NO_THIRD,
    ],
)
def test_a_program_that_asks_for_torch_first_or_has_other_thresholds_has_them_rare_as_well(
    with_torch: Worker, first: str
) -> None:
    seen = ask(with_torch, first)
    assert (seen["inside"], seen["kept"]) == (RARE, True)


def test_a_program_that_collects_nothing_is_left_alone(with_torch: Worker) -> None:
    seen = ask(with_torch, "gc.disable()")
    assert (seen["inside"][1], seen["enabled"], seen["kept"], seen["frozen"]) == (False, False, True, False)  # type: ignore[index]


def test_what_a_program_has_opened_is_written_when_it_ends(with_torch: Worker) -> None:
    """Frozen objects are not looked at when the interpreter ends: what they have not written is lost."""
    with_torch.write("opened.py", "file = open('written', 'w')\nfile.write('all of it')\ndef use():\n    return file\n")
    assert ask(with_torch, "sys.path.insert(0, ''); import opened")["frozen"] is False
    assert (with_torch.folder / "written").read_text() == "all of it"


@pytest.mark.parametrize(
    ("theirs", "kept"),
    [("gc.disable()", "before, False"), ("gc.set_threshold(9, 9, 9)", "(9, 9, gc.get_threshold()[2]), True")],
)
def test_what_a_module_sets_for_itself_stays(worker: Worker, theirs: str, kept: str) -> None:
    worker.use_fake_torch(**{"torch/__init__.py": f"{INSIDE}{theirs}"})
    program = (
        f"import gc\nbefore = gc.get_threshold()\nimport torch\nassert (gc.get_threshold(), gc.isenabled()) == ({kept})"
    )
    ran = worker.python(program)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_an_import_that_fails_fails_as_ever_and_leaves_the_thresholds(worker: Worker) -> None:
    worker.use_fake_torch(**{"torch/__init__.py": INSIDE + "raise ImportError('libcudart.so.13: cannot open')"})
    seen = ask(worker)
    assert (seen["inside"], seen["kept"]) == (RARE, True)
    armed, plain = worker.python("import torch"), worker.python("import torch", armed=False)
    assert "libcudart" in plain.stderr
    assert (armed.returncode, armed.stderr) == (plain.returncode, plain.stderr), "no frame of ours is in it"


@pytest.mark.parametrize("name", ["ROBUST_TRACE_GC", "ROBUST_TRACE"])
def test_it_can_be_switched_off(with_torch: Worker, name: str) -> None:
    with_torch.env[name] = "0"
    seen = ask(with_torch)
    assert (seen["inside"][0] != RARE[0], seen["frozen"]) == (True, False)  # type: ignore[index]


def test_the_true_torch_and_what_an_optimizer_imports_are_imported_so(worker: Worker) -> None:
    ran = worker.python(
        "import gc, sys\nbefore = gc.get_threshold()\nimport torch\n"
        "optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))])\n"
        "assert 'torch._dynamo' in sys.modules\n"
        "print(gc.get_threshold() == before, gc.get_freeze_count())"
    )
    assert (ran.stdout, ran.returncode) == ("True 0\n", 0)
