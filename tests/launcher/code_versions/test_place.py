"""One node's code: what is captured, and where the workers of an attempt find the version that they shall run."""

from __future__ import annotations

import itertools
import os
import py_compile
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from robust_run.launcher.agent.code_versions.place import START, CodePlace, seen_by_program, seen_by_tracer
from robust_run.launcher.control.code_transfer import parts_of
from robust_run.launcher.model.code_events import CodeUse, CodeVersion
from robust_run.launcher.model.job import (
    JobSpec,
    OutputStreams,
)
from robust_run.launcher.records.code.capture import tree_id_of
from robust_run.launcher.records.code.errors import LackingError
from robust_run.launcher.records.code.scan import Scan


def spec(folder: Path, mode: str = "auto", argv: tuple[str, ...] = ("train.py", "--lr", "1")) -> JobSpec:
    return JobSpec(
        argv=("python", "-u", *argv),
        script=argv[0],
        is_python=True,
        nproc=1,
        run_id="r",
        rdzv_id="r",
        log_dir=str(folder / "runs"),
        streams=OutputStreams(redirects=(), tee=(), shown=()),
        code=mode,
    )


def place(folder: Path, mode: str = "auto", run: str = "r", **more: tuple[str, ...]) -> CodePlace:
    return CodePlace(spec(folder, mode, **more), str(folder), str(folder / "runs" / run), lambda: 0.0, "host", "ann")


def captured(here: CodePlace) -> tuple[CodeVersion, str]:
    return here.keep(here.see(1.0))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("import helper\n")
    (tmp_path / "helper.py").write_text("A = 1\n")
    (tmp_path / "data.bin").write_bytes(b"\0" * 100)
    return tmp_path


def test_auto_stays_in_the_folder_until_that_is_edited(folder: Path) -> None:
    here = place(folder)
    version, why = captured(here)
    assert (version.number, version.source, why) == (1, f"host:{folder}", "")
    use = CodeUse(number=1, tree=version.tree)
    ground = here.ground(use)
    assert ground.copy == ""
    assert here.argv(("python", "-u", "train.py", "--lr", "1"), ground) == ("python", "-u", "train.py", "--lr", "1")
    (folder / "helper.py").write_text("A = 2\n")
    ground = here.ground(use)
    assert Path(ground.copy).parent == folder / "runs" / "r" / "code" / "at"
    assert (Path(ground.copy) / "helper.py").read_text() == "A = 1\n"
    assert (Path(ground.copy) / "data.bin").resolve() == folder / "data.bin"
    assert here.argv(("python", "-u", "train.py"), ground) == ("python", "-u", f"{ground.copy}/train.py")
    (folder / "helper.py").write_text("A = 1\n")
    assert here.ground(use).copy == "", "and again when the edit is undone"


def compiled(source: Path, at_ns: int) -> Path:
    """Have Python compile a file as an import does, at a moment."""
    made = Path(py_compile.compile(str(source), doraise=True))
    os.utime(made, ns=(at_ns, at_ns))
    return made


@pytest.mark.parametrize(
    ("what", "text", "edited_ns", "compiled_ns", "is_copied"),
    [
        ("an edit of the same second and length", "A = 2\n", 900, 500, True),
        ("another length", "A = 22\n", 900, 500, False),
        ("another second", "A = 2\n", 10**9 + 900, 500, False),
        ("what was compiled since", "A = 2\n", 900, 1000, False),
        ("nothing compiled", "A = 2\n", 900, 0, False),
    ],
)
def test_what_was_compiled_of_the_version_before_is_not_taken_for_the_next(
    folder: Path, what: str, text: str, edited_ns: int, compiled_ns: int, is_copied: bool
) -> None:
    """Python would: it compares whole seconds and lengths. On other nodes, in a copy, the new one would run."""
    second_ns, helper = 1_700_000_000 * 10**9, folder / "helper.py"
    here = place(folder)
    os.utime(helper, ns=(second_ns, second_ns))
    if compiled_ns:
        compiled(helper, second_ns + compiled_ns)
    version, _ = captured(here)
    assert here.ground(CodeUse(number=1, tree=version.tree, is_only=True)).copy == ""
    helper.write_text(text)
    os.utime(helper, ns=(second_ns + edited_ns, second_ns + edited_ns))
    if compiled_ns > edited_ns:
        compiled(helper, second_ns + compiled_ns)
    newer = tree_id_of(Scan(str(folder), leave=(str(folder / "runs"),)))
    assert here.has(newer)
    ground = here.ground(CodeUse(number=2, tree=newer))
    assert bool(ground.copy) == is_copied, what
    if is_copied:
        assert (Path(ground.copy) / "helper.py").read_text() == text
    seen = [sys.executable, "-c", "import helper; print(helper.A)"]
    done = subprocess.run(seen, cwd=ground.copy or folder, capture_output=True, text=True, timeout=200, check=True)
    assert f"A = {done.stdout}" == text, "what runs is what was written"


