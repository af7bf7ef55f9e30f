"""Running the set-up and returning exactly what it changed: over overlays where the kernel lets us, else by comparing."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from robust_run.snapshot.capture import bytecode, outside, scan
from robust_run.snapshot.capture.running import check_codes, run_inside
from robust_run.snapshot.capture.stage import listed, make_whiteouts, names_in, split_whiteouts
from robust_run.snapshot.capture.types import Captured, CaptureOrder, CaptureReport, Layer
from robust_run.snapshot.capture.work import make_work, remove_work
from robust_run.snapshot.errors import CaptureRefused
from robust_run.snapshot.roots import is_within
from robust_run.snapshot.rules.types import Item, Method, Root

#: Installers need not compile, as that is done for all at the end; no user is there to answer questions.
SETTINGS = {
    "PIP_COMPILE": "0",
    "PIP_NO_INPUT": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
#: A set-up that runs out of room half-way is worse than another way to capture. /dev/shm of a container is often this small.
LEAST_FREE_BYTES = 1 << 30
#: Variables that name folders in which installers write what no job needs afterwards.
CACHES = ("TMPDIR", "XDG_CACHE_HOME", "PIP_CACHE_DIR", "UV_CACHE_DIR", "CCACHE_DIR", "TORCH_EXTENSIONS_DIR")


class CaptureSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be captured."""

    commands: tuple[str, ...]
    cwd: str
    roots: tuple[Root, ...]
    environment: Mapping[str, str]
    python: tuple[str, ...]
    """The interpreter of the environment; its folder comes first in the commands' PATH."""
    work_folders: tuple[str, ...]
    """Where to put what is written, first choice first: room for all that is installed."""
    way: str = "auto"
    """"auto", "overlay" or "scan"."""
    watch: tuple[str, ...] = outside.SYSTEM_FOLDERS
    home: str | None = None
    """The user's home, to look for changes in; None: do not look."""
    on_outside: str = "refuse"
    """"refuse" or "note" changes outside the roots."""


def capture(setup: CaptureSetup, on_output: Callable[[bytes], None] = lambda _: None) -> Captured:
    """Run the commands and return what they changed; the stage belongs to the caller, who calls `discard` in the end.

    Raises `SetupFailed`, `CaptureRefused`. After an error nothing is left behind.
    """
    reasons: list[str] = []
    if setup.way in ("auto", "overlay"):
        for parent in setup.work_folders:
            problem = _unfit(setup, parent)
            if problem:
                reasons.append(problem)
                continue
            found = _attempt(setup, parent, reasons, on_output, overlay=True)
            if found is not None:
                return found
        if setup.way == "overlay":
            raise CaptureRefused(f"no overlay is possible: {'; '.join(reasons) or 'no folder to work in was given'}")
    place = next((parent for parent in setup.work_folders if _within(setup, parent) is None), None)
    if place is None:
        raise CaptureRefused(f"nowhere to put a copy of what changes: {'; '.join(reasons)}; set TMPDIR")
    found = _attempt(setup, place, reasons, on_output, overlay=False)
    assert found is not None
    return found


def _within(setup: CaptureSetup, parent: str) -> str | None:
    problem = next((root.path for root in setup.roots if is_within(os.path.realpath(parent), root.path)), None)
    return f"{parent} is within {problem}, which is captured" if problem else None


def _unfit(setup: CaptureSetup, parent: str) -> str | None:
    """Return why no overlay can write to a folder; None: as far as can be seen one can."""
    status = os.statvfs(parent)
    free_bytes = status.f_bavail * status.f_frsize
    if setup.way == "auto" and free_bytes < LEAST_FREE_BYTES:
        return f"{parent} has {free_bytes >> 20} MiB free, at least {LEAST_FREE_BYTES >> 20} are needed"
    return _within(setup, parent)


def discard(captured: Captured) -> None:
    """Remove the stage and what belongs to it."""
    remove_work(os.path.dirname(captured.stage))


def _attempt(
    setup: CaptureSetup, parent: str, reasons: list[str], on_output: Callable[[bytes], None], *, overlay: bool
) -> Captured | None:
    """Capture with what lies in a new folder below `parent`. None: no overlay is possible there, and nothing was run."""
    folder = make_work(parent)
    try:
        os.mkdir(os.path.join(folder, "stage"))
        os.chmod(os.path.join(folder, "stage"), 0o755)  # noqa: S103 - the top of an image that all may read
        run = _Run(setup, folder, on_output)
        found = run.over_overlays(reasons) if overlay else run.by_scan(reasons)
    except BaseException:
        remove_work(folder)
        raise
    if found is None:
        remove_work(folder)
    return found


