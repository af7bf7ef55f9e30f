"""What this machine and interpreter are, as far as compiled files and installers care; and whether two of them fit."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator

import msgspec

from robust_run.snapshot.roots import is_within
from robust_run.snapshot.rules.types import IMAGE, SnapshotPlatform

_DRIVER = re.compile(r"Kernel Module[^0-9]*(\d+)\.")


class SetupFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What decides what a set-up produces besides its words and files."""

    platform: SnapshotPlatform
    python_build: str
    """`sys.version`: two builds of one version may differ."""
    prefix: str
    base_prefix: str
    gpu: str
    """Models and major version of the driver; "none"."""
    base_image: str = ""
    """Digest of the container image where one is known."""

    def named(self) -> Iterator[tuple[str, str]]:
        """Yield names and values of ingredients."""
        yield "platform", f"{self.platform.system} {self.platform.machine}"
        yield "libc", self.platform.libc
        yield "python", f"{self.platform.python} {self.platform.soabi}"
        yield "python build", self.python_build
        yield "prefix", f"{self.prefix} on {self.base_prefix}"
        yield "gpu", self.gpu
        if self.base_image:
            yield "base image", self.base_image


class ImageFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What decides what a set-up produces inside an image besides its words and files: the rest is the image's."""

    identity: str
    """`prefetch.blockmap.identity` of it."""
    machine: str
    python: str
    """The interpreter's path in it where one was named; "": the first on its PATH."""
    gpu: str
    shown: tuple[tuple[str, str], ...]
    """Where the commands see what of this machine, of paths in each other the longest counts; "": the image's own."""

    def on_host(self, path: str) -> str | None:
        """Return what the commands find at a path as a path of this machine; None: it is the image's. Pure."""
        over = [each for each in self.shown if is_within(path, each[0])]
        there, here = max(over, key=lambda each: len(each[0]), default=("", ""))
        if not here:
            return None
        return here if path == there else posixpath.join(here, posixpath.relpath(path, there))

    def named(self) -> Iterator[tuple[str, str]]:
        """Yield names and values of ingredients."""
        yield IMAGE, self.identity
        yield "platform", f"linux {self.machine}"
        yield "python", self.python or "the image's"
        yield "gpu", self.gpu


def here(base_image: str = "", proc: str = "/proc") -> SetupFacts:
    """Return the facts of this interpreter on this machine."""
    import platform
    import sys
    import sysconfig

    libc = " ".join(platform.libc_ver()).strip()
    version = ".".join(str(part) for part in sys.version_info[:2])
    return SetupFacts(
        platform=SnapshotPlatform(
            system=platform.system().lower(),
            machine=platform.machine(),
            libc=libc,
            python=f"{sys.implementation.name} {version}",
            soabi=str(sysconfig.get_config_var("SOABI") or ""),
        ),
        python_build=sys.version,
        prefix=os.path.realpath(sys.prefix),
        base_prefix=os.path.realpath(sys.base_prefix),
        gpu=gpu_class(proc),
        base_image=base_image,
    )


def gpu_class(proc: str = "/proc") -> str:
    """Return models and driver of the GPUs, such as "NVIDIA H200, driver 550"; "none" without a driver."""
    folder = os.path.join(proc, "driver/nvidia")
    try:
        with open(os.path.join(folder, "version"), encoding="utf-8", errors="replace") as file:
            found = _DRIVER.search(file.read(4096))
    except OSError:
        return "none"
    models = set()
    try:
        for item in list(os.scandir(os.path.join(folder, "gpus"))):
            with open(os.path.join(item.path, "information"), encoding="utf-8", errors="replace") as file:
                models |= {
                    line.partition(":")[2].strip() for line in file.read(4096).splitlines() if line.startswith("Model")
                }
    except OSError:
        models.add("unknown GPU")
    return ", ".join([*sorted(models), f"driver {found[1] if found else 'unknown'}"])


def mismatch(built: SnapshotPlatform, ours: SnapshotPlatform) -> str | None:
    """Return why what was built there does not run here; None: it does."""
    for name in ("system", "machine", "python", "soabi"):
        there, own = getattr(built, name), getattr(ours, name)
        if there != own:
            return f"it was built for {name} {there!r}, this is {own!r}"
    family, _, version = built.libc.partition(" ")
    our_family, _, our_version = ours.libc.partition(" ")
    if family != our_family:
        return f"it was built on {built.libc or 'an unknown libc'}, this is {ours.libc or 'an unknown libc'}"
    if _numbers(our_version) < _numbers(version):
        return f"it was built on {built.libc}, this is older: {ours.libc}"
    return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:4])