def test_a_copy_has_what_is_compiled_of_it_for_itself(folder: Path) -> None:
    (folder / "pkg").mkdir()
    for source in (folder / "helper.py", folder / "pkg" / "__init__.py"):
        source.touch()
        py_compile.compile(str(source), doraise=True)
    here = place(folder, "copy")
    version, _ = captured(here)
    copy = Path(here.ground(CodeUse(number=1, tree=version.tree)).copy)
    assert (copy / "pkg" / "__init__.py").is_file()
    assert not os.path.lexists(copy / "__pycache__") and not os.path.lexists(copy / "pkg" / "__pycache__")


def test_no_copy_leads_back_to_where_it_lies(folder: Path) -> None:
    (folder / ".gitignore").write_text("outputs/\n")
    (folder / "outputs" / "ckpt").mkdir(parents=True)
    for log_dir in ("robust-runs", "outputs/runs"):
        job = msgspec.structs.replace(spec(folder, "copy"), log_dir=str(folder / log_dir))
        here = CodePlace(job, str(folder), str(folder / log_dir / "r"), lambda: 0.0, "host", "ann")
        version, _ = captured(here)
        copy = Path(here.ground(CodeUse(number=1, tree=version.tree)).copy)
        assert (copy / "outputs" / "ckpt").resolve() == folder / "outputs" / "ckpt", (
            "what is written there is found again"
        )
        assert not (copy / log_dir).exists()
        reached = {os.path.realpath(each) for each, _, _ in os.walk(copy, followlinks=True)}
        assert str(copy.parent) not in reached


def test_copy_never_runs_in_the_folder_and_in_place_never_elsewhere(folder: Path) -> None:
    copied = place(folder, "copy")
    version, _ = captured(copied)
    assert copied.ground(CodeUse(number=1, tree=version.tree)).copy
    there = place(folder, "in-place", "other")
    version, why = captured(there)
    assert (version.tree, why) == ("", "")
    assert there.ground(CodeUse(number=1)).copy == ""
    assert not (folder / "runs" / "other").exists()


def test_arguments_and_variables_are_set_in_place_too(folder: Path) -> None:
    here = place(folder, "in-place")
    ground = here.ground(CodeUse(number=2, settings={"lr": "9"}, env={"A": "b"}))
    assert here.argv(("python", "-u", "train.py", "--lr", "1"), ground)[-1] == "9"
    assert seen_by_program(ground) == {"A": "b", "ROBUST_CODE_VERSION": "2"}
    assert seen_by_tracer(ground, 20) == {}


def test_a_version_on_probation_in_a_copy_is_armed_for_it(folder: Path) -> None:
    here = place(folder, "copy")
    version, _ = captured(here)
    ground = here.ground(CodeUse(number=2, tree=version.tree, on_probation=True))
    assert seen_by_tracer(ground, 20) == {
        "ROBUST_CODE_ROOT": str(folder),
        "ROBUST_CODE_COPY": ground.copy,
        "ROBUST_CODE_PROBATION": "20",
    }
    assert seen_by_program(ground)["ROBUST_CODE_VERSION"] == f"2-{version.tree[:10]}"


