"""This package as workers in an image see it: at a place of its own, so that it hides nothing that the image has.

What arms the tracer and what warm processes are made of is bound in, read-only: the image need not have robust_run. It is on no
worker's path, so a program that imports robust_run gets the image's, or none.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import robust_run
from robust_run.errors import PlatformError
from robust_run.prefetch.inside import Bind

#: Folder of the image cache; what is in it is seen inside only. Below it: folders of these names, empty on the host.
_FOLDER, _PACKAGE, _DEPENDENCY = "ours", "robust_run", "msgspec"


def package() -> str:
    """Return where this package lies."""
    return os.path.dirname(os.path.abspath(robust_run.__file__))


def library(cache: str) -> str:
    """Return the folder from which it can be imported inside."""
    return os.path.join(os.path.abspath(cache), _FOLDER)


def own_binds(cache: str) -> tuple[Bind, ...]:
    """Return what is bound, and make the places for it. Raises PlatformError."""
    import msgspec

    sources = {_PACKAGE: package(), _DEPENDENCY: os.path.dirname(os.path.abspath(msgspec.__file__))}
    found = []
    for name, source in sources.items():
        place = os.path.join(library(cache), name)
        try:
            os.makedirs(place, mode=0o700, exist_ok=True)
        except OSError as error:
            raise PlatformError(f"{place}: {error.strerror}: name another --image-cache folder") from error
        found.append(Bind(source=source, destination=place, read_only=True))
    return tuple(found)


def moved(env: Mapping[str, str], cache: str) -> dict[str, str]:
    """Return variables that name files of this package as they are inside. Pure but for where it lies."""
    here, there = package(), os.path.join(library(cache), _PACKAGE)

    def part(text: str) -> str:
        return there + text[len(here) :] if text == here or text.startswith(here + "/") else text

    return {
        name: os.pathsep.join(map(part, value.split(os.pathsep))) if here in value else value
        for name, value in env.items()
    }
