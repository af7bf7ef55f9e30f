"""What of a folder is taken as code, and what is left where it is, each with its reason."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from robust_run.launcher.records.code.capture import changed_since, left_out, look_first, roots_of
from robust_run.launcher.records.code.errors import CodeError, TooMuchError
from robust_run.launcher.records.code.program import program_of
from robust_run.launcher.records.code.scan import Scan
from robust_run.launcher.records.code.types import HOLDS_RUNS, CodeLimits


def write(root: Path, **files: str | bytes) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def scan(root: Path, **more: object) -> tuple[list[str], dict[str, str]]:
    found = Scan(str(root), **more)  # type: ignore[arg-type]
    return [each.path for each in found.files], {each.path: each.reason for each in found.left}


def test_code_is_taken_and_everything_else_is_left_and_said(tmp_path: Path) -> None:
    write(
        tmp_path,
        **{
            "train.py": "x",
            "conf/a.yaml": "x",
            "pkg/deep/m.py": "x",
            "run": "#!/bin/sh\n",
            "notes.txt": "x",
            "big.py": b"x" * (2 << 20),
            "blob.py": b"\0\1\2",
            "out/log.txt": "x",
            "secret/.env": "x",
            ".git/config": "x",
            "venv/pyvenv.cfg": "x",
            "venv/lib.py": "x",
            "gen/x.py": "x",
            ".gitignore": "gen/\n",
        },
    )
    files, left = scan(tmp_path)
    assert files == [".gitignore", "conf/a.yaml", "pkg/deep/m.py", "run", "train.py"]
    assert left["big.py"] == "is larger than 1024 KiB"
    assert left["blob.py"] == "is binary"
    assert left["notes.txt"] == "is no code"
    assert left["out"] == left["secret"] == "holds no code"
    assert left["venv"] == "is a virtual environment"
    assert left["gen"] == left[".git"] == "is ignored"


def test_the_script_is_code_whatever_it_is_called(tmp_path: Path) -> None:
    write(tmp_path, **{"train": "print(1)", ".gitignore": "train\n"})
    assert "train" in scan(tmp_path, always=("train",))[0]


def test_robustignore_has_the_last_word(tmp_path: Path) -> None:
    write(tmp_path, **{"a.py": "", "b.py": "", ".gitignore": "a.py\n", ".robustignore": "!a.py\nb.py\n"})
    files, left = scan(tmp_path)
    assert "a.py" in files
    assert left["b.py"] == "is ignored"


def test_links_inside_stay_links_and_others_are_left(tmp_path: Path) -> None:
    write(tmp_path, **{"root/a.py": "", "root/d/b.py": "", "outside.py": "secret"})
    root = tmp_path / "root"
    (root / "l.py").symlink_to("a.py")
    (root / "d" / "up.py").symlink_to("../a.py")
    (root / "pkg").symlink_to("d")
    (root / "out.py").symlink_to("../outside.py")
    (root / "abs.py").symlink_to(tmp_path / "outside.py")
    (root / "gone.py").symlink_to("nothing.py")
    (root / "loop.py").symlink_to("loop.py")
    found = Scan(str(root))
    assert {each.path: each.link for each in found.files if each.link} == {
        "l.py": "a.py",
        "d/up.py": "../a.py",
        "pkg": "d",
    }
    assert {"out.py", "abs.py", "gone.py", "loop.py"} <= {each.path for each in found.left}
    assert all(b"secret" not in each.data for each in found.files)


def test_odd_files_are_left_and_nothing_waits_for_them(tmp_path: Path) -> None:
    write(tmp_path, **{"a.py": ""})
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / os.fsdecode(b"\xff.py")).write_text("")
    files, left = scan(tmp_path)
    assert files == ["a.py"]
    assert left["pipe.py"] == "is no file"
    assert left[os.fsdecode(b"\xff.py")] == "is not text"


def test_run_directories_are_never_part_of_the_code(tmp_path: Path) -> None:
    write(tmp_path, **{"a.py": "", "runs/one/journal.jsonl": "", "runs/one/code/at/x/a.py": "", "logs/x.py": ""})
    files, left = scan(tmp_path, leave=(str(tmp_path / "logs"),))
    assert files == ["a.py"]
    assert left == {}, "nor are copies of it led there"


def test_folders_around_run_directories_are_led_to_in_parts(tmp_path: Path) -> None:
    write(
        tmp_path,
        **{
            "a.py": "",
            ".gitignore": "outputs/\n",
            "outputs/ckpt/1.pt": "",
            "outputs/runs/one/journal.jsonl": "",
            "outputs/deep/other.txt": "",
            "logs/notes.txt": "",
            "logs/metrics.json": "",
            "logs/one/journal.jsonl": "",
            "robust-runs/one/journal.jsonl": "",
        },
    )
    leave = (str(tmp_path / "outputs" / "runs"), str(tmp_path / "robust-runs"))
    files, left = scan(tmp_path, leave=leave)
    assert files == [".gitignore", "a.py"]
    assert left == {
        "outputs": HOLDS_RUNS,
        "outputs/ckpt": "is ignored",
        "outputs/deep": "is ignored",
        "logs": HOLDS_RUNS,
        "logs/metrics.json": "is no code",
        "logs/notes.txt": "is no code",
    }


def test_other_repositories_in_a_work_tree_are_left_whole(tmp_path: Path) -> None:
    write(
        tmp_path,
        **{"a.py": "", "sub/.git": "gitdir: ../.git/modules/sub", "sub/b.py": "", "own/.git/HEAD": "", "own/c.py": ""},
    )
    assert scan(tmp_path)[0] == ["a.py", "own/c.py", "sub/b.py"], "where git has no say they are code as any"
    write(tmp_path, **{".git/HEAD": "ref: x"})
    files, left = scan(tmp_path)
    assert files == ["a.py"]
    assert left["sub"] == left["own"] == "is a repository of its own"


def test_what_is_left_although_it_is_called_code_is_named(tmp_path: Path) -> None:
    big = b"x" * (2 << 20)
    write(
        tmp_path, **{"big.py": big, "blob.py": b"\0\1", "data.json": big, "weights.bin": big, "a.py": "", "v.txt": ""}
    )
    found = Scan(str(tmp_path))
    assert left_out(found.left) == ("big.py is larger than 1024 KiB", "blob.py is binary")
    for name in ("a.py", "big.py", "v.txt", "weights.bin"):
        os.utime(tmp_path / name, (2000.0, 2000.0))
    for name in ("blob.py", "data.json"):
        os.utime(tmp_path / name, (1000.0, 1000.0))
    written = changed_since(found.left, str(tmp_path), 1500.0)
    assert written == "big.py (is larger than 1024 KiB), v.txt (is no code), weights.bin (is no code)"


@pytest.mark.parametrize("limits", [CodeLimits(most_files=3), CodeLimits(most_entries=4), CodeLimits(most_bytes=10)])
def test_a_folder_that_is_more_than_code_is_given_up_soon(tmp_path: Path, limits: CodeLimits) -> None:
    write(tmp_path, **{f"d/e/{number}.py": "12345" for number in range(5)})
    with pytest.raises(TooMuchError, match=r"robustignore"):
        Scan(str(tmp_path), limits=limits)


def test_what_is_too_deep_is_left(tmp_path: Path) -> None:
    write(tmp_path, **{"d/e/f/a.py": "", "a.py": ""})
    files, left = scan(tmp_path, limits=CodeLimits(deepest=2))
    assert files == ["a.py"]
    assert left == {"d": "holds no code"}


def test_a_file_system_that_is_slow_is_not_waited_for(tmp_path: Path) -> None:
    write(tmp_path, **{"a.py": "", "b.py": ""})
    times = iter(range(0, 1000, 10))
    with pytest.raises(TooMuchError, match=r"took longer"):
        Scan(str(tmp_path), clock=lambda: float(next(times)))


def roots(argv: tuple[str, ...], cwd: Path) -> list[tuple[str, str]]:
    program = program_of(("python", "-u", *argv), is_python=True)
    found = roots_of(("python", "-u", *argv), program, str(cwd))
    return [(root.folder, root.entry) for root in found]


def test_the_work_tree_is_the_code_else_the_scripts_folder(tmp_path: Path) -> None:
    write(
        tmp_path, **{"repo/.git/HEAD": "ref: x", "repo/scripts/train.py": "", "plain/train.py": "", "plain/m/x.py": ""}
    )
    repo, plain = tmp_path / "repo", tmp_path / "plain"
    assert roots(("scripts/train.py",), repo) == [
        (str(repo), "scripts/train.py"),
        (str(repo / "scripts"), "train.py"),
    ]
    assert roots(("train.py",), plain) == [(str(plain), "train.py")]
    assert roots(("--", "train.py"), plain) == [(str(plain), "train.py")]
    assert roots(("-m", "m.x", "arg"), plain) == [(str(plain), "")]
    assert roots(("-m", "torch.distributed.thing"), plain) == [], "somebody else's code is not captured"
    assert roots(("m",), plain) == [(str(plain / "m"), "")]


def test_a_work_tree_that_is_too_large_leaves_the_scripts_folder(tmp_path: Path) -> None:
    write(tmp_path, **{".git/HEAD": "", "scripts/train.py": "", **{f"other/{n}.py": "" for n in range(9)}})
    program = program_of(("python", "-u", "scripts/train.py"), is_python=True)
    folders = roots_of(("python", "-u", "scripts/train.py"), program, str(tmp_path))
    root, found = look_first(folders, limits=CodeLimits(most_files=5))
    assert (root.folder, root.entry) == (str(tmp_path / "scripts"), "train.py")
    assert [each.path for each in found.files] == ["train.py"]


def test_a_script_that_cannot_be_kept_is_said(tmp_path: Path) -> None:
    write(tmp_path, **{"train.py": b"x" * (2 << 20)})
    program = program_of(("python", "-u", "train.py"), is_python=True)
    with pytest.raises(CodeError, match=r"larger than"):
        look_first(roots_of(("python", "-u", "train.py"), program, str(tmp_path)))


def test_what_programs_write_does_not_make_a_folder_one_of_code(tmp_path: Path) -> None:
    write(tmp_path, **{"a.py": "", "state.json": "{}", "out/metrics.json": "{}", "configs/ds.json": "{}"})
    files, left = scan(tmp_path)
    assert files == ["a.py", "configs/ds.json", "state.json"]
    assert left == {"out": "holds no code"}


def test_of_a_folder_that_is_everybodys_only_what_lies_in_it_is_taken(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    write(shared, **{"train.py": "", "helper.py": "", "somebody/elses.py": ""})
    shared.chmod(0o1777)
    program = program_of(("python", "-u", "train.py"), is_python=True)
    _, found = look_first(roots_of(("python", "-u", "train.py"), program, str(shared)))
    assert [each.path for each in found.files] == ["helper.py", "train.py"]
