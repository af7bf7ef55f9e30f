"""Puts the guide into the wheel; and, where there is a C compiler, the plugin for NCCL and the recorder in C.

Without the one the wheel cannot trace NCCL, until a compiler is found where it runs; without the other it records in Python.
"""

from __future__ import annotations

import importlib.util
import os
import re
import struct
import sys
import sysconfig
import tempfile
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = os.path.join("robust_run", "tracer", "plugin")
#: The guide in the source tree, where `robust_run.guide` looks for it in a wheel, and what of it goes elsewhere.
GUIDE, GUIDE_IN_WHEEL, NOT_GUIDE = "docs", "robust_run/guide_files", ("man",)
#: Libraries that every Linux with glibc has, under these names.
GLIBC_S_OWN = re.compile(r"(libc|libpthread|libdl|librt|libm)\.so\.\d+|ld-linux[\w-]*\.so\.\d+")
#: Manylinux tags are understood from here on (PEP 600: manylinux_2_17 is manylinux2014).
OLDEST_GLIBC = (2, 17)
#: Types of sections in an ELF file: dynamic entries, versions of symbols needed.
DYNAMIC, VERNEED = 6, 0x6FFFFFFE


class PluginBuildHook(BuildHookInterface[Any]):
    """Adds the compiled plugin to wheels. Editable installs build it when it is first asked for."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and name the wheel after the platform if that worked."""
        if version == "editable":
            return
        build_data["force_include"].update(guide_files(self.root))
        build = load(os.path.join(self.root, FOLDER, "build.py"))
        self._work = tempfile.TemporaryDirectory()
        target = os.path.join(self._work.name, build.OBJECT_NAME)
        reason = build.compile_plugin(target)
        if reason:
            print(f"robust-run: the wheel is built without the tracing of NCCL: {reason}", file=sys.stderr)
            return
        build_data["force_include"][target] = f"robust_run/tracer/plugin/{build.OBJECT_NAME}"
        build_data["pure_python"] = False
        objects = [target, *self.recorder(build_data)]
        build_data["tag"] = f"py3-none-{platform_tag([read(path) for path in objects], sysconfig.get_platform())}"

    def recorder(self, build_data: dict[str, Any]) -> list[str]:
        """Compile the recorder for the Python that builds the wheel; others make their own. Return what was made."""
        sys.path.insert(0, self.root)
        try:
            from robust_run.tracer.native import build
        finally:
            sys.path.remove(self.root)
        target = os.path.join(self._work.name, build.object_name())
        reason = build.compile_recorder(target)
        if reason:
            print(f"robust-run: the wheel is built without the recorder in C: {reason}", file=sys.stderr)
            return []
        build_data["force_include"][target] = f"robust_run/tracer/native/{build.object_name()}"
        return [target]

    def finalize(self, *_: Any) -> None:
        """Forget what was compiled."""
        if hasattr(self, "_work"):
            self._work.cleanup()


def guide_files(root: str) -> dict[str, str]:
    """Return the files of the guide, and the path of each in the wheel. An editable install reads them where they are."""
    found: dict[str, str] = {}
    for folder, folders, files in os.walk(os.path.join(root, GUIDE)):
        folders[:] = [name for name in folders if name not in NOT_GUIDE and not name.startswith(".")]
        inner = os.path.relpath(folder, os.path.join(root, GUIDE))
        for name in files:
            place = os.path.normpath(os.path.join(GUIDE_IN_WHEEL, inner, name))
            found[os.path.join(folder, name)] = place.replace(os.sep, "/")
    return found


def read(path: str) -> bytes:
    """Return the content of a file."""
    with open(path, "rb") as file:
        return file.read()


def platform_tag(objects: list[bytes], platform: str) -> str:
    """Return the wheel's tag: that of the oldest glibc that the objects run with, or of this machine where that is not known.

    An index takes wheels for `manylinux_2_17_x86_64`, and none for `linux_x86_64`.
    """
    plain = re.sub(r"[-.]", "_", platform)
    needed = [glibc_needed(content) for content in objects] if platform.startswith("linux-") else [None]
    if None in needed:
        return plain
    major, minor = max(OLDEST_GLIBC, *(glibc for glibc in needed if glibc is not None))
    return f"many{plain}".replace("manylinux_", f"manylinux_{major}_{minor}_", 1)


def glibc_needed(content: bytes) -> tuple[int, int] | None:
    """Return the newest version of glibc's symbols that an object uses; None if it needs anything else, or cannot be read."""
    try:
        return _glibc_needed(content)
    except (struct.error, IndexError, UnicodeDecodeError, ValueError):
        return None


def _glibc_needed(content: bytes) -> tuple[int, int] | None:
    if content[:6] != b"\x7fELF\x02\x01":  # 64 bits, little end first
        return None
    sections_at, size, count = (*struct.unpack_from("<Q", content, 40), *struct.unpack_from("<HH", content, 58))
    sections = [struct.unpack_from("<IIQQQQIIQQ", content, sections_at + size * number) for number in range(count)]
    newest = None
    for _, kind, _, _, start, length, link, entries, _, _ in sections:
        if kind not in (DYNAMIC, VERNEED):
            continue
        texts = sections[link][4]
        if kind == DYNAMIC:
            pairs = [struct.unpack_from("<qQ", content, start + at) for at in range(0, length, 16)]
            if not all(GLIBC_S_OWN.fullmatch(_text(content, texts + value)) for tag, value in pairs if tag == 1):
                return None
        else:
            newest = max(_versions(content, start, texts, entries))
    return newest


def _versions(content: bytes, start: int, texts: int, entries: int) -> list[tuple[int, int]]:
    """Return the versions in the section of versions needed. Raises ValueError for one that is not glibc's."""
    found = []
    for _ in range(entries):
        _, count, _, auxiliary, following = struct.unpack_from("<HHIII", content, start)
        at = start + auxiliary
        for _ in range(count):
            _, _, _, name, forward = struct.unpack_from("<IHHII", content, at)
            prefix, _, version = _text(content, texts + name).partition("_")
            if prefix != "GLIBC":
                raise ValueError(f"a version of another library: {prefix}_{version}")
            major, minor = version.split(".")[:2]
            found.append((int(major), int(minor)))
            at += forward
        start += following
    return found


def _text(content: bytes, at: int) -> str:
    return content[at : content.index(b"\0", at)].decode("ascii")


def load(path: str) -> ModuleType:
    """Return a module of the source tree; its package may not be importable here."""
    spec = importlib.util.spec_from_file_location("nccl_build", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
