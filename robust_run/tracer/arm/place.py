"""Where the recorder in C lies that was built for this Python (`robust_run/tracer/native`), if it was.

`sitecustomize` loads this file by its path; the build takes names from here. Python's standard library only.
"""

from __future__ import annotations

import os
import sys

SOURCE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "native", "recorder.c")
FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden")
MODULE = "robust_run_native"


def suffix() -> str:
    """Return how names of objects for this Python end, as import systems have it: `.cpython-311-x86_64-linux-gnu.so`."""
    from _imp import extension_suffixes

    return str(extension_suffixes()[0])


def cache_folder() -> str:
    """Return where this user's objects are kept, as `tracer.plugin.build` has it."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "robust-run")


def target_path(folder: str) -> str:
    """Return where the object of this source, for this very build of Python and this C library, is kept. Raises OSError."""
    import binascii  # only the user may put files there: it is a matter of versions, not of trust

    content, folder_of_source = b"", os.path.dirname(SOURCE)
    for name in sorted(os.listdir(folder_of_source)):
        if name.endswith((".c", ".h")):
            with open(os.path.join(folder_of_source, name), "rb") as source:
                content += source.read()
    libc = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else ""
    parts = ("\0".join(FLAGS), libc or "", os.uname().machine, sys.version)
    digest = binascii.crc32("\0".join(parts).encode(), binascii.crc32(content))
    return os.path.join(folder, f"{MODULE}-{digest:08x}{len(content):08x}{suffix()}")


def at_hand(folder: str = "") -> str:
    """Return the path of the object if it lies there, in a folder that only this user writes to; else empty. Never raises."""
    try:
        place = folder or cache_folder()
        about = os.lstat(place)
        if about.st_uid != os.geteuid() or about.st_mode & 0o022:
            return ""
        target = target_path(place)
    except OSError:
        return ""
    return target if os.path.isfile(target) else ""
