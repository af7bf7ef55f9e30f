"""What a restore of plain files copies where to: files as they are, with the folders and links between them."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator

import xxhash

from robust_run.ckpt_io.address import split
from robust_run.ckpt_io.copying.comparing import compare_trees
from robust_run.ckpt_io.copying.journal import SUFFIX, VERSION, CopyJournal
from robust_run.ckpt_io.copying.local_files import make_link, read_bytes, sync_paths
from robust_run.ckpt_io.copying.sources import PlainSource
from robust_run.ckpt_io.copying.trees import FolderTree, PlainFile
from robust_run.ckpt_io.copying.types import CopyPlan, Differences, Task
from robust_run.ckpt_io.foreign.dcp_folder import METADATA_PATH
from robust_run.ckpt_io.rules.types import UNIT_BYTES
from robust_run.store import paths
from robust_run.store.digests import digest
from robust_run.store.opening import local_path

#: Of what was fetched, so much is fetched again to see that the source is still the same, where it does not say when it changed.
_SAMPLE_BYTES = 64 << 10
#: Bytes of a file's name, on all common file systems.
_NAME_BYTES = 255
_NONCE_BYTES = 6


def plan_of_plain(source: PlainSource, destination: str) -> CopyPlan:
    """Files keep names of their own until all of them are whole."""
    copy = _Copy(source, destination)
    is_folder = source.kind != "file"
    shown = destination if is_folder else copy.final(source.files[0])
    return CopyPlan(
        kind=source.kind,
        source=paths.shown(source.url),
        destination=shown,
        identity=source.identity,
        journal_path=journal_path(shown),
        tasks=copy.tasks,
        sizes={copy.temporary[file.path]: file.size_bytes for file in source.files},
        finish=copy.finish,
        compare=copy.compare,
        threads=source.store.threads,
        go_on=copy.go_on,
        check_unchanged=lambda: source.check_unchanged(
            "Nothing was put in place; type it again when no program writes there any more: what has not changed is kept"
        ),
        commit_record=os.path.join(destination, METADATA_PATH) if source.kind == "dcp" else "",
        final_of={copy.temporary[file.path]: copy.final(file) for file in source.files},
        folders=tuple(os.path.join(destination, folder) for folder in source.tree.empty_folders),
        links={os.path.join(destination, link): target for link, target in source.tree.links.items()},
        roots=(destination,),
        source_paths=_local_files(source),
        source_folder=source.local_folder,
        notes=source.tree.notes,
    )


def journal_path(destination: str) -> str:
    """Return where the journal of a copy lies: beside what it makes."""
    root, name = split(destination)
    return os.path.join(root, f".{name}{SUFFIX}")


class _Copy:
    """A source and where it goes."""

    def __init__(self, source: PlainSource, destination: str) -> None:
        self.source, self.destination = source, destination
        self.temporary = self._temporary()
        """The name that a file has until all are whole, by its path in the source."""

    def final(self, file: PlainFile) -> str:
        """Return where a file goes."""
        if self.source.kind == "file" and not os.path.isdir(self.destination):
            return self.destination
        return os.path.join(self.destination, file.path)

    def tasks(self) -> Iterator[Task]:
        """Yield all units of all files."""
        for file in self.source.files:
            number, path = _number(file), self.temporary[file.path]
            for unit, at in enumerate(range(0, file.size_bytes, UNIT_BYTES)):
                size = min(UNIT_BYTES, file.size_bytes - at)
                yield Task(number, unit, path, at, size, None, self._ranged(file.path, at, size))

    def go_on(self, journal: CopyJournal) -> None:
        """Forget what a journal says of files that have changed since."""
        first_units: dict[int, int] = {}
        for number, unit in journal.done:
            if unit != VERSION:
                first_units[number] = min(unit, first_units.get(number, unit))
        changed = {
            _number(file)
            for file in self.source.files
            if _number(file) in first_units and not self._is_same(file, first_units[_number(file)], journal)
        }
        journal.forget(changed)
        for file in self.source.files:
            known = journal.done.get((_number(file), VERSION))
            if _number(file) in changed or known is None or not known.startswith(_version(file)):
                # Never the same twice: units that were noted before this are of no version that is known.
                journal.note(_number(file), VERSION, _version(file) + os.urandom(_NONCE_BYTES))

    def finish(self) -> None:
        """Give all files their names, those last that others go by; then all is there."""
        folders = set()
        for file in self.source.files:
            os.replace(self.temporary[file.path], self.final(file))
            folders.add(os.path.dirname(self.final(file)))
        for link, target in self.source.tree.links.items():
            make_link(os.path.join(self.destination, link), target)
            folders.add(os.path.dirname(os.path.join(self.destination, link)))
        sync_paths(folders)

    def compare(self) -> Differences:
        """Compare by names, kinds and lengths."""
        tree = self.source.tree
        if self.source.kind == "file":
            (file,) = self.source.files
            tree = FolderTree((PlainFile("", file.size_bytes),))
            return compare_trees(tree, self.final(file), {"": self.temporary[file.path]})
        return compare_trees(tree, self.destination, self.temporary)

    def _temporary(self) -> dict[str, str]:
        tree = self.source.tree
        finals = {self.final(file) for file in tree.files}
        finals.update(os.path.join(self.destination, path) for path in (*tree.links, *tree.folders))
        found = {}
        for file in self.source.files:
            folder, name = os.path.split(self.final(file))
            path = os.path.join(folder, f".{name}.restoring")
            if len(os.fsencode(path)) - len(os.fsencode(folder)) > _NAME_BYTES or path in finals:
                path = os.path.join(folder, f".{xxhash.xxh3_128_hexdigest(os.fsencode(name))}.restoring")
            found[file.path] = path
        return found

    def _is_same(self, file: PlainFile, unit: int, journal: CopyJournal) -> bool:
        """Whether a file is what a unit of it was fetched of, as far as the store tells."""
        if not journal.done.get((_number(file), VERSION), b"").startswith(_version(file)):
            return False
        if file.modified_s is not None or file.tag:
            return True
        at = unit * UNIT_BYTES
        size = min(_SAMPLE_BYTES, file.size_bytes - at)
        local = read_bytes(self.temporary[file.path], at, size)
        return local is not None and bytes(self._ranged(file.path, at, size)()) == local

    def _ranged(self, path: str, at: int, size: int) -> Callable[[], bytearray]:
        def fetch() -> bytearray:
            buffer = bytearray(size)
            self.source.store.read_into(path, at, [memoryview(buffer)])
            return buffer

        return fetch


def _number(file: PlainFile) -> int:
    return xxhash.xxh3_64_intdigest(file.path.encode(errors="surrogateescape"))


def _version(file: PlainFile) -> bytes:
    """Return what is another for another version of a file, as far as the store tells one from another."""
    modified_s = -1.0 if file.modified_s is None else file.modified_s
    return digest(struct.pack("<Qd", file.size_bytes, modified_s) + file.tag.encode())[:-_NONCE_BYTES]


def _local_files(source: PlainSource) -> tuple[str, ...]:
    if not source.is_local:
        return ()
    return tuple(local_path(paths.child(source.store.url, file.path)) for file in source.files)
