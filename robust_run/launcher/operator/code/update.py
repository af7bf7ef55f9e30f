"""Makes an update: takes the code, merges it into what is newest, checks it, sends it, has it staged. For `robust update`.

Optimistic concurrency: if another version was staged while this one was made, it is made again from that.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping

import msgspec

from robust_run.errors import UserError
from robust_run.launcher.core import ledger_queries as queries
from robust_run.launcher.model.code_events import CodeRecord, CodeVersion
from robust_run.launcher.operator.code import check
from robust_run.launcher.operator.code.remote import MovedError, Versions
from robust_run.launcher.operator.views.code_words import CodeView, RefusedWish, UpdateWish
from robust_run.launcher.operator.views.status_types import ActionView
from robust_run.launcher.records.code.capture import CodeRoot, changed_since, commit_of, left_out, look
from robust_run.launcher.records.code.difference import changes, clause
from robust_run.launcher.records.code.errors import CodeError
from robust_run.launcher.records.code.git import Commit
from robust_run.launcher.records.code.merge import merge
from robust_run.launcher.records.code.program import program_of, script_path
from robust_run.launcher.records.code.settings import check_variables
from robust_run.launcher.records.code.tree_store import TreeStore, links_to
from robust_run.launcher.records.code.types import CodeFile, CodeTree, Left

#: How often an update is made anew because another one came first.
MOST_TRIES = 8


class UpdateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a user wants of an update."""

    ref: str = ""
    folder: str = ""
    settings: dict[str, str] = {}
    env: dict[str, str] = {}
    note: str = ""
    by: str
    host: str
    now: bool = False
    due_after_s: float = 0.0
    timed: bool = False
    """The time was said: where nothing is new, it is for what is pending."""
    check: str = ""
    check_s: float = 300.0
    slower: bool = False
    again: bool = False
    base: int = 0
    """The version that the change began at; 0: found out."""

    @property
    def is_about_code(self) -> bool:
        """Whether code is captured; with arguments or variables alone it is not."""
        return bool(self.ref or self.folder) or not (self.settings or self.env)


class UpdateSource(msgspec.Struct, frozen=True, kw_only=True):
    """Code that was taken from a folder or a commit."""

    tree: str
    source: str
    commit: str
    root: str
    left: tuple[Left, ...] = ()


