"""The code of all members of a job on one node, kept once: `RUN/code`.

RUN/code/
    objects/, trees/      contents and versions of all roles, by their digests (see `launcher.records.code.tree_store`)
    at/ROLE/<id>/         a version of a role as files, made when the first member needs it
RUN/members/rollout-0.1/code/
    objects, trees, at    links to these
    start.json            the version that this launcher starts with, where it is not to take what lies in the user's folder

A run directory of a member looks as that of any job, so that all commands work on it; to delete one deletes links. What is kept
is never changed, and appears whole, so that members may look for it and write it at the same time. Roles have own copies:
what is no code lies beside it, and may be another folder's for each role.
"""

from __future__ import annotations

import os
from contextlib import suppress

import msgspec

from robust_run.atomic_file import write_file
from robust_run.launcher.agent.code_versions.place import FOLDER, START
from robust_run.launcher.control.code_transfer import Receiver
from robust_run.launcher.model.code_events import CodeVersion
from robust_run.launcher.records.code.content_store import make_folders
from robust_run.launcher.records.code.tree_store import TreeStore
from robust_run.launcher.records.code.types import TreeParts


class Shelf:
    """Of one job on one node. `folder`: its run directory there."""

    def __init__(self, folder: str) -> None:
        self._folder = os.path.join(folder, FOLDER)
        self.store = TreeStore(self._folder)
        self._receivers: dict[str, Receiver] = {}

    def prepare(self, run: str, role: str, version: CodeVersion | None) -> None:
        """Make a member's run directory ready for its launcher. Raises OSError where it cannot be told what to start with."""
        code = os.path.join(run, FOLDER)
        make_folders(code)
        for name in ("objects", "trees", os.path.join("at", role)):
            target = os.path.join(self._folder, name)
            with suppress(OSError):  # it keeps its own: more room, and nothing else
                make_folders(target)
                os.symlink(os.path.relpath(target, code), os.path.join(code, name.partition(os.sep)[0]))
        if version is not None:
            write_file(os.path.join(code, START), msgspec.json.encode(version), mode=0o600)

    def take(self, parts: TreeParts) -> bool:
        """Take in a part of a version; return whether it is complete. Raises CodeError, CodeStoreError, LackingError."""
        receiver = self._receivers.setdefault(parts.tree, Receiver(self.store, parts.tree))
        is_complete = receiver.take(parts)
        if is_complete:
            del self._receivers[parts.tree]
        return is_complete
