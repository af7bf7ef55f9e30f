"""What git knows: the commit a folder is at, and the code of any commit, with nothing that leads out of the folder."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from robust_run.errors import UserError
from robust_run.launcher.records.code.git import Commit
from robust_run.launcher.records.code.scan import Scan
from robust_run.launcher.records.code.work_tree import head_commit, work_tree_of


def git(folder: Path, *words: str) -> str:
    author = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "init.defaultBranch=main")
    try:
        done = subprocess.run(["git", *author, *words], cwd=folder, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        pytest.skip("git is not installed")
    return done.stdout.strip()


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    (folder / "sub").mkdir(parents=True)
    git(folder, "init", "-q")
    (folder / "train.py").write_text("one\n")
    (folder / "sub" / "run.sh").write_text("#!/bin/sh\n")
    (folder / "sub" / "run.sh").chmod(0o755)
    (folder / "blob.bin").write_bytes(b"\0\1")
    (folder / "in.py").symlink_to("train.py")
    (folder / "out.py").symlink_to("../../etc/passwd")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "one")
    return folder


def test_the_commit_is_read_from_gits_files_in_all_their_forms(repo: Path, tmp_path: Path) -> None:
    head = git(repo, "rev-parse", "HEAD")
    assert work_tree_of(str(repo / "sub")) == str(repo)
    assert head_commit(str(repo)) == head
    git(repo, "pack-refs", "--all")
    assert head_commit(str(repo)) == head
    git(repo, "worktree", "add", "-q", str(tmp_path / "linked"), "-b", "other")
    assert head_commit(str(tmp_path / "linked")) == head
    git(repo, "checkout", "-q", "--detach")
    assert head_commit(str(repo)) == head
    (repo / ".git" / "HEAD").write_text("ref: ../../../etc/passwd\n")
    assert head_commit(str(repo)) == ""
    assert head_commit(str(tmp_path)) == ""


def test_a_folder_and_its_commit_hold_the_same_code(repo: Path, tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    git(library, "init", "-q")
    (library / "lib.py").write_text("A = 1\n")
    git(library, "add", ".")
    git(library, "commit", "-qm", "one")
    git(repo, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library), "vendor/library")
    write = {
        "README.md": "x",
        "words.txt": "x",
        "gen/x.py": "x",
        ".gitignore": "gen/\n",
        "runs/one/journal.jsonl": "{}",
    }
    for name, text in {**write, "runs/one/code/at/x/train.py": "x", "wandb/x.py": "x", "start": "#!/bin/sh\n"}.items():
        (repo / name).parent.mkdir(parents=True, exist_ok=True)
        (repo / name).write_text(text)
    git(repo, "add", "-A", "-f")
    git(repo, "commit", "-qm", "all of it")
    scan = Scan(str(repo))
    files, left = Commit(str(repo), "HEAD").files()
    assert sorted(each[0] for each in files) == [each.path for each in scan.files]
    assert [each.path for each in scan.files] == [".gitignore", "in.py", "start", "sub/run.sh", "train.py"]
    assert next(each.reason for each in left if each.path == "vendor/library") == "is a repository of its own"
    assert "vendor" in {each.path for each in scan.left}, "and copies lead to it"


def test_the_script_of_a_commit_is_code_whatever_it_is_called(repo: Path) -> None:
    (repo / "train.txt").write_text("print(1)\n")
    git(repo, "add", ".")
    git(repo, "commit", "-qm", "two")
    assert "train.txt" in [each[0] for each in Commit(str(repo), "HEAD", "train.txt").files()[0]]


def test_the_code_of_a_commit(repo: Path) -> None:
    (repo / "train.py").write_text("uncommitted\n")
    files, left = Commit(str(repo), "HEAD").files()
    assert sorted(files) == [
        ("in.py", b"", False, "train.py"),
        ("sub/run.sh", b"#!/bin/sh\n", True, ""),
        ("train.py", b"one\n", False, ""),
    ]
    assert {each.path for each in left} == {"blob.bin", "out.py"}
    below, _ = Commit(str(repo / "sub"), "main").files()
    assert [each[0] for each in below] == ["run.sh"]


@pytest.mark.parametrize("ref", ["", "nothing", "--help", "-x", "0" * 40, "main^{tree}", "a b"])
def test_a_commit_that_is_not_there_is_said(repo: Path, ref: str) -> None:
    with pytest.raises(UserError, match=r"--ref"):
        Commit(str(repo), ref)


def test_a_folder_without_git_has_no_commits(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no git work tree"):
        Commit(str(tmp_path), "HEAD")
