"""Keys: what changes them, what does not, and how a miss is explained."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.snapshot import platforms
from robust_run.snapshot.errors import SetupRefused
from robust_run.snapshot.ingredients import collect
from robust_run.snapshot.roots import ask, captured_roots, of_this_interpreter
from robust_run.snapshot.rules import key, mentions
from robust_run.snapshot.rules.types import Root

FACTS = platforms.SetupFacts(
    platform=platforms.here().platform, python_build="3.11", prefix="/opt/env", base_prefix="/usr", gpu="none"
)


def key_of(folder: Path, *commands: str, **changes: Any) -> key.Key:
    settings: dict[str, Any] = {
        "cwd": str(folder),
        "roots": (Root(folder="0", path=str(folder / "env")),),
        "facts": FACTS,
    }
    settings |= {"environment": {}, **changes}
    return key.make(collect(commands or ("pip install x",), **settings).ingredients)


def changed(one: key.Key, other: key.Key) -> list[str]:
    return [difference.name for difference in key.compare(one, other)]


def test_the_order_of_ingredients_does_not_matter_and_their_names_do() -> None:
    a, b = key.ingredient("a", "1"), key.ingredient("b", "2")
    assert key.make([a, b]) == key.make([b, a])
    assert key.make([key.ingredient("a", "2"), key.ingredient("b", "1")]).digest != key.make([a, b]).digest
    with pytest.raises(SetupRefused, match="twice"):
        key.make([a, a])


@given(st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), unique_by=lambda pair: pair[0], max_size=6))
def test_a_key_compared_with_itself_has_no_difference_and_one_line_per_ingredient(pairs: list[tuple[str, str]]) -> None:
    made = key.make(key.ingredient(name, content) for name, content in pairs)
    assert key.compare(made, made) == []
    assert len(key.explain(made)) == 1 + len(pairs)
    one_more = key.make([*made.ingredients, key.ingredient("something else", "")])
    assert changed(made, one_more) == ["something else"]
    assert one_more.digest != made.digest


def test_credentials_change_nothing_and_are_shown_nowhere() -> None:
    command = "pip install --index-url https://me:{}@host/simple?token={} x"
    one, other = (key.ingredient("c", key.blanked(command.format(secret, secret))) for secret in ("s3cret", "other"))
    assert one == other
    assert "s3cret" not in one.shown


def test_two_that_look_alike_are_told_apart_by_digest() -> None:
    one, other = (key.make([key.ingredient("c", "x" * 300 + end)]) for end in "ab")
    (difference,) = key.compare(one, other)
    assert difference.here != difference.there


def test_the_bytes_of_requirement_files_count_and_of_those_they_name(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "requirements.txt").write_text("x==1\n-r sub/more.txt\n")
    (tmp_path / "sub/more.txt").write_text("y\n--constraint=limits.txt\n./z.whl ; python_version > '3'\n")
    (tmp_path / "sub/limits.txt").write_text("w<2\n")
    (tmp_path / "sub/z.whl").write_bytes(b"wheel")
    command = "pip install -r requirements.txt"
    before = key_of(tmp_path, command)
    assert {"file requirements.txt", "file sub/more.txt", "file sub/limits.txt", "file sub/z.whl"} <= {
        item.name for item in before.ingredients
    }
    (tmp_path / "sub/z.whl").write_bytes(b"other")
    assert changed(before, key_of(tmp_path, command)) == ["file sub/z.whl"]
    (tmp_path / "sub/limits.txt").unlink()
    with pytest.raises(SetupRefused, match=r"limits\.txt: No such file"):
        key_of(tmp_path, command)


def test_requirement_files_that_name_each_other_are_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("-r b.txt\n")
    (tmp_path / "b.txt").write_text("-r a.txt\n")
    assert "file b.txt" in {item.name for item in key_of(tmp_path, "pip install -r a.txt").ingredients}


def test_a_project_counts_by_its_code_when_it_is_copied_and_by_its_description_in_place(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text("[project]\n")
    (project / "code.py").write_text("1")
    copied, in_place = key_of(tmp_path, "pip install ./project"), key_of(tmp_path, "pip install -e ./project[dev]")
    (project / "code.py").write_text("2")
    assert changed(copied, key_of(tmp_path, "pip install ./project")) == ["folder project"]
    assert changed(in_place, key_of(tmp_path, "pip install -e ./project[dev]")) == []
    (project / "pyproject.toml").write_text("[project]\nname='x'\n")
    assert changed(in_place, key_of(tmp_path, "pip install -e ./project[dev]")) == ["folder project"]


BUILT = (
    "build/lib/pkg/code.py", "build/lib.linux-x86_64-cpython-311/pkg/c.so", "build/bdist.linux-x86_64/x", "build/temp.linux/c.o",
    "build/cp311/meson.log", "pkg.egg-info/SOURCES.txt", "src/pkg.egg-info/PKG-INFO", "pkg/__pycache__/code.cpython-311.pyc",
    "pkg/code.pyc", "_skbuild/x/y", ".eggs/x.py", "dist/pkg-1.0-py3-none-any.whl", "dist/pkg-1.0.tar.gz", ".git/index",
)  # fmt: skip


@pytest.mark.parametrize("name", BUILT)
def test_what_a_build_writes_into_a_project_changes_no_key(tmp_path: Path, name: str) -> None:
    """Else the second start, and the node that comes while the first one builds, would build again."""
    (tmp_path / "project/pkg").mkdir(parents=True)
    (tmp_path / "project/pyproject.toml").write_text("[project]\n")
    before = key_of(tmp_path, "pip install ./project")
    place = tmp_path / "project" / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("built")
    assert changed(before, key_of(tmp_path, "pip install ./project")) == []


def test_a_folder_that_says_that_it_can_be_made_again_changes_no_key(tmp_path: Path) -> None:
    (tmp_path / "project/target/release").mkdir(parents=True)
    (tmp_path / "project/pyproject.toml").write_text("[project]\n")
    (tmp_path / "project/target/CACHEDIR.TAG").write_text("Signature: 8a477f597d28d172789f06886806bc55\n# cargo\n")
    before = key_of(tmp_path, "pip install ./project")
    (tmp_path / "project/target/release/lib.so").write_text("built")
    assert changed(before, key_of(tmp_path, "pip install ./project")) == []


@pytest.mark.parametrize(
    "name", ["build/helper.py", "src/build/lib/code.py", "dist/data.json", "lib/code.py", "target/x.py"]
)
def test_sources_in_folders_that_are_only_called_so_count(tmp_path: Path, name: str) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project/pyproject.toml").write_text("[project]\n")
    before = key_of(tmp_path, "pip install ./project")
    place = tmp_path / "project" / name
    place.parent.mkdir(parents=True)
    place.write_text("source")
    assert changed(before, key_of(tmp_path, "pip install ./project")) == ["folder project"]


def test_a_package_called_build_counts(tmp_path: Path) -> None:
    (tmp_path / "project/build/lib").mkdir(parents=True)
    (tmp_path / "project/pyproject.toml").write_text("[project]\n")
    (tmp_path / "project/build/__init__.py").touch()
    before = key_of(tmp_path, "pip install ./project")
    (tmp_path / "project/build/lib/code.py").write_text("source")
    assert changed(before, key_of(tmp_path, "pip install ./project")) == ["folder project"]


def test_a_requirement_file_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SetupRefused, match="it is a pipe"):
        key_of(tmp_path, "pip install -r pipe")


def test_a_script_that_a_command_runs_counts(tmp_path: Path) -> None:
    (tmp_path / "install.sh").write_text("make")
    before = key_of(tmp_path, "cd . && bash install.sh")
    (tmp_path / "install.sh").write_text("make -j")
    assert changed(before, key_of(tmp_path, "cd . && bash install.sh")) == ["file install.sh"]


def test_what_is_installed_and_allow_listed_variables_count(tmp_path: Path) -> None:
    before = key_of(tmp_path, environment={"HOME": "/a"})
    assert changed(before, key_of(tmp_path, environment={"HOME": "/b"})) == []
    assert changed(before, key_of(tmp_path, environment={"CFLAGS": "-O3"})) == ["variable CFLAGS"]
    assert changed(before, key_of(tmp_path, environment={"MINE": "1"}, variables=("MINE",))) == ["variable MINE"]
    info = tmp_path / "env/lib/python3.11/site-packages/x-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "RECORD").write_text("a")
    installed = key_of(tmp_path)
    assert changed(before, installed) == ["installed in root 0"]
    (info / "RECORD").write_text("b")
    assert changed(installed, key_of(tmp_path)) == ["installed in root 0"]


def test_platform_and_gpu_count(tmp_path: Path) -> None:
    other = msgspec.structs.replace(FACTS, gpu="NVIDIA H200, driver 550")
    assert changed(key_of(tmp_path), key_of(tmp_path, facts=other)) == ["gpu"]


def test_no_command_has_no_key(tmp_path: Path) -> None:
    with pytest.raises(SetupRefused, match="no set-up command"):
        collect([], cwd=str(tmp_path), roots=(), facts=FACTS, environment={})


@pytest.mark.parametrize(
    ("requirement", "is_pinned"),
    [
        ("x==1.0", True), ("x[extra]==1.0 ; python_version < '4'", True), ("x === 1.0", True), ("x==1.*", False), ("x", False),
        ("x>=1", False), ("x==1,>0", False), ("./x.whl", True), ("x @ file:///x.whl", True), ("x @ git+https://h/x@main", False),
        ("x @ git+https://h/x@" + "a" * 40, True), ("x==1.0 --hash=sha256:ab", True),
    ],
)  # fmt: skip
def test_which_requirements_allow_one_version(requirement: str, is_pinned: bool) -> None:
    assert mentions.is_pinned(requirement) is is_pinned


def test_whether_a_setup_is_pinned(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"cwd": str(tmp_path), "roots": (), "facts": FACTS, "environment": {}}
    (tmp_path / "r.txt").write_text("# comment\nx==1.0\n")
    assert collect(["pip install -r r.txt y==2"], **settings).pinned
    assert not collect(["pip install -r r.txt y"], **settings).pinned
    assert collect(["uv pip install --index-strategy unsafe-best-match y==2"], **settings).pinned
    assert collect(["make install"], **settings).pinned


@given(st.text(max_size=80))
def test_no_command_and_no_requirement_file_is_too_strange_to_be_read(text: str) -> None:
    for mention in (*mentions.in_command(text), *mentions.in_requirements(text)):
        mentions.local_path(mention.text)
        mentions.is_pinned(mention.text)


def test_gpus_by_model_and_driver(tmp_path: Path) -> None:
    assert platforms.gpu_class(str(tmp_path)) == "none"
    card = tmp_path / "driver/nvidia/gpus/0000:01"
    card.mkdir(parents=True)
    (tmp_path / "driver/nvidia/version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue\n")
    (card / "information").write_text("Model: \t\t NVIDIA H200\nIRQ: 3\n")
    assert platforms.gpu_class(str(tmp_path)) == "NVIDIA H200, driver 550"


def test_roots_are_outermost_and_never_the_system() -> None:
    found = captured_roots("/opt/env", ["/opt/env/lib/site-packages", "/usr/local/lib/p"], "/home/me/.local")
    assert [root.path for root in found] == ["/home/me/.local", "/opt/env", "/usr/local/lib/p"]
    for path in ("/", "/proc/self", "relative", "/a/../b", "/tmp"):
        with pytest.raises(SetupRefused, match="cannot be captured"):
            captured_roots(path, [])


def test_this_interpreter_says_of_itself_what_it_says_when_it_is_asked() -> None:
    environment = dict(os.environ)
    assert of_this_interpreter(environment, environment) == ask([sys.executable], environment)
    assert of_this_interpreter({**environment, "PYTHONNOUSERSITE": "x"}, environment) is None