class Maker:
    """Makes one update of one job."""

    def __init__(
        self, versions: Versions, request: UpdateRequest, env: Mapping[str, str], say: Callable[[str], None]
    ) -> None:
        self._versions = versions
        self._request = request
        self._env = env
        self._say = say

    def make(self) -> ActionView:
        """Stage the update and return what the controller says. Raises RobustRunError; a refusal is put on record."""
        check_variables(self._request.env)
        try:
            with tempfile.TemporaryDirectory(prefix="robust-update-") as folder:
                return self._make(TreeStore(folder))
        except CodeError as error:
            wish = RefusedWish(reason=str(error), by=self._request.by, note=self._request.note)
            self._versions.note_refusal(wish)
            raise

    def _make(self, store: TreeStore) -> ActionView:
        view = self._versions.view()
        first = queries.record_of(view.code, 1)
        if first is None:
            raise UserError(queries.why_no_code(view.code))
        source = self._take(view, first, store) if self._request.is_about_code else None
        for _ in range(MOST_TRIES):
            version = self._version(view, source, store)
            for tree in filter(None, (version.tree, version.taken)):
                self._versions.send(tree, store)
            try:
                return self._versions.stage(
                    UpdateWish(version=version, now=self._request.now, due_after_s=self._request.due_after_s)
                )
            except MovedError as error:
                self._say(f"{error}; made again")
                view = self._versions.view()
        raise UserError(f"{MOST_TRIES} other updates came first, one after the other; try again")

    # --- taking

    def _take(self, view: CodeView, first: CodeRecord, store: TreeStore) -> UpdateSource:
        request = self._request
        if why_not := queries.why_no_code(view.code):
            raise UserError(why_not)
        host, _, folder = first.version.source.partition(":")
        root = os.path.abspath(request.folder) if request.folder else folder
        if not os.path.isdir(root):
            where = "" if request.folder or host == request.host else f" of {host}"
            raise UserError(f"the folder {root!r}{where} is not here; give --dir PATH")
        entry = self._entry(view, folder)
        if request.ref:
            return self._take_commit(root, entry, store)
        scan = look(CodeRoot(folder=root, entry=entry))
        captured = store.put_captured(scan)
        tree = store.put_tree(captured.tree)
        _check_entry(captured.tree, entry, root)
        left = captured.left
        return UpdateSource(tree=tree, source=f"{request.host}:{root}", commit=commit_of(root), root=root, left=left)

    def _take_commit(self, root: str, entry: str, store: TreeStore) -> UpdateSource:
        commit = Commit(root, self._request.ref, entry)
        taken, _ = commit.files()
        files = tuple(
            CodeFile(path=path, link=link)
            if link
            else CodeFile(path=path, digest=store.put(data), size_bytes=len(data), executable=executable)
            for path, data, executable, link in sorted(taken)
        )
        tree = CodeTree(files=files)
        _check_entry(tree, entry, f"commit {commit.commit[:10]}")
        source = f"{self._request.host}:{root}@{commit.commit[:10]}"
        try:
            left = tuple(look(CodeRoot(folder=root, entry=entry)).left)  # workers find there what is no code
        except CodeError:
            left = ()
        return UpdateSource(tree=store.put_tree(tree), source=source, commit=commit.commit, root=root, left=left)

    @staticmethod
    def _entry(view: CodeView, folder: str) -> str:
        program = program_of(view.argv, is_python=view.is_python)
        script = script_path(view.argv, program, view.cwd)
        entry = os.path.relpath(script, folder) if script else ""
        return "" if entry == "." or entry.startswith("..") else entry

    # --- making

    def _version(self, view: CodeView, source: UpdateSource | None, store: TreeStore) -> CodeVersion:
        request, code = self._request, view.code
        number = queries.head(code)
        first, record = queries.record_of(code, 1), queries.record_of(code, number)
        assert first is not None and record is not None
        newest = record.version
        newest_tree = self._versions.fetch(newest.tree, store)
        base, tree_id = number, newest.tree
        if source is not None:
            base, tree_id = self._merged(view, source, newest, newest_tree, store)
        settings = {**newest.settings, **request.settings}
        env = {**newest.env, **request.env}
        if (tree_id, settings, env) == (newest.tree, newest.settings, newest.env):
            if number == code.pending and request.timed:
                return msgspec.structs.replace(newest, by=request.by, note=request.note or newest.note)
            left = changed_since(source.left, source.root, first.version.at_unix_s) if source is not None else ""
            also = f"; no part of the code, although written since the job began: {left}" if left else ""
            raise UserError(f"nothing differs from version {number}, which {_standing(view, number)}{also}")
        tree = self._versions.fetch(tree_id, store) if not tree_id or not store.has(tree_id) else store.tree(tree_id)
        differing = changes(newest_tree, tree, store.get)
        if tree_id != newest.tree or request.check:
            changed = [each.path for each in differing if each.kind != "removed"]
            self._check(view, tree_id, tree, changed, source, store)
        given = [f"{name}={value}" for name, value in (*request.settings.items(), *request.env.items())]
        summary = ", ".join(filter(None, (clause(differing), *given)))[:400]
        return CodeVersion(
            number=len(code.records) + 1,
            tree=tree_id,
            taken=source.tree if source is not None and source.tree != tree_id else "",
            parents=tuple(dict.fromkeys((number, base))),
            settings=settings,
            env=env,
            by=request.by,
            note=request.note,
            slower=request.slower,
            again=request.again,
            source=source.source if source is not None else "",
            commit=source.commit if source is not None else newest.commit,
            summary=summary,
            left_out=left_out(source.left) if source is not None else newest.left_out,
        )

    def _merged(
        self, view: CodeView, source: UpdateSource, newest: CodeVersion, newest_tree: CodeTree, store: TreeStore
    ) -> tuple[int, str]:
        """Return where the change began, and the tree that has it and all that is newest."""
        base = self._request.base or queries.base_of(view.code, source.source)
        record = queries.record_of(view.code, base)
        if record is None:
            raise UserError(f"--base {base}: there is no such version; robust code log lists them")
        # The folder was never what others' changes have made of the version: against that, it would seem to undo them.
        begun_at = record.version.tree if self._request.base else record.version.taken or record.version.tree
        if begun_at == newest.tree:
            return base, source.tree
        base_tree = self._versions.fetch(begun_at, store)
        merged = merge(base_tree, newest_tree, store.tree(source.tree), store.get)
        if merged.conflicts:
            names = ", ".join(merged.conflicts[:8])
            raise CodeError(
                f"this update and version {newest.number} ({newest.by}) both changed {names}, and not the same way; "
                f"robust code diff {base} {newest.number} shows the other change: take it over and update again"
            )
        files = tuple(
            file
            if file.path not in merged.contents
            else msgspec.structs.replace(file, digest=store.put(merged.contents[file.path]))
            for file in merged.tree.files
        )
        return base, store.put_tree(CodeTree(files=files))

    def _check(
        self,
        view: CodeView,
        tree_id: str,
        tree: CodeTree,
        changed: list[str],
        source: UpdateSource | None,
        store: TreeStore,
    ) -> None:
        """Compile what changed and run the user's check, in a folder as workers will see it. Raises CodeError, UserError."""
        if not tree_id:
            raise UserError("--check: this job runs in place, so that there is no version of the code to run it in")
        links = {} if source is None else links_to(source.root, source.left)
        folder = store.materialise(tree_id, links)
        links_in_tree = {file.path for file in tree.files if file.link}
        python = view.argv[0] if view.is_python and view.argv and os.access(view.argv[0], os.X_OK) else sys.executable
        check.compile_all(
            folder, [path for path in changed if path.endswith(".py") and path not in links_in_tree], python
        )
        if self._request.check:
            env = {**self._env, **self._request.env, "PYTHONDONTWRITEBYTECODE": "1"}
            check.smoke(self._request.check, folder, self._request.check_s, env)


def _check_entry(tree: CodeTree, entry: str, where: str) -> None:
    if entry and not any(file.path == entry or file.path.startswith(f"{entry}/") for file in tree.files):
        raise CodeError(
            f"the code of {where} (text, up to 1 MiB a file, not ignored) has no {entry}, which is the job's script; "
            "nothing was changed"
        )


def _standing(view: CodeView, number: int) -> str:
    if number == view.code.pending:
        return "waits to be put in place (--when now does so now)"
    return "runs"
