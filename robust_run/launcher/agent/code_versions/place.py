"""One node's code: what is captured there, and where the workers of an attempt find the version that they shall run.

`--code auto`      in the user's folder as long as that is, file by file, the version that shall run; else from a copy, also where
                   Python would run what it compiled of an earlier version (`records.code.bytecode`)
`--code copy`      always from a copy in the run directory
`--code in-place`  always in the user's folder, as it is

In a copy, what is no code (data, outputs, environments) is a link to where it was left. The working directory stays the
user's. Modules are redirected in the worker (`tracer.arm.redirect`), so that each entry of `sys.path` that leads into the
user's folder leads into the copy instead.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from robust_run.errors import RobustRunError
from robust_run.launcher.control.code_transfer import Receiver
from robust_run.launcher.core.ledger_queries import label
from robust_run.launcher.model.code_events import CodeUse, CodeVersion
from robust_run.launcher.model.job import (
    JobSpec,
)
from robust_run.launcher.records.code.bytecode import has_stale_bytecode
from robust_run.launcher.records.code.capture import (
    CodeRoot,
    commit_of,
    holds,
    left_out,
    look_first,
    roots_of,
    tree_id_of,
)
from robust_run.launcher.records.code.content_store import SHORT
from robust_run.launcher.records.code.errors import CodeError, LackingError
from robust_run.launcher.records.code.program import in_folder, program_of, with_settings
from robust_run.launcher.records.code.scan import Scan, is_weak
from robust_run.launcher.records.code.tree_store import TreeStore, is_intact, links_to
from robust_run.launcher.records.code.types import LIMITS, TreeParts
from robust_run.launcher.records.run_directory import steady_links

FOLDER = "code"
"""Of the store, in the run directory."""
START = "start.json"
"""In it: the version that the job starts with, where somebody else has said so (see `told`)."""


class CodeSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where an attempt's workers find their code."""

    use: CodeUse
    copy: str = ""
    """The folder they run from; empty: the user's."""
    root: str = ""
    """The user's folder that it stands for."""
    steady: str = ""
    """Links to what the user's folder held; empty: workers run from a copy, or in place, also if that is edited."""


class CodeSeen(NamedTuple):
    """What a job was started with, in memory."""

    version: CodeVersion
    """Its tree is not known yet."""
    scan: Scan | None
    """None: there is nothing to be kept."""
    why: str
    """Why not."""


