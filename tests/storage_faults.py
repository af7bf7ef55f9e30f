"""Folders of checkpoints that fail in many ways, and are well again when the test says so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from jobs import wait_for


class Fault:
    """A folder, and its fault."""

    def __init__(self, url: str, words: str) -> None:
        self.url, self.words = url, words
        """What a line about it says."""

    def heal(self) -> None:
        """End it."""
        raise NotImplementedError


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=60)


@contextmanager
def tmpfs(point: Path, options: str) -> Iterator[None]:
    """A real file system; skips where none may be mounted."""
    point.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(point)]
    if os.geteuid() or subprocess.run(command, capture_output=True, timeout=60, check=False).returncode:
        pytest.skip("mounting a file system needs root")
    try:
        yield
    finally:
        _run("umount", "-l", str(point))


class FullDisk(Fault):
    """1 MiB, where more is needed; it grows."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._point = folder / "disk"
        stack.enter_context(tmpfs(self._point, "size=1m"))
        super().__init__(str(self._point / "ckpt"), "No space left on device")

    def heal(self) -> None:
        """Make room."""
        _run("mount", "-o", "remount,size=500m", str(self._point))


class ReadOnlyFolder(Fault):
    """A file system that became read-only."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._point = folder / "disk"
        stack.enter_context(tmpfs(self._point, "size=500m"))
        _run("mount", "-o", "remount,ro", str(self._point))
        super().__init__(str(self._point / "ckpt"), "the file system is read-only")

    def heal(self) -> None:
        """Mount it as it was."""
        _run("mount", "-o", "remount,rw", str(self._point))


#: A file system of fsspec for other processes; half of each large piece is taken, and the rest fails, until a file is there.
_HALF = """
import os
from fsspec.implementations.local import LocalFileSystem

class Half(LocalFileSystem):
    protocol = "half"
    cachable = False

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(str(path).removeprefix("half://"))

    def open(self, path, mode="rb", **more):
        file = super().open(path, mode, **more)
        return Pieces(file) if "w" in mode else file

class Pieces:
    def __init__(self, file):
        self.file = file

    def write(self, data):
        if len(data) > 1 << 20 and not os.path.exists(os.environ["HALF_HEALED"]):
            self.file.write(data[: len(data) // 2])
            open(os.environ["HALF_HEALED"] + ".was-needed", "w").close()
            raise ConnectionResetError(104, "Connection reset by peer")
        return self.file.write(data)

    def __getattr__(self, name):
        return getattr(self.file, name)
"""


class HalfAStore(Fault):
    """An object store whose connection breaks in the middle of each file."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        package = folder / "half"
        (package / "half-0.dist-info").mkdir(parents=True)
        (package / "half_store.py").write_text(_HALF)
        (package / "half-0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: half\nVersion: 0\n")
        (package / "half-0.dist-info" / "entry_points.txt").write_text("[fsspec.specs]\nhalf = half_store:Half\n")
        self._healed = folder / "healed"
        monkeypatch.setenv("PYTHONPATH", str(package))
        monkeypatch.setenv("HALF_HEALED", str(self._healed))
        (folder / "store").mkdir()
        self.folder = folder / "store" / "ckpt"
        super().__init__(f"half://{self.folder}", "Connection reset by peer")

    def heal(self) -> None:
        """Let everything through."""
        assert Path(f"{self._healed}.was-needed").exists()
        self._healed.touch()


class Hanging(Fault):
    """A folder whose calls do not return."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.point, self.behind, self._switch = folder / "point", folder / "behind", folder / "hangs"
        for each in (self.point, self.behind):
            each.mkdir()
        try:
            from robust_run.ckpt_io.mount.manage import check_device
            from robust_run.errors import PlatformError

            check_device()
            import mfusepy  # noqa: F401
        except (PlatformError, OSError, ImportError) as error:
            pytest.skip(str(error))
        program = str(Path(__file__).parent / "hanging_folder.py")
        command = [sys.executable, program, str(self.point), str(self.behind), str(self._switch)]
        self._process = subprocess.Popen(command)
        stack.callback(self._end)
        wait_for(lambda: os.path.ismount(self.point), "the folder to be mounted")
        super().__init__(str(self.point / "ckpt"), "hangs")

    def begin(self) -> None:
        """Hang from now on."""
        self._switch.touch()

    def heal(self) -> None:
        """Let all calls return."""
        self._switch.unlink(missing_ok=True)

    def _end(self) -> None:
        self.heal()
        subprocess.run(["fusermount3", "-uz", str(self.point)], timeout=60, check=False, capture_output=True)
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(60)
