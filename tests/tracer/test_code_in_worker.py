"""Inside a worker that runs a version of the code: where its modules come from, and whether its model is still numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from worker_side import load_worker_side

from robust_run.tracer.files import steps
from robust_run.tracer.files.arming import arm_environment

LOOK = """
import json, os, sys
import plain, pkg.deep, lib.side
sys.path.insert(0, {root!r} + "/late")
import later
sys.path.append({root!r} + "/venv/site")
import installed
print(json.dumps({{
    "plain": plain.__file__, "deep": pkg.deep.__file__, "side": lib.side.__file__, "later": later.__file__,
    "installed": installed.__file__, "names": sorted(name for name in os.environ if name.startswith("ROBUST_CODE_")),
    "path": [entry for entry in sys.path if entry.startswith({root!r})],
}}))
"""


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """A folder and its copy, in which everything is the same but what is no code."""
    root, copy = tmp_path / "root", tmp_path / "copy"
    code = {"plain.py": "", "pkg/__init__.py": "", "pkg/deep.py": "", "src/lib/__init__.py": "", "src/lib/side.py": ""}
    for folder in (root, copy):
        write(folder, **code, **{"late/later.py": "", "train.py": LOOK.format(root=str(root))})
    write(root, **{"venv/site/installed.py": "", "venv/pyvenv.cfg": ""})
    (copy / "venv").symlink_to(root / "venv")
    return root, copy


def run(root: Path, copy: Path, *argv: str, **more: str) -> subprocess.CompletedProcess[str]:
    steps_file = str(root.parent / "steps")
    steps.create(steps_file)
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    env = {**kept, "PYTHONPATH": str(root / "src")}
    env.update(arm_environment(env, steps_file), ROBUST_CODE_ROOT=str(root), ROBUST_CODE_COPY=str(copy), **more)
    return subprocess.run(
        [sys.executable, *argv], env=env, cwd=root, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("argv", [("train.py",), ("-m", "train")])
def test_whatever_leads_into_the_folder_leads_into_the_copy(two: tuple[Path, Path], argv: tuple[str, ...]) -> None:
    root, copy = two
    first = (str(copy / argv[0]),) if len(argv) == 1 else argv
    done = run(root, copy, *first)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["plain"] == str(copy / "plain.py")
    assert seen["deep"] == str(copy / "pkg" / "deep.py")
    assert seen["side"] == str(copy / "src" / "lib" / "side.py"), "PYTHONPATH"
    assert seen["later"] == str(copy / "late" / "later.py"), "what the program puts on the path itself"
    assert seen["path"] == [f"{root}/venv/site"], "children that are told the path find the same"
    assert seen["installed"] == str(root / "venv" / "site" / "installed.py"), "environments stay where they are"
    assert seen["names"] == [], "the program does not see how"


DEEP_LOOK = """
import importlib, json, os, sys
import plain, pkg.deep
for place in list(sys.path):
    sys.path_importer_cache.pop(place, None)
for name in ("lib.side", "no_such_module_anywhere", "pkg.none"):
    try:
        importlib.import_module(name)
    except ImportError:
        pass