def test_what_is_not_here_is_lacking_until_it_comes(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    here = place(folder)
    version, _ = captured(here)
    elsewhere = tmp_path_factory.mktemp("other")
    (elsewhere / "train.py").write_text("something else\n")
    other = place(elsewhere)
    assert not other.has(version.tree)
    with pytest.raises(LackingError):
        other.ground(CodeUse(number=1, tree=version.tree))
    parts = list(parts_of(here.store, version.tree))
    assert [other.take(part) for part in parts][-1]
    assert (Path(other.ground(CodeUse(number=1, tree=version.tree)).copy) / "train.py").read_text() == "import helper\n"


def test_a_node_that_had_no_time_for_the_whole_work_tree_says_which_folder_the_code_is_of(folder: Path) -> None:
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    inner = folder / "examples"
    inner.mkdir()
    (inner / "train.py").write_text("print()\n")
    job = msgspec.structs.replace(spec(folder), argv=("python", "-u", "examples/train.py"), script="examples/train.py")
    ticks = itertools.count()
    #: Half a second goes by with the first look at the clock, once: the whole work tree takes too long.
    busy = CodePlace(job, str(folder), str(folder / "runs" / "a"), lambda: min(float(next(ticks)), 1.0), "host", "ann")
    version, _ = captured(busy)
    assert version.source == f"host:{inner}"
    idle = CodePlace(job, str(folder), str(folder / "runs" / "b"), lambda: 0.0, "other", "ann")
    use = CodeUse(number=1, tree=version.tree)
    assert not idle.has(version.tree), "it finds the whole work tree"
    for part in parts_of(busy.store, version.tree):
        idle.take(part)
    ground = idle.ground(use)
    assert (ground.root, ground.copy) == (str(inner), "")
    (inner / "train.py").write_text("print(1)\n")
    ground = idle.ground(use)
    assert idle.argv(job.argv, ground) == ("python", "-u", f"{ground.copy}/train.py")


def test_a_node_with_the_same_folder_needs_nothing_sent(folder: Path) -> None:
    version, _ = captured(place(folder))
    other = place(folder, run="another")
    assert other.has(version.tree)
    assert other.store.has(version.tree), "and keeps it, for when the folder is edited"


def test_a_version_without_the_script_is_not_put_in_place(folder: Path) -> None:
    here = place(folder)
    captured(here)
    (folder / "train.py").rename(folder / "main.py")
    without = place(folder, run="r", argv=("main.py",))
    version, _ = captured(without)
    (folder / "main.py").rename(folder / "train.py")
    with pytest.raises(LackingError, match=r"train\.py"):
        here.ground(CodeUse(number=2, tree=version.tree))


def test_what_cannot_be_captured_runs_in_place_and_says_why(folder: Path) -> None:
    (folder / "train.py").write_bytes(b"#" * (2 << 20))
    version, why = captured(place(folder))
    assert version.tree == ""
    assert "larger than" in why
    nobodys = place(folder, argv=("-m", "torch.distributed.nothing"))
    assert "folder of the user's" in captured(nobodys)[1]


def test_what_the_program_writes_beside_its_code_is_no_edit(folder: Path) -> None:
    (folder / "state.json").write_text("{}")
    here = place(folder)
    version, _ = captured(here)
    (folder / "state.json").write_text('{"step": 9}')
    (folder / "outputs").mkdir()
    (folder / "outputs" / "config.yaml").write_text("lr: 1")
    assert here.ground(CodeUse(number=1, tree=version.tree, is_only=True)).copy == ""
    updated = here.ground(CodeUse(number=1, tree=version.tree))
    assert (Path(updated.copy) / "state.json").read_text() == "{}", (
        "but once there are versions, each is exactly what it was"
    )
    (folder / "helper.py").write_text("A = 2\n")
    assert here.ground(CodeUse(number=1, tree=version.tree, is_only=True)).copy


def test_a_job_that_was_told_what_to_start_with_takes_that_and_not_what_lies_in_the_folder(folder: Path) -> None:
    first = place(folder, run="first")
    version, _ = captured(first)
    (folder / "helper.py").write_text("A = 2\n")
    code = folder / "runs" / "second" / "code"
    code.mkdir(parents=True)
    for name in ("objects", "trees"):
        (code / name).symlink_to(folder / "runs" / "first" / "code" / name)
    told = msgspec.structs.replace(version, number=7, parents=(6,), settings={"lr": "2"})
    (code / START).write_bytes(msgspec.json.encode(told))
    here = place(folder, run="second")
    found, why = captured(here)
    assert (found.number, found.parents, found.tree, found.settings, why) == (1, (), version.tree, {"lr": "2"}, "")
    ground = here.ground(CodeUse(number=1, tree=found.tree, settings=found.settings, is_only=True))
    assert (Path(ground.copy) / "helper.py").read_text() == "A = 1\n"


def test_what_it_was_told_and_is_not_there_is_said(folder: Path) -> None:
    code = folder / "runs" / "r" / "code"
    code.mkdir(parents=True)
    (code / START).write_bytes(msgspec.json.encode(CodeVersion(number=2, tree="a" * 64)))
    found, why = captured(place(folder))
    assert (found.tree, why) == ("", "the code aaaaaaaaaa is not here")
