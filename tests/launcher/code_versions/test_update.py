"""Making an update: where a change began, what it is merged with, what is checked; against a controller that is made up."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from robust_run.errors import UserError
from robust_run.launcher.core import code_ledger as rules
from robust_run.launcher.core import ledger_queries as queries
from robust_run.launcher.model.code_events import CodeVersion, Ledger
from robust_run.launcher.operator.code.remote import MovedError, Versions
from robust_run.launcher.operator.code.update import Maker, UpdateRequest
from robust_run.launcher.operator.views.code_words import CodeView, RefusedWish, UpdateWish
from robust_run.launcher.operator.views.status_types import ActionView
from robust_run.launcher.records.code.capture import CodeRoot, look
from robust_run.launcher.records.code.errors import CodeError
from robust_run.launcher.records.code.tree_store import TreeStore
from robust_run.launcher.records.code.types import CodeTree

LINES = "A = 1\n\n\n\nB = 1\n"


class Job(Versions):
    """A controller as far as updates need one."""

    def __init__(self, folder: Path, store: Path, mode: str = "auto") -> None:
        super().__init__(None, "")
        self.store = TreeStore(str(store))
        self.folder = folder
        self.refusals: list[str] = []
        self.interrupt: list[CodeVersion] = []
        self.wishes: list[UpdateWish] = []
        self._mode = mode
        tree = self.store.put_tree(self.store.put_captured(look(CodeRoot(folder=str(folder), entry="train.py"))).tree)
        first = CodeVersion(number=1, tree=tree if mode != "in-place" else "", source=f"host:{folder}", by="start")
        self.code = rules.captured(Ledger(), first, 0)

    def view(self) -> CodeView:
        argv = (sys.executable, "-u", "train.py", "--lr", "1")
        return CodeView(code=self.code, mode=self._mode, argv=argv, cwd=str(self.folder), host="host")

    def fetch(self, tree_id: str, store: TreeStore) -> CodeTree:
        if not tree_id:
            return CodeTree()
        tree = self.store.tree(tree_id)
        for file in tree.files:
            store.put(self.store.get(file.digest))
        store.put_tree(tree)
        return tree

    def send(self, tree_id: str, store: TreeStore) -> None:
        for file in store.tree(tree_id).files:
            self.store.put(store.get(file.digest))
        self.store.put_tree(store.tree(tree_id))

    def stage(self, wish: UpdateWish) -> ActionView:
        if self.interrupt:
            self.code = rules.staged(self.code, self.interrupt.pop(), 0.0)
        self.wishes.append(wish)
        if queries.is_pending(self.code, wish.version):
            return ActionView(done="timed")
        if wish.version.parents[0] != queries.head(self.code):
            raise MovedError("somebody was faster")
        why = queries.why_not(self.code, wish.version)
        if why:
            raise UserError(why)
        self.code = rules.staged(self.code, wish.version, 0.0)
        return ActionView(done="staged")

    def note_refusal(self, wish: RefusedWish) -> None:
        self.refusals.append(wish.reason)

    # --- for tests

    def update(self, folder: Path | None = None, **more: object) -> CodeVersion:
        request = UpdateRequest(by="ann", host="host", folder=str(folder or ""), **more)  # type: ignore[arg-type]
        Maker(self, request, {}, lambda _: None).make()
        return self.code.records[-1].version

    def text(self, name: str = "other.py") -> str:
        """What is newest says in a file."""
        version = self.code.records[queries.head(self.code) - 1].version
        return next(
            self.store.get(file.digest).decode() for file in self.store.tree(version.tree).files if file.path == name
        )


def write(folder: Path, other: str = LINES, train: str = "import other\n") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(train)
    (folder / "other.py").write_text(other)
    return folder


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path, Path]:
    job, ann, bob = (write(tmp_path / name) for name in ("job", "ann", "bob"))
    return job, ann, bob


@pytest.fixture
def job(folders: tuple[Path, Path, Path], tmp_path: Path) -> Job:
    return Job(folders[0], tmp_path / "store")


def change(folder: Path, **values: int) -> None:
    text = (folder / "other.py").read_text()
    for name, value in values.items():
        old = next(line for line in text.splitlines() if line.startswith(f"{name} = "))
        text = text.replace(old, f"{name} = {value}")
    (folder / "other.py").write_text(text)


def test_the_jobs_own_folder_is_what_is_taken(job: Job, folders: tuple[Path, Path, Path]) -> None:
    change(folders[0], A=2)
    version = job.update(note="why")
    assert (version.number, version.parents, version.summary, version.note) == (2, (1,), "other.py +1 -1", "why")
    assert version.source == f"host:{folders[0]}"
    assert "A = 2" in job.text()
    with pytest.raises(UserError, match=r"nothing differs from version 2"):
        job.update()


def test_what_waits_already_can_be_wanted_at_another_time(job: Job, folders: tuple[Path, Path, Path]) -> None:
    change(folders[0], A=2)
    job.update(note="why")
    with pytest.raises(UserError, match=r"--when now"):
        job.update()
    assert job.update(now=True, timed=True).number == 2
    wish = job.wishes[-1]
    assert (wish.now, wish.version.number, wish.version.note, wish.version.by) == (True, 2, "why", "ann")
    assert job.update(due_after_s=60.0, timed=True).number == 2
    job.code = rules.begun(job.code, 1)
    with pytest.raises(UserError, match=r"nothing differs from version 2, which runs"):
        job.update(now=True, timed=True)


def test_where_nothing_differs_it_is_said_what_was_written_and_is_no_code(
    job: Job, folders: tuple[Path, Path, Path]
) -> None:
    (folders[0] / "words.txt").write_text("x")
    (folders[0] / "big.py").write_bytes(b"#" * (2 << 20))
    with pytest.raises(
        UserError, match=r"nothing differs from version 1.*big\.py \(is larger .*words\.txt \(is no code\)"
    ):
        job.update()
    change(folders[0], A=2)
    assert job.update().left_out == ("big.py is larger than 1024 KiB",)


def test_a_check_runs_for_arguments_too_but_not_without_code(folders: tuple[Path, Path, Path], tmp_path: Path) -> None:
    job = Job(folders[0], tmp_path / "store")
    with pytest.raises(CodeError, match=r"--check"):
        job.update(settings={"lr": "2"}, check="false")
    assert job.update(settings={"lr": "2"}, check="true").settings == {"lr": "2"}
    in_place = Job(folders[0], tmp_path / "other", "in-place")
    with pytest.raises(UserError, match=r"in place"):
        in_place.update(settings={"lr": "2"}, check="true")


def test_two_peoples_changes_are_merged_and_neither_undoes_the_others(
    job: Job, folders: tuple[Path, Path, Path]
) -> None:
    _, ann, bob = folders
    change(bob, B=2)
    job.update(bob)
    change(ann, A=2)
    job.update(ann)
    assert job.text() == LINES.replace("A = 1", "A = 2").replace("B = 1", "B = 2")
    change(ann, A=3)  # her folder still has not bob's change, and yet does not take it back
    job.update(ann)
    assert job.text() == LINES.replace("A = 1", "A = 3").replace("B = 1", "B = 2")
    change(bob, B=3)
    job.update(bob)
    assert job.text() == LINES.replace("A = 1", "A = 3").replace("B = 1", "B = 3")


def test_what_both_changed_is_refused_and_named(job: Job, folders: tuple[Path, Path, Path]) -> None:
    _, ann, bob = folders
    change(bob, B=2)
    job.update(bob)
    change(ann, B=3)
    with pytest.raises(CodeError, match=r"other\.py"):
        job.update(ann)
    assert len(job.code.records) == 2
    assert "other.py" in job.refusals[0]
    assert job.update(ann, base=2).number == 3, "whoever says that they have seen it may"
    assert "B = 3" in job.text()


def test_whoever_comes_second_merges_with_what_came_first(job: Job, folders: tuple[Path, Path, Path]) -> None:
    _, ann, bob = folders
    change(bob, B=2)
    before = job.code
    first = job.update(bob)
    job.code, job.interrupt = before, [first]  # it comes in between
    change(ann, A=2)
    version = job.update(ann)
    assert (version.number, version.parents) == (3, (2, 1))
    assert job.text() == LINES.replace("A = 1", "A = 2").replace("B = 1", "B = 2")


def test_a_merge_that_does_not_compile_is_refused(job: Job, folders: tuple[Path, Path, Path]) -> None:
    write(folders[1], LINES, "def f(:\n")
    with pytest.raises(CodeError, match=r"train\.py:1"):
        job.update(folders[1])
    assert len(job.code.records) == 1


def test_settings_alone_leave_the_code_what_it_is(job: Job, folders: tuple[Path, Path, Path]) -> None:
    change(folders[0], A=9)
    version = job.update(settings={"lr": "2"}, env={"FLAVOUR": "x"})
    assert version.tree == job.code.records[0].version.tree
    assert version.summary == "lr=2, FLAVOUR=x"
    assert job.update(env={"FLAVOUR": "y"}).settings == {"lr": "2"}, "what was set stays set"
    with pytest.raises(UserError, match=r"RANK"):
        job.update(env={"RANK": "1"})


def test_settings_between_two_updates_of_one_folder_change_nothing_for_them(
    job: Job, folders: tuple[Path, Path, Path]
) -> None:
    _, ann, bob = folders
    change(bob, B=2)
    job.update(bob)
    change(ann, A=2)
    job.update(ann)
    job.update(settings={"lr": "2"})
    change(ann, A=3)
    assert job.update(ann).settings == {"lr": "2"}
    assert job.text() == LINES.replace("A = 1", "A = 3").replace("B = 1", "B = 2")


def test_a_folder_without_the_script_or_none_at_all_is_refused(job: Job, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "x.py").write_text("")
    with pytest.raises(CodeError, match=r"train\.py"):
        job.update(tmp_path / "empty")
    with pytest.raises(UserError, match=r"--dir"):
        job.update(tmp_path / "nowhere")


def test_a_job_in_place_takes_settings_alone(folders: tuple[Path, Path, Path], tmp_path: Path) -> None:
    job = Job(folders[0], tmp_path / "store", "in-place")
    with pytest.raises(UserError, match=r"in place"):
        job.update()
    assert job.update(settings={"lr": "2"}).tree == ""


def test_the_check_runs_in_what_will_run(job: Job, folders: tuple[Path, Path, Path]) -> None:
    change(folders[0], A=2)
    check = f"{sys.executable} -c 'import other; assert other.A == 3'"
    with pytest.raises(CodeError, match=r"--check"):
        job.update(check=check)
    change(folders[0], A=3)
    assert job.update(check=check).number == 2


def test_what_was_rolled_back_is_not_what_a_change_is_read_against(job: Job, folders: tuple[Path, Path, Path]) -> None:
    change(folders[0], A=2)
    job.update()
    job.code = rules.rolled_back(rules.begun(job.code, 1), "boom")
    change(folders[0], B=2)
    job.update()
    assert job.text() == LINES.replace("A = 1", "A = 2").replace("B = 1", "B = 2"), (
        "the whole folder, not only the last edit"
    )
    assert msgspec.json.decode(msgspec.json.encode(job.view()), type=CodeView) == job.view()
