"""Running the set-up inside an image and returning exactly what it changed there: all of it, whatever folder it is in.

The image is shown as it is to its programs, but what they write goes to a folder of ours (`open_room`). This machine's own
folders that are bound into it stay what they are: what is changed in those is not captured.

**Invariant:** nothing of the image runs outside of it, and its own interpreter compiles what it will import.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

import msgspec

from robust_run.decoders import json_decoder
from robust_run.errors import PlatformError
from robust_run.snapshot.capture import bytecode, outside
from robust_run.snapshot.capture.capturing import CACHES, LEAST_FREE_BYTES, SETTINGS, CaptureSetup, counted
from robust_run.snapshot.capture.running import Heard, check_codes, run_inside
from robust_run.snapshot.capture.stage import listed, make_whiteouts, opaque_folders, split_whiteouts
from robust_run.snapshot.capture.types import Captured, CaptureOrder
from robust_run.snapshot.capture.work import make_work, remove_work
from robust_run.snapshot.errors import CaptureRefused, SnapshotError
from robust_run.snapshot.rules.types import SnapshotPlatform

#: What no worker needs of what a set-up leaves: gone with the next start of a machine, too.
_PASSING = ("run", "var/run", "var/tmp")
_ANSWER_S = 120.0
_COMPILE_S = 1800.0
_FACTS = """
import json, os, platform, sys, sysconfig
print(json.dumps({"platform": {
    "system": platform.system().lower(), "machine": platform.machine(), "libc": " ".join(platform.libc_ver()).strip(),
    "python": "%s %s.%s" % ((sys.implementation.name,) + tuple(sys.version_info[:2])),
    "soabi": str(sysconfig.get_config_var("SOABI") or "")}, "has_shell": os.access("/bin/sh", os.X_OK)}))
"""
_NAMES = """
import json, os, sys
def names(path):
    try:
        return os.listdir(os.path.join(sys.argv[1], path))
    except OSError:
        return []
print(json.dumps([names(path) for path in json.load(sys.stdin)]))
"""


class ImageRoom(Protocol):
    """An image that can be written to. `prefetch.inside.Inside` is one."""

    @property
    def python(self) -> str:
        """The image's interpreter; "" where it has none."""
        ...

    @property
    def in_user_namespace(self) -> bool:
        """Whether it is seen in a user namespace of ours."""
        ...

    def command(self, argv: Sequence[str], working_directory: str) -> list[str]:
        """Return the argv that runs a program in it."""
        ...

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return what programs there have in place of our environment."""
        ...

    def stop(self) -> None:
        """Let it go. Never raises."""
        ...


class RoomOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What a capture needs of an image."""

    changes: str
    """An empty folder of ours: what is written to the image goes to the folder `changes` in it."""
    lower: str
    """An empty folder, at whose path the image is to be seen as it is."""
    given: str
    """A folder that is to be seen at the same path."""


class _Facts(msgspec.Struct, frozen=True):
    """What the image's Python says of itself and of the image."""

    platform: SnapshotPlatform
    has_shell: bool


_T = TypeVar("_T")


def capture(
    setup: CaptureSetup, open_room: Callable[[RoomOrder], ImageRoom], on_output: Callable[[bytes], None]
) -> Captured:
    """Run the commands inside an image, and return what they changed; the stage belongs to the caller, who calls `discard`.

    `setup.python`: the interpreter in the image; its name "" is that of the room. Raises `SetupFailed`, `CaptureRefused`,
    `SnapshotError`, and what `open_room` raises. After an error nothing is left behind.
    """
    reasons: list[str] = []
    failed: PlatformError | None = None
    for parent in setup.work_folders:
        status = os.statvfs(parent)
        if (free_bytes := status.f_bavail * status.f_frsize) < LEAST_FREE_BYTES:
            reasons.append(f"{parent} has {free_bytes >> 20} MiB free, at least {LEAST_FREE_BYTES >> 20} are needed")
            continue
        folder = make_work(parent)
        try:
            try:
                room = open_room(_order(folder))
            except PlatformError as error:  # no overlay can write there: another folder may do
                failed = error
                remove_work(folder)
                continue
            return _Run(setup, folder, room, on_output).done(reasons)
        except BaseException:
            remove_work(folder)
            raise
    if failed is not None:
        raise failed
    raise CaptureRefused(f"nowhere to put what the set-up changes: {'; '.join(reasons)}; set TMPDIR")


def _order(folder: str) -> RoomOrder:
    found = RoomOrder(**{name: os.path.join(folder, name) for name in ("changes", "lower", "given")})
    for path in (found.changes, found.lower, found.given, os.path.join(folder, "stage")):
        os.mkdir(path)
        os.chmod(path, 0o755)  # noqa: S103 - the top of an image that all may read
    return found


