"""The versions of a role's code as `robust update` and `robust code` see them: asked of the leader, or read from its journal."""

from __future__ import annotations

import os
import time

import msgspec

from robust_run.errors import PlatformError, RobustRunError, UserError
from robust_run.launcher.agent.code_versions.place import FOLDER
from robust_run.launcher.model.code_events import Ledger
from robust_run.launcher.operator.code.remote import MovedError, Versions
from robust_run.launcher.operator.reading.dead import read_dead
from robust_run.launcher.operator.reading.living import may_live
from robust_run.launcher.operator.views.code_words import CodeView, RefusedWish, RollbackWish, UpdateWish
from robust_run.launcher.operator.views.status_types import ActionView
from robust_run.launcher.records.code.tree_store import TreeStore
from robust_run.launcher.records.code.types import CodeTree
from robust_run.orchestrator.journal import NAME, is_roles_run, read, spec_of
from robust_run.orchestrator.model.update_words import RoleCode
from robust_run.orchestrator.people.meant import newest
from robust_run.orchestrator.people.operator import answer_to, find_run, look
from robust_run.orchestrator.rules import core
from robust_run.roles.words import CodeCall, RollbackCall, UpdateCall

#: Code that this machine has, and the leader's has not, is there after so long.
COMING_S = 30.0
LOOK_S = 0.3


class RoleVersions(Versions):
    """Those of one role. `run`: the job's run directory, on the machine of its leader."""

    def __init__(self, run: str, role: str) -> None:
        super().__init__(None, run)
        self._run, self._role = run, role
        self._store = TreeStore(os.path.join(run, FOLDER))

    def view(self) -> CodeView:
        """Return all versions, and what the role was started with. Raises PlatformError."""
        facts = self._facts()
        if facts is None:
            raise PlatformError(f"no member of {self._role} has begun on this machine; ask again, or on its node")
        return msgspec.structs.replace(facts, code=self._ledger())

    def _ledger(self) -> Ledger:
        try:
            found = answer_to(self._run, CodeCall(number=1, role=self._role))
        except PlatformError:
            return self._left()
        return msgspec.json.decode(found.data, type=Ledger)

    def _left(self) -> Ledger:
        """Return what the journal of a job says that nobody leads."""
        spec = spec_of(self._run)
        if spec is None:
            return Ledger()
        past, _ = read(os.path.join(self._run, NAME))
        return core.replay(spec, past).codes.get(self._role, RoleCode()).ledger

    def _facts(self) -> CodeView | None:
        members = [each for role in look(self._run).roles if role.name == self._role for each in role.members]
        for member in members:
            try:
                dead = read_dead(os.path.join(self._run, member.run)) if member.run else None
            except RobustRunError:
                continue
            if dead is not None:
                facts = dead.facts
                return CodeView(
                    code=Ledger(),
                    mode=facts.code,
                    argv=facts.argv,
                    is_python=facts.is_python,
                    cwd=facts.cwd,
                    host=facts.host,
                )
        return None

    def fetch(self, tree_id: str, store: TreeStore) -> CodeTree:
        """See `Versions`."""
        if tree_id and not store.has(tree_id):
            _copy(tree_id, self._store, store)
        return store.tree(tree_id) if tree_id else CodeTree()

    def send(self, tree_id: str, store: TreeStore) -> None:
        """Put the code of an update where all members find it. Raises CodeStoreError."""
        _copy(tree_id, store, self._store)

    def stage(self, wish: UpdateWish) -> ActionView:
        """See `Versions`."""
        return self._asked(UpdateCall(number=1, role=self._role, wish=msgspec.json.encode(wish)))

    def roll_back(self, wish: RollbackWish) -> ActionView:
        """See `Versions`."""
        return self._asked(RollbackCall(number=1, role=self._role, wish=msgspec.json.encode(wish)))

    def note_refusal(self, wish: RefusedWish) -> None:
        """What came to nothing is told to who asked; the journal of roles has no place for it."""

    def _asked(self, call: UpdateCall | RollbackCall) -> ActionView:
        until_s = time.monotonic() + COMING_S
        found = answer_to(self._run, call)
        while found.is_coming and time.monotonic() < until_s:
            time.sleep(LOOK_S)
            found = answer_to(self._run, call)
        if found.has_moved:
            raise MovedError(found.error)
        if found.error:
            raise UserError(found.error)
        return ActionView(done=found.data.decode())


def versions_of_roles(run: str, log_dir: str, role: str) -> dict[str, Versions]:
    """Return the versions of each role that is meant; empty where RUN is no job of several roles. Raises UserError.

    Without RUN the newest run is meant, if no other is led at the same time.
    """
    from robust_run.launcher.operator.reading.runs import is_run, not_here, runs_folder

    places = (run, os.path.join(runs_folder(log_dir, os.environ), run))
    path = next((each for each in places if run and is_roles_run(each) and not is_run(each)), "")
    if not run and newest(["--log-dir", log_dir] if log_dir else [], os.environ):
        path = _sole(find_run("", log_dir, dict(os.environ)))
    if not path:
        if role:
            if elsewhere := next(filter(None, map(not_here, places)), "") if run else "":
                raise UserError(elsewhere)
            which = repr(run) if run else "the newest run"
            raise UserError(f"--role {role}: {which} is no job of several roles; name its run directory")
        return {}
    names = [each.name for each in look(path).roles]
    if role and role not in names:
        raise UserError(f"--role {role}: there is no such role; the job has {', '.join(names)}")
    return {name: RoleVersions(os.path.abspath(path), name) for name in ([role] if role else names)}


def _sole(newest_run: str) -> str:
    """Return this run, if no other beside it may be meant. Raises UserError."""
    folder, name = os.path.split(newest_run)
    others = [each for each in sorted(os.listdir(folder)) if each != name and _is_live(os.path.join(folder, each))]
    if others:
        raise UserError(f"several runs may be meant: {', '.join((name, *others[:7]))}; name one of them")
    return newest_run


def _is_live(path: str) -> bool:
    if is_roles_run(path):
        try:
            return look(path).is_led
        except RobustRunError:
            return False
    return bool(may_live([path], os.environ))


def _copy(tree_id: str, source: TreeStore, target: TreeStore) -> None:
    tree = source.tree(tree_id)
    for file in tree.files:
        if not file.link:
            target.put(source.get(file.digest))
    target.put_tree(tree)