class CodePlace:
    """The code of one job on one node."""

    def __init__(
        self, spec: JobSpec, cwd: str, run_path: str, clock: Callable[[], float], host: str, user: str
    ) -> None:
        self._mode = spec.code
        self._argv = spec.argv
        self._program = program_of(spec.argv, is_python=spec.is_python)
        self._roots = roots_of(spec.argv, self._program, cwd) if spec.code != "in-place" else ()
        self._folder_of_git = self._roots[0].folder if self._roots else cwd
        self._leave = tuple(filter(None, (spec.log_dir, run_path)))
        self._clock = clock
        self._run_path = run_path
        self._source, self._user = host, user
        self._root: CodeRoot | None = None
        self._is_settled = False
        """The root is the one that the job's versions are of."""
        self.store = TreeStore(os.path.join(run_path, FOLDER))
        self.steady = steady_links(run_path)
        self._receiver: Receiver | None = None

    # --- capturing

    def see(self, at_unix_s: float) -> CodeSeen:
        """Read what the job is started with into memory. Takes half a second at most, a few milliseconds as a rule."""
        version = CodeVersion(
            number=1,
            tree="",
            by=f"{self._user}@{self._source}",
            at_unix_s=at_unix_s,
            source=f"{self._source}:{self._folder_of_git}",
            commit=commit_of(self._folder_of_git),
            summary="as the job was started",
        )
        start = told(self._run_path)
        if start is not None:
            return CodeSeen(msgspec.structs.replace(start, number=1, parents=(), taken=""), None, "")
        if not self._roots:
            return CodeSeen(
                version, None, "" if self._mode == "in-place" else "the program is not in a folder of the user's"
            )
        try:
            root, scan = self._look()
        except CodeError as error:
            return CodeSeen(version, None, str(error))
        self._is_settled = True
        source = f"{self._source}:{root.folder}"
        return CodeSeen(msgspec.structs.replace(version, source=source, left_out=left_out(scan.left)), scan, "")

    def keep(self, seen: CodeSeen) -> tuple[CodeVersion, str]:
        """Keep that; return version 1 and, where no code could be kept, why. May take long on a slow disk; for any thread."""
        tree = seen.version.tree
        if seen.scan is None and tree and not self.store.has(tree):
            return msgspec.structs.replace(seen.version, tree=""), f"the code {tree[:SHORT]} is not here"
        if seen.scan is None:
            return seen.version, seen.why
        try:
            tree = self.store.put_tree(self.store.put_captured(seen.scan).tree)
            self._keep_steady(tree, seen.scan)
        except RobustRunError as error:
            return seen.version, str(error)
        return msgspec.structs.replace(seen.version, tree=tree), ""

    def _settle(self, tree_id: str) -> None:
        """Take the root that a version is of: where it was captured, a wider folder may have taken too long to look through."""
        if self._is_settled or not self.store.has(tree_id):
            return
        paths = [file.path for file in self.store.tree(tree_id).files]
        fitting = [root for root in self._roots if not root.entry or holds(paths, root.entry)]
        if fitting and self._root not in fitting:
            self._root = fitting[0]
        self._is_settled = True

    def _look(self) -> tuple[CodeRoot, Scan]:
        if self._root is None:
            self._root, scan = look_first(self._roots, self._leave, LIMITS, self._clock)
            return self._root, scan
        return look_first((self._root,), self._leave, LIMITS, self._clock)

    # --- having

    def has(self, tree_id: str) -> bool:
        """Whether a version can be put in place here. What lies in the user's folder is kept if it is the one."""
        if not tree_id or self.store.has(tree_id):
            return True
        try:
            _, scan = self._look()
            if tree_id_of(scan) != tree_id:
                return False
            self.store.put_captured(scan)
            self._keep_steady(tree_id, scan)
        except RobustRunError:
            return False
        return self.store.has(tree_id)

    def take(self, parts: TreeParts) -> bool:
        """Take in a part of a version; return whether it is complete. Raises CodeError, StoreError."""
        if self._receiver is None or self._receiver.tree_id != parts.tree:
            self._receiver = Receiver(self.store, parts.tree)
        return self._receiver.take(parts)

    # --- running

    def ground(self, use: CodeUse) -> CodeSource:
        """Put a version in place and return where. Raises LackingError, StoreError, CodeError."""
        if not use.tree or not self._roots:
            return CodeSource(use=use)
        scan: Scan | None = None
        self._settle(use.tree)
        try:
            root, scan = self._look()
        except CodeError:
            root = self._root or self._roots[0]
        if self._mode == "auto" and scan is not None and self._is_in(root, scan, use):
            if self.store.has(use.tree):
                self._keep_steady(use.tree, scan)
            return CodeSource(use=use, root=root.folder, steady=self.steady)
        if not self.store.has(use.tree):
            raise LackingError(f"the code {use.tree[:SHORT]} is not here")
        links = links_to(root.folder, scan.left) if scan is not None else {}
        copy = self.store.materialise(use.tree, links)
        if root.entry and not os.path.exists(os.path.join(copy, root.entry)):
            raise LackingError(f"version {use.number} has no {root.entry}, which is the job's script")
        return CodeSource(use=use, copy=copy, root=root.folder)

    def _keep_steady(self, tree_id: str, scan: Scan) -> None:
        """Have the workers that run in the user's folder import what that holds now, in spite of edits from now on."""
        if self._mode == "auto" and self._root is not None:
            self.store.lead_to_kept(self.steady, self._root.folder, tree_id, scan)

    def _is_in(self, root: CodeRoot, scan: Scan, use: CodeUse) -> bool:
        """Whether the user's folder is the version. Before there was an update, what the program writes beside its code, or may
        have written, is no difference: nothing would run otherwise in a copy.
        """
        if tree_id_of(scan) == use.tree:
            return use.is_only or not has_stale_bytecode(root.folder, scan.files)
        return use.is_only and self.store.has(use.tree) and is_intact(self.store.tree(use.tree), root.folder, is_weak)

    def argv(self, argv: Sequence[str], ground: CodeSource) -> tuple[str, ...]:
        """Return a worker's command line for a version."""
        words = with_settings(argv, self._program, ground.use.settings)
        if not ground.copy or self._root is None:
            return words
        return in_folder(words, self._program, os.path.join(ground.copy, self._root.entry))


def told(run_path: str) -> CodeVersion | None:
    """Return the version that a job was told to start with; None: what lies in the user's folder. Raises CodeError."""
    try:
        with open(os.path.join(run_path, FOLDER, START), "rb") as file:
            return msgspec.json.decode(file.read(), type=CodeVersion)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise CodeError(f"what {run_path!r} is to start with cannot be read: {error}") from error


def seen_by_program(ground: CodeSource | None) -> dict[str, str]:
    """Return the variables of a version that the program sees."""
    if ground is None:
        return {}
    use = ground.use
    return {**use.env, "ROBUST_CODE_VERSION": label(use.number, use.tree)}


def seen_by_tracer(ground: CodeSource | None, probation_steps: int) -> Mapping[str, str]:
    """Return the variables that tell what is armed in a worker where modules come from, and whether to look for NaN."""
    if ground is None:
        return {}
    variables: dict[str, str] = {}
    if ground.copy:
        variables.update(ROBUST_CODE_ROOT=ground.root, ROBUST_CODE_COPY=ground.copy)
    elif ground.steady:
        variables["ROBUST_CODE_STEADY"] = ground.steady
    if ground.use.on_probation:
        variables["ROBUST_CODE_PROBATION"] = str(probation_steps)
    return variables