class _Run:
    """One run of the commands, in a folder of its own."""

    def __init__(self, setup: CaptureSetup, folder: str, room: ImageRoom, on_output: Callable[[bytes], None]) -> None:
        self._setup, self._folder, self._room, self._on_output = setup, folder, room, on_output
        self._python = setup.python[0] or room.python
        inner = {**room.environment(setup.environment), **SETTINGS}
        first, path = os.path.dirname(self._python), inner.get("PATH", os.defpath)
        self._environment = {**inner, "PATH": f"{first}:{path}" if first else path}

    def done(self, reasons: list[str]) -> Captured:
        """Run them. The room is closed in the end."""
        stage, began_ns = os.path.join(self._folder, "stage"), 0
        written = os.path.join(self._folder, "changes", "changes")
        try:
            facts = self._facts()
            began_ns, took_s = self._execute()
            self._on_output(bytecode.WORDS)
            self._compile(written)
            below = self._names_below(opaque_folders(written))
            method = "userns-overlay" if self._room.in_user_namespace else "overlay"
        finally:
            self._room.stop()
        top = os.path.join(stage, "r0")
        os.rename(written, top)
        os.chmod(top, stat.S_IMODE(os.stat(top).st_mode) | 0o755)  # noqa: S103 - the top of an image that all may read
        if self._setup.roots[0].path == "/":
            drop_passing(top, [*_PASSING, *filter(os.path.isabs, (self._environment.get(each, "") for each in CACHES))])
        gone, left = split_whiteouts(top, lambda path: below.get(path, set()))
        bytecode.drop_orphans(top)
        has_whiteouts = make_whiteouts(os.path.join(stage, "w0"), gone)
        items = listed(stage, self._setup.roots, [gone])
        return Captured(
            stage=stage,
            roots=tuple(counted(root, index, items) for index, root in enumerate(self._setup.roots)),
            items=tuple(items),
            method=method,  # type: ignore[arg-type]
            has_whiteouts=has_whiteouts,
            outside=self._outside(began_ns),
            dropped=tuple(os.path.join(self._setup.roots[0].path, path) for path in left[: outside.MOST_NAMED]),
            took_s=took_s,
            platform=facts.platform,
            reasons=tuple(reasons),
        )

    def _execute(self) -> tuple[int, float]:
        """Run the commands. Returns the Unix time in ns when they began, and the seconds that they took."""
        order = self._command(self._setup.commands, "/bin/sh")
        began_s = time.monotonic()
        report, last = run_inside(order, self._folder, self._environment, self._on_output)
        check_codes(order, report, last)
        return report.began_ns, time.monotonic() - began_s

    def _command(self, commands: Sequence[str], shell: str) -> CaptureOrder:
        setup = self._setup
        return CaptureOrder(
            layers=(),
            watched=(),
            commands=tuple(commands),
            cwd=setup.cwd,
            private=(),
            parent=os.getpid(),
            shell=shell,
            entry=tuple(self._room.command((), setup.cwd)),
        )

    def _compile(self, written: str) -> None:
        """Have what will be imported compiled by the interpreter that imports it, where it lies. Slower imports are no error."""
        top = self._setup.roots[0].path
        found = bytecode.sources_in(written)
        places = ((os.path.join(top, os.path.relpath(path, written)), size_bytes) for path, size_bytes in found)
        lists = bytecode.write_lists(places, os.path.join(self._folder, "given", "sources"))
        if not lists:
            return
        environment = {**self._environment, "PYTHONHASHSEED": "0"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        give_up_at_s = time.monotonic() + _COMPILE_S

        def check() -> None:
            if isinstance(self._on_output, Heard):
                self._on_output.check()
            if time.monotonic() > give_up_at_s:
                raise SnapshotError(f"compiling took longer than {_COMPILE_S:g} s")

        order = self._command((bytecode.program(lists),), self._python)
        with suppress(OSError, SnapshotError):
            run_inside(order, self._folder, environment, Heard(lambda _: None, check))

    def _names_below(self, folders: list[str]) -> dict[str, set[str]]:
        """Return what the image itself has in these folders."""
        if not folders:
            return {}
        lower = os.path.join(self._folder, "lower")
        try:
            asked = msgspec.json.encode(folders)
        except UnicodeEncodeError as error:
            raise CaptureRefused(
                "a folder that the set-up made has a name that is no valid UTF-8: have the set-up command rename it"
            ) from error
        said = self._ask(_NAMES, [lower], asked)
        return dict(zip(folders, map(set, _decoded(said, list[list[str]], self._python)), strict=True))

    def _facts(self) -> _Facts:
        found = _decoded(self._ask(_FACTS, []), _Facts, self._python)
        if not found.has_shell:
            raise SnapshotError("--setup: the image has no /bin/sh to run commands with: install into the image")
        return found

    def _ask(self, code: str, words: list[str], given: bytes = b"") -> bytes:
        """Return what the image's Python writes. Raises `SnapshotError`."""
        argv = self._room.command([self._python, "-S", "-c", code, *words], "/")
        try:
            done = subprocess.run(
                argv, env=self._environment, input=given, capture_output=True, timeout=_ANSWER_S, check=False
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise SnapshotError(f"--setup: the image's Python cannot be run: {error}") from error
        if done.returncode:
            said = done.stderr.decode("utf-8", "replace").strip().splitlines()
            last = (said or ["it said nothing"])[-1][:300]
            raise SnapshotError(f"--setup: the image's Python ({self._python}) ended with {done.returncode}: {last}")
        return done.stdout

    def _outside(self, began_ns: int) -> tuple[str, ...]:
        """Return what was changed in the home, as far as can be told. It is on this machine only."""
        setup = self._setup
        names = [self._environment.get(name, "") for name in CACHES]
        skipped = [self._folder, os.path.realpath(setup.cwd), *(os.path.realpath(each) for each in names if each)]
        found = outside.changed_since([setup.home] if setup.home else [], began_ns, skipped)
        return tuple(f"{path} (perhaps by another program)" for path in found[: outside.MOST_NAMED])


def drop_passing(top: str, paths: Iterable[str]) -> None:
    """Remove folders of an image from what was written to it. No link that was written is followed: it would lead out."""
    real = os.path.realpath(top)
    for path in paths:
        place = os.path.normpath(os.path.join("/", path)).lstrip("/")
        found = os.path.join(real, place)
        if place and os.path.realpath(found) == found:
            shutil.rmtree(found, ignore_errors=True)


def _decoded(said: bytes, kind: type[_T], python: str) -> _T:
    try:
        return json_decoder(kind).decode(said)
    except msgspec.MsgspecError as error:
        raise SnapshotError(f"--setup: the image's Python ({python}) gives no answer that is one: {error}") from error