print(json.dumps({{"plain": plain.__file__, "deep": pkg.deep.__file__, "path": sys.path, "argv": sys.argv[0]}}))
"""


@pytest.mark.parametrize("is_linked", [True, False])
def test_a_copy_below_the_folder_itself_is_redirected_once(two: tuple[Path, Path], is_linked: bool) -> None:
    root, outside = two
    copy = root / "robust-runs" / "id" / "code" / "at" / "x"
    copy.parent.mkdir(parents=True)
    outside.rename(copy)
    if is_linked:  # a copy of an older robust-run leads back to where it lies
        (copy / "robust-runs").symlink_to(root / "robust-runs")
    (copy / "train.py").write_text(DEEP_LOOK.format())
    done = run(root, copy, str(copy / "train.py"))
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert (seen["plain"], seen["deep"]) == (str(copy / "plain.py"), str(copy / "pkg" / "deep.py"))
    assert seen["path"][0] == str(copy)
    assert str(copy / "src") in seen["path"]
    assert all(entry.count("robust-runs") <= 1 for entry in seen["path"])


def test_a_copy_that_is_not_there_leaves_all_as_it_was(two: tuple[Path, Path]) -> None:
    root, _ = two
    done = run(root, root.parent / "nowhere", str(root / "train.py"))
    assert json.loads(done.stdout)["plain"] == str(root / "plain.py"), done.stderr


def test_a_folder_beside_the_root_is_not_redirected(two: tuple[Path, Path]) -> None:
    root, copy = two
    write(root.parent, **{"root-of-another/other.py": "", "look.py": ""})
    program = (
        f"import sys; sys.path.insert(0, {str(root.parent / 'root-of-another')!r}); import other; print(other.__file__)"
    )
    assert run(root, copy, "-c", program).stdout.strip() == str(root.parent / "root-of-another" / "other.py")


# --- edits while it runs ---------------------------------------------------------------------------------------------

EDIT = """
import json, os, pathlib, sys
{edit}
import importlib
found = {{}}
for name in ("plain", "pkg", "pkg.deep", "fresh", "other"):
    try:
        module = importlib.import_module(name)
        found[name] = [getattr(module, "WHAT", None), module.__file__]
    except ImportError:
        found[name] = None
