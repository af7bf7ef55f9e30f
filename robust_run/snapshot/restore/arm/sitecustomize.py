"""Runs at the start of an interpreter for which a snapshot was put on PYTHONPATH: has its `.pth` files read, too.

Python reads those in site-packages only, not in folders of PYTHONPATH. Nothing is undone: programs that this one starts need the
same. Last it hands over to the program's own `sitecustomize`. It imports nothing but what every Python has loaded by now.
"""

from __future__ import annotations

import os
import sys


def arm() -> None:
    """Add the folders as site-packages. An error in a `.pth` file is said by `site` itself, and no reason to stop."""
    here = os.path.dirname(__file__)
    if here in sys.path:
        sys.path.remove(here)
    sys.path_importer_cache.pop(here, None)
    site = sys.modules.get("site")
    for folder in filter(None, os.environ.get("ROBUST_SETUP_FOLDERS", "").split(os.pathsep)):
        if site is not None:
            site.addsitedir(folder)


if __name__ == "sitecustomize":
    arm()
    del sys.modules["sitecustomize"]
    __import__("sitecustomize")  # the program's own, or the ImportError that `site` expects
