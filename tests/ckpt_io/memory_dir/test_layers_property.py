"""Whatever programs do, in whatever order it reaches storage: the folder shows what a dict would, and storage ends up with that.

Every file that is written has bytes of its own, so what is seen anywhere can be told from half a file or a mixture.
"""

from __future__ import annotations

import errno
import itertools
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from made_memory_folders import NO_SPACE, READ_ONLY, MadeFolder, tree_of

PATHS = ("a", "b", "x.tmp", "d", "d/a", "d/b", "e", "e/a", "e/d", "e/d/a")
OPS = st.one_of(
    st.tuples(st.just("write"), st.sampled_from(PATHS), st.just("")),
    st.tuples(st.just("rename"), st.sampled_from(PATHS), st.sampled_from(PATHS)),
    st.tuples(st.sampled_from(("unlink", "mkdir", "rmdir")), st.sampled_from(PATHS), st.just("")),
)


class Model:
    """What a file system with these names would have: bytes of files, None for folders."""

    def __init__(self, tree: dict[str, bytes | None] | None = None) -> None:
        self.tree = dict(tree or {})

    def _has_folder(self, path: str) -> bool:
        above = path.rpartition("/")[0]
        return not above or (above in self.tree and self.tree[above] is None)

    def _below(self, path: str) -> list[str]:
        return [name for name in self.tree if name.startswith(f"{path}/")]

    def does(self, what: str, path: str, other: str, data: bytes) -> bool:
        """Do it; whether it is possible."""
        tree = self.tree
        if not self._has_folder(path):
            return False
        if what == "write":
            if path in tree and tree[path] is None:
                return False
            tree[path] = data
        elif what == "mkdir":
            if path in tree:
                return False
            tree[path] = None
        elif path not in tree:
            return False
        elif what == "unlink":
            if tree[path] is None:
                return False
            del tree[path]
        elif what == "rmdir":
            if tree[path] is not None or self._below(path):
                return False
            del tree[path]
        else:
            return self._rename(path, other)
        return True

    def _rename(self, old: str, new: str) -> bool:
        tree = self.tree
        if not self._has_folder(new):
            return False
        if old == new:
            return True
        if f"{new}/".startswith(f"{old}/"):
            return False
        if new in tree and ((tree[new] is None) != (tree[old] is None) or self._below(new)):
            return False
        moved = {new + name[len(old) :]: tree[name] for name in [old, *self._below(old)]}
        for name in [old, *self._below(old)]:
            del tree[name]
        tree.pop(new, None)
        tree.update(moved)
        return True


class TwoLayers(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="layers-"))
        self.storage = self.root / "storage"
        self.numbers = itertools.count(1)
        self.ever: set[bytes] = set()
        self.model = Model()
        self.made = MadeFolder(self.storage)
        self.opened: list[tuple[int, bytes]] = []

    def _do(self, op: tuple[str, str, str]) -> None:
        what, path, other = op
        data = f"{next(self.numbers)} {path} ".encode() * 3
        is_possible = self.model.does(what, path, other, data)
        self.ever.add(data)
        operations = self.made.operations
        calls: dict[str, Any] = {
            "write": lambda: self.made.write(path, data),
            "rename": lambda: operations.rename(f"/{path}", f"/{other}"),
            "unlink": lambda: operations.unlink(f"/{path}"),
            "mkdir": lambda: operations.mkdir(f"/{path}", 0o755),
            "rmdir": lambda: operations.rmdir(f"/{path}"),
        }
        if what == "write" and not is_possible:
            return  # the kernel looks first, and asks for nothing then
        try:
            calls[what]()
            done = True
        except OSError as error:
            assert error.errno != errno.EIO
            done = False
        assert done == is_possible, (op, self.model.tree)

    @rule(op=OPS)
    def program(self, op: tuple[str, str, str]) -> None:
        self._do(op)

    @rule(path=st.sampled_from(PATHS))
    def open_to_read(self, path: str) -> None:
        data = self.model.tree.get(path)
        if data is not None:
            self.opened.append((self.made.operations.open(f"/{path}", 0), data))

    @rule(count=st.integers(1, 4), is_last=st.booleans())
    def flush_some(self, count: int, is_last: bool) -> None:
        for _ in range(count):
            self.made.now_s += 1.0
            self.made.step(is_last=is_last)

    @rule(ops=st.lists(OPS, min_size=1, max_size=4))
    def flush_while_programs_go_on(self, ops: list[tuple[str, str, str]]) -> None:
        self.made.flusher.meanwhile = lambda: [self._do(op) for op in ops]
        self.made.step()
        self.made.flusher.meanwhile = None

    @rule(error=st.sampled_from((NO_SPACE, READ_ONLY)))
    def storage_fails_for_a_while(self, error: int) -> None:
        assert self.made.storage is not None
        self.made.storage.error = error
        self.made.step()
        self.made.storage.error = 0
        self.made.now_s += 1000.0

    @rule()
    def memory_is_short(self) -> None:
        self.made.layers.drop_oldest()

    @rule()
    def all_is_flushed(self) -> None:
        self.made.flush()
        assert tree_of(self.storage) == self.model.tree

    @rule()
    def memory_is_lost(self) -> None:
        self.model = Model(tree_of(self.storage))
        self.made = MadeFolder(self.storage)
        self.opened = []

    @precondition(lambda self: self.opened)
    @rule()
    def read_what_is_open(self) -> None:
        handle, data = self.opened.pop()
        assert self.made.read_open(handle) == data
        self.made.operations.release("", handle)

    @invariant()
    def shows_what_a_dict_would(self) -> None:
        assert self.made.tree() == self.model.tree

    @invariant()
    def storage_has_whole_files_alone(self) -> None:
        files = [data for data in tree_of(self.storage).values() if data is not None]
        assert set(files) <= self.ever

    def teardown(self) -> None:
        with suppress(Exception):
            self.made.flush()
        try:
            assert tree_of(self.storage) == self.model.tree
        finally:
            shutil.rmtree(self.root, ignore_errors=True)


test_two_layers = TwoLayers.TestCase