print(json.dumps(found))
"""


def steadied(tmp_path: Path, edit: str, *, is_kept: bool = True) -> tuple[dict[str, list[str] | None], str, Path, Path]:
    root, kept, links = tmp_path / "root", tmp_path / "kept", tmp_path / "links"
    for folder in (root, kept):
        write(folder, **{"plain.py": "WHAT = 'old'", "pkg/__init__.py": "WHAT = 'old'", "pkg/deep.py": "WHAT = 'old'"})
    write(root, **{"look.py": EDIT.format(edit=edit), "other.py": "WHAT = 'not kept'"})
    if is_kept:
        links.mkdir()
        (links / "root").symlink_to(root)
        (links / "kept").symlink_to(kept)
    steps_file = str(tmp_path / "steps")
    steps.create(steps_file)
    env = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    env.update(arm_environment(env, steps_file), ROBUST_CODE_STEADY=str(links))
    done = subprocess.run(
        [sys.executable, "look.py"], env=env, cwd=root, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr, root, kept


def test_a_file_that_is_edited_while_it_runs_is_imported_as_it_was(tmp_path: Path) -> None:
    found, said, root, kept = steadied(
        tmp_path,
        "pathlib.Path('plain.py').write_text('WHAT = 1'); pathlib.Path('pkg/deep.py').write_text('WHAT = 1')",
    )
    assert found["plain"] == ["old", str(kept / "plain.py")]
    assert found["pkg"] == ["old", str(root / "pkg" / "__init__.py")], "what was not edited runs where it is"
    assert found["pkg.deep"] == ["old", str(kept / "pkg" / "deep.py")]
    assert found["other"] == ["not kept", str(root / "other.py")]
    assert said == "robust-run: plain.py was edited since; this attempt goes on with what it was\n"


def test_a_file_that_is_written_again_as_it_was_is_no_edit(tmp_path: Path) -> None:
    found, said, root, _ = steadied(tmp_path, "pathlib.Path('plain.py').write_text(\"WHAT = 'old'\")")
    assert found["plain"] == ["old", str(root / "plain.py")]
    assert not said


def test_a_file_that_is_removed_while_it_runs_is_still_there(tmp_path: Path) -> None:
    found, said, _, kept = steadied(tmp_path, "import shutil; os.unlink('plain.py'); shutil.rmtree('pkg')")
    assert found["plain"] == ["old", str(kept / "plain.py")]
    assert found["pkg"] == ["old", str(kept / "pkg" / "__init__.py")]
    assert found["pkg.deep"] == ["old", str(kept / "pkg" / "deep.py")]
    assert found["fresh"] is None
    assert "was edited since" in said


def test_a_package_in_the_place_of_a_module_or_beside_it_is_an_edit_too(tmp_path: Path) -> None:
    replaced = (
        "os.unlink('pkg/deep.py'); os.mkdir('pkg/deep'); pathlib.Path('pkg/deep/__init__.py').write_text('WHAT = 1')"
    )
    beside = "os.mkdir('plain'); pathlib.Path('plain/__init__.py').write_text('WHAT = 1')"
    found, said, _, kept = steadied(tmp_path, f"{replaced}; {beside}")
    assert found["plain"] == ["old", str(kept / "plain.py")]
    assert found["pkg.deep"] == ["old", str(kept / "pkg" / "deep.py")]
    assert said == "robust-run: plain/__init__.py was edited since; this attempt goes on with what it was\n"


def test_a_module_in_the_place_of_a_package_is_an_edit_too(tmp_path: Path) -> None:
    found, _, _, kept = steadied(tmp_path, "os.rename('pkg', 'gone'); pathlib.Path('pkg.py').write_text('WHAT = 1')")
    assert found["pkg"] == ["old", str(kept / "pkg" / "__init__.py")]
    assert found["pkg.deep"] == ["old", str(kept / "pkg" / "deep.py")]


def test_a_package_that_is_new_is_as_it_lies_there(tmp_path: Path) -> None:
    found, said, root, _ = steadied(
        tmp_path, "os.mkdir('fresh'); pathlib.Path('fresh/__init__.py').write_text('WHAT = 1')"
    )
    assert found["fresh"] == [1, str(root / "fresh" / "__init__.py")]
    assert not said


def test_before_anything_was_kept_the_folder_counts(tmp_path: Path) -> None:
    found, said, root, _ = steadied(tmp_path, "pathlib.Path('plain.py').write_text('WHAT = 1')", is_kept=False)
    assert found["plain"] == [1, str(root / "plain.py")]
    assert not said


# --- numbers --------------------------------------------------------------------------------------------------------


class Optimizer:
    """As much of one as is looked at."""

    def __init__(self, *parameters: object) -> None:
        self.param_groups = [{"params": list(parameters)}]


def test_a_model_is_finite_or_not() -> None:
    torch = pytest.importorskip("torch")
    is_finite = load_worker_side().load("counting").is_finite
    fine, whole = torch.ones(3, requires_grad=True), torch.ones(3, dtype=torch.int64)
    assert is_finite(Optimizer(fine, whole, torch.empty(0), torch.empty(2, device="meta")), torch)
    for bad in (float("nan"), float("inf")):
        assert not is_finite(Optimizer(fine, torch.tensor([1.0, bad], dtype=torch.bfloat16)), torch)


def test_a_step_after_which_it_is_not_is_noted_once(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    worker, path = load_worker_side().load("counting"), str(tmp_path / "steps")
    steps.create(path)
    hook = worker.counter(*worker.open_cells(path), torch, path, 5)
    weights = torch.ones(3)
    optimizer = Optimizer(weights)
    for step in range(1, 9):
        if step == 3:
            weights[1] = float("nan")
        hook(optimizer, (), {})
    count = steps.read(path)
    assert count is not None
    assert (count.steps, count.not_finite_step) == (8, 3)


def test_after_its_probation_nobody_looks(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    worker, path = load_worker_side().load("counting"), str(tmp_path / "steps")
    steps.create(path)
    hook = worker.counter(*worker.open_cells(path), torch, path, 2)
    for weights in (torch.ones(1), torch.ones(1), torch.tensor([float("nan")])):
        hook(Optimizer(weights), (), {})
    count = steps.read(path)
    assert count is not None
    assert (count.steps, count.not_finite_step) == (3, 0)
