"""The versions of a job as a command sees them: asked of its controller, or read from what a dead job left."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from robust_run.errors import PlatformError
from robust_run.launcher.control.code_transfer import Receiver, contents_of
from robust_run.launcher.controller.code.staging import store_folder
from robust_run.launcher.operator.reading.client import (
    ApiTarget,
    NoAnswerError,
    SaysNoError,
    reach,
    remote,
    this_machine,
)
from robust_run.launcher.operator.reading.runs import JOURNAL_NAME, find_run
from robust_run.launcher.operator.views.code_words import MOVED, CodeView, RefusedWish, RollbackWish, UpdateWish
from robust_run.launcher.operator.views.status_types import ActionView
from robust_run.launcher.records.code.errors import LackingError
from robust_run.launcher.records.code.tree_store import TreeStore, encode_tree
from robust_run.launcher.records.code.types import CodeTree, TreeParts

_View = TypeVar("_View", bound=msgspec.Struct)


class MovedError(Exception):
    """Another version was staged meanwhile."""


class Versions:
    """One job's."""

    def __init__(self, target: ApiTarget | None, run_directory: str) -> None:
        self._target = target
        self._run_directory = run_directory

    @property
    def is_alive(self) -> bool:
        """Whether a controller answers."""
        return self._target is not None

    def view(self) -> CodeView:
        """Return all versions. Raises PlatformError."""
        if self._target is not None:
            return _decoded(self._target.get("/v1/code"), CodeView)
        from robust_run.launcher.operator.reading.dead import read_dead

        dead = read_dead(self._run_directory)
        facts = dead.facts
        return CodeView(
            code=dead.state.code,
            mode=facts.code,
            argv=facts.argv,
            is_python=facts.is_python,
            cwd=facts.cwd,
            host=facts.host,
        )

    def fetch(self, tree_id: str, store: TreeStore) -> CodeTree:
        """Bring a version's code into a store, and return it. Raises LackingError, StoreError, CodeError."""
        if not tree_id:
            return CodeTree()
        if not store.has(tree_id):
            if self._target is None:
                return self._from_disk(tree_id, store)
            receiver = Receiver(store, tree_id)
            data = self._target.get(f"/v1/code/parts/{tree_id}")
            try:
                parts = msgspec.msgpack.decode(data, type=list[TreeParts])
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise PlatformError(f"the controller's answer is of another version of robust-run: {error}") from error
            if not any(receiver.take(part) for part in parts):
                raise LackingError(f"the controller did not send all of the code {tree_id[:10]}")
        return store.tree(tree_id)

    def _from_disk(self, tree_id: str, store: TreeStore) -> CodeTree:
        theirs = TreeStore(store_folder(os.path.join(self._run_directory, JOURNAL_NAME)))
        tree = theirs.tree(tree_id)
        for file in tree.files:
            if not file.link:
                store.put(theirs.get(file.digest))
        store.put_tree(tree)
        return tree

    def send(self, tree_id: str, store: TreeStore) -> None:
        """Send the code of an update to the controller. Raises PlatformError."""
        target, tree = self._living(), store.tree(tree_id)
        parts = [TreeParts(tree=tree_id, manifest=encode_tree(tree))]
        digests = [file.digest for file in tree.files if not file.link]
        for part in (*parts, *contents_of(store, tree_id, digests)):
            target.send("/v1/code/parts", msgspec.msgpack.encode(part), "application/msgpack")

    def stage(self, wish: UpdateWish) -> ActionView:
        """Stage a version. Raises MovedError, PlatformError."""
        try:
            return _decoded(self._living().post("/v1/code/update", wish), ActionView)
        except SaysNoError as error:
            if error.status == MOVED:
                raise MovedError(str(error)) from error
            raise

    def note_refusal(self, wish: RefusedWish) -> None:
        """Put on record that an update came to nothing, if anybody listens."""
        if self._target is not None:
            try:
                self._target.post("/v1/code/refused", wish)
            except PlatformError:
                return

    def roll_back(self, wish: RollbackWish) -> ActionView:
        """Take a version back. Raises PlatformError."""
        return _decoded(self._living().post("/v1/code/rollback", wish), ActionView)

    def _living(self) -> ApiTarget:
        if self._target is None:
            raise PlatformError(
                "the job does not run, so that nothing can be staged; robust status says how it was left"
            )
        return self._target


def versions_to_read(
    env: Mapping[str, str], *, run: str, log_dir: str, url: str, token_file: str, tls_ca: str
) -> Versions:
    """Return the versions of the job the options name, dead or alive. Raises UserError, PlatformError."""
    if url:
        return Versions(remote(url, token_file, tls_ca, env), "")
    path = find_run(run, log_dir, env)
    try:
        return Versions(reach(path, token_file, tls_ca, env, this_machine()), path)
    except NoAnswerError:
        return Versions(None, path)


def versions_to_change(env: Mapping[str, str], **which: str) -> Versions:
    """Return those of a job that runs. Raises UserError, PlatformError where none answers."""
    from robust_run.launcher.operator.reading.which import controller

    return Versions(controller(env, **which), "")


def _decoded(data: bytes, kind: type[_View]) -> _View:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise PlatformError(f"the controller's answer is of another version of robust-run: {error}") from error
