"""Images that jobs of tests run in: a small root file system with this very Python, and an environment for a folder."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from robust_run.prefetch.image import build

FILLER_BYTES = 12 << 20
_LEFT_OUT = shutil.ignore_patterns(
    "site-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "config-*",
    "__pycache__", "*.a", "pydoc_data", "unittest", "distutils",
)  # fmt: skip
_PROGRAMS = ("sh", "cat", "id", "sleep")


def needs_images() -> None:
    """Skip where no image can be made or mounted: no mksquashfs, no /dev/fuse, no namespaces."""
    if shutil.which("mksquashfs") is None:
        pytest.skip("mksquashfs is not installed (squashfs-tools)")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("/dev/fuse is not there for us")
    unshare = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    try:
        possible = subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        possible = False
    if not possible:
        pytest.skip("no private mount namespace for us")


def make_python(folder: Path) -> None:
    """Put this interpreter with its library, but without packages, into a folder."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (folder / "bin").mkdir(parents=True)
    (folder / "lib").mkdir()
    interpreter = os.path.realpath(sys.executable)
    shutil.copy(interpreter, folder / "bin" / name)
    (folder / "bin/python3").symlink_to(name)
    shutil.copytree(sysconfig.get_path("stdlib"), folder / "lib" / name, ignore=_LEFT_OUT, symlinks=True)
    for path in _libraries(interpreter):
        if "libpython" in path:
            shutil.copy(path, folder / "lib")


def packages_of(prefix: str) -> str:
    """Where such a Python has its packages; those of Debian and Ubuntu have a folder of their own."""
    program = "import sys, sysconfig; print(sysconfig.get_path('purelib', vars=dict.fromkeys(('base', 'platbase'), sys.argv[1])))"
    outside = [str(sys._base_executable), "-c", program, prefix]  # type: ignore[attr-defined]  # not the environment's way
    return subprocess.run(outside, capture_output=True, text=True, check=True).stdout.strip()


def _libraries(*programs: str) -> list[str]:
    """What programs and libraries are linked with, asked once for all: each question is four processes."""
    words = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False).stdout.split()
    return [word for word in words if word.startswith("/") and not word.endswith(":")]


def make_root_image(folder: Path, name: str = "root.sqsh") -> Path:
    """Make an image of a root file system: a shell, a Python in /opt/python, and a file that nobody reads."""
    root = folder / "rootfs"
    for part in ("bin", "etc", "proc", "sys", "dev", "opt"):
        (root / part).mkdir(parents=True)
    make_python(root / "opt/python")
    wanted = [os.path.realpath(sys.executable)]
    for program in _PROGRAMS:
        found = shutil.which(program) or pytest.skip(f"{program} is not installed")
        shutil.copy(found, root / "bin" / program)
        wanted.append(found)
    wanted += map(str, (root / "opt/python/lib").rglob("*.so"))
    wanted.append(
        str(msgspec._core.__file__)
    )  # what a warm process needs of a system, as any image with a C library has it
    for library in set(_libraries(*wanted)):
        if not (root / library[1:]).exists() and "libpython" not in library:
            (root / library[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, root / library[1:])
    (root / "etc/only-in-image").write_text("of the image\n")
    (root / "etc/environment").write_text("PATH=/opt/python/bin:/bin\nLD_LIBRARY_PATH=/opt/python/lib\nOF_IMAGE=yes\n")
    (root / "opt/filler").write_bytes(random.Random(1).randbytes(FILLER_BYTES))
    build.build(str(root), str(folder / name), build.BuildOptions(compression="lz4"))
    shutil.rmtree(root)
    return folder / name


def root_image_of_run(factory: pytest.TempPathFactory) -> Path:
    """Return a folder of a module's own with such an image, which is made once for all modules and processes of a run."""
    base = factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "root-image"
    shared.mkdir(exist_ok=True)
    with open(shared / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "done").exists():
            make_root_image(shared)
            (shared / "done").touch()
    folder = factory.mktemp("images")
    for name in ("root.sqsh", "root.sqsh.blocks.json"):
        os.link(shared / name, folder / name)
    return folder


def make_environment_image(folder: Path, mount_at: str, *linked: ModuleType, name: str = "environment.sqsh") -> Path:
    """Make an image of a Python environment that belongs at `mount_at`. `linked`: packages of this machine that it has."""
    root = folder / "environment"
    make_python(root)
    (root / "in-image").write_text("of the image\n")
    packages = Path(packages_of(str(root)))
    packages.mkdir(parents=True)
    for package in linked:  # the host's tree is seen around an environment
        (packages / package.__name__).symlink_to(os.path.dirname(str(package.__file__)))
    build.build(str(root), str(folder / name), build.BuildOptions(compression="lz4", mount_at=mount_at))
    shutil.rmtree(root)
    return folder / name


def loops_on(folder: Path) -> list[Path]:
    """The loop devices that show a file below a folder."""
    found = []
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            found += [path] if str(folder) in path.read_text() else []
        except OSError:
            continue
    return found