class _Run:
    """One run of the commands, in a folder of its own."""

    def __init__(self, setup: CaptureSetup, folder: str, on_output: Callable[[bytes], None]) -> None:
        self._setup, self._folder, self._on_output = setup, folder, on_output
        self._stage = os.path.join(folder, "stage")
        path = setup.environment.get("PATH", os.defpath)
        first = os.path.dirname(setup.python[0])
        self._environment = {**setup.environment, **SETTINGS, "PATH": f"{first}:{path}" if first else path}

    def over_overlays(self, reasons: list[str]) -> Captured | None:
        setup = self._setup
        layers = [self._layer(f"stage/r{root.folder}", root.path, f"o{root.folder}") for root in setup.roots]
        watched = [
            self._layer(f"watch{number}", path, f"v{number}")
            for number, path in enumerate(outside.watchable(setup.roots, setup.watch))
        ]
        began_s = time.monotonic()
        report = self._execute(layers, watched)
        if report.refused:
            reasons.append(f"{os.path.dirname(self._folder)}: {report.refused}")
            return None
        took_s = time.monotonic() - began_s
        certain = [
            path
            for layer in watched
            if layer.target in report.watched
            for path in outside.in_watch(layer.upper, layer.target)
        ]
        removed, dropped = [], []
        for root, layer in zip(setup.roots, layers, strict=True):
            gone, left = split_whiteouts(layer.upper, partial(names_in, root.path))
            removed.append(gone)
            dropped += [os.path.join(root.path, path) for path in left]
        method: Method = "userns-overlay" if report.userns else "overlay"
        found = self._captured(removed, dropped, method, took_s, reasons)
        return self._with_outside(found, certain, report)

    def by_scan(self, reasons: list[str]) -> Captured:
        setup = self._setup
        before = [scan.marks(root.path) for root in setup.roots]
        began_s = time.monotonic()
        report = self._execute([], [])
        took_s = time.monotonic() - began_s
        removed, dropped = [], []
        for root, old in zip(setup.roots, before, strict=True):
            changed, gone = scan.compared(old, scan.marks(root.path))
            left = scan.copy(root.path, changed, os.path.join(self._stage, f"r{root.folder}"))
            removed.append(gone)
            dropped += [os.path.join(root.path, path) for path in left]
        return self._with_outside(self._captured(removed, dropped, "scan", took_s, reasons), [], report)

    def _layer(self, upper: str, target: str, work: str) -> Layer:
        layer = Layer(target=target, upper=os.path.join(self._folder, upper), work=os.path.join(self._folder, work))
        os.mkdir(layer.upper)
        os.chmod(layer.upper, stat.S_IMODE(os.stat(target).st_mode) | 0o700)
        os.mkdir(layer.work)
        return layer

    def _execute(self, layers: list[Layer], watched: list[Layer]) -> CaptureReport:
        setup = self._setup
        order = CaptureOrder(
            layers=tuple(layers),
            watched=tuple(watched),
            commands=setup.commands,
            cwd=setup.cwd,
            private=self._private("HOME", *CACHES),
            parent=os.getpid(),
        )
        report, last = run_inside(order, self._folder, self._environment, self._on_output)
        check_codes(order, report, last)
        return report

    def _private(self, *names: str) -> tuple[str, ...]:
        """Return the folders that these variables name."""
        values = [self._environment.get(name, "") for name in names]
        return tuple(os.path.realpath(value) for value in values if os.path.isabs(value))

    def _captured(
        self, removed: list[list[str]], dropped: list[str], method: Method, took_s: float, reasons: list[str]
    ) -> Captured:
        """Compile what was found, and list it."""
        setup = self._setup
        has_whiteouts = True
        for root, gone in zip(setup.roots, removed, strict=True):
            top = os.path.join(self._stage, f"r{root.folder}")
            bytecode.drop_orphans(top)
            has_whiteouts = make_whiteouts(os.path.join(self._stage, f"w{root.folder}"), gone) and has_whiteouts
        self._on_output(bytecode.WORDS)
        bytecode.compile_all(self._stage, setup.roots, setup.python, setup.environment)
        items = listed(self._stage, setup.roots, removed)
        return Captured(
            stage=self._stage,
            roots=tuple(counted(root, index, items) for index, root in enumerate(setup.roots)),
            items=tuple(items),
            method=method,
            has_whiteouts=has_whiteouts,
            outside=(),
            dropped=tuple(dropped[: outside.MOST_NAMED]),
            took_s=took_s,
            reasons=tuple(reasons),
        )

    def _with_outside(self, found: Captured, certain: list[str], report: CaptureReport) -> Captured:
        """Add what was changed elsewhere. Raises `CaptureRefused` if that is certain and not to be passed over."""
        setup = self._setup
        skipped = [root.path for root in setup.roots] + [self._folder, os.path.realpath(setup.cwd), *report.watched]
        skipped += self._private(*CACHES)
        system = [folder for folder in setup.watch if folder not in report.watched and os.access(folder, os.W_OK)]
        certain = certain + outside.changed_since(system, report.began_ns, skipped)
        if certain and setup.on_outside == "refuse":
            more = f" and {len(certain) - 3} more" if len(certain) > 3 else ""
            raise CaptureRefused(
                f"the set-up changed what is not captured: {', '.join(certain[:3])}{more}: other nodes would not have it;"
                " capture its folder, too (--setup-root), or put it into the image"
            )
        home = [setup.home] if setup.home else []
        suspected = outside.changed_since(home, report.began_ns, skipped)
        named = (*certain, *(f"{path} (perhaps by another program)" for path in suspected))
        return msgspec.structs.replace(found, outside=named[: outside.MOST_NAMED])


def counted(root: Root, index: int, items: list[Item]) -> Root:
    """Return a root with how much of it is changed and removed; `index`: which one it is."""
    mine = [item.kind for item in items if item.root == index]
    removed = mine.count("w")
    return msgspec.structs.replace(root, changed=len(mine) - removed, removed=removed)
