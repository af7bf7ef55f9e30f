"""What an image wants its programs to find in their environment, as each kind of image says it. Pure but for three small files.

Ours says so in `.robust-image.json`; enroot writes `/etc/environment`; Apptainer writes shell scripts, of which the plain
assignments are understood and everything else is ignored: nothing of an image is run to prepare it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

import msgspec

from robust_run.decoders import json_decoder
from robust_run.prefetch.image.description import DESCRIPTION, Description
from robust_run.prefetch.image.places import NoPlaceError, resolve

_LARGEST_BYTES = 256 << 10
_MOST_VARIABLES = 1024
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SCRIPT_LINE = re.compile(r"\s*export\s+(?P<name>[A-Za-z_]\w*)=(?P<value>.*)")
_DEFAULT = re.compile(r'\$\{(?P<name>\w+):?-"?(?P<value>[^"$`\\]*)"?\}')
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: Variables that mean the host's own installation and would mislead programs of an image.
_OF_THE_HOST = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_EXE")
#: What an image's own environment must not decide.
_OF_THE_USER = ("HOME", "USER", "LOGNAME", "PWD", "OLDPWD", "TERM", "HOSTNAME", "SHELL")


def of_image(root: str) -> tuple[str, ...]:
    """Return `NAME=VALUE` for each variable that the image in the folder `root` sets; none where it says nothing."""
    own = text_in(root, DESCRIPTION)
    if own is not None:
        try:
            return _sound(json_decoder(Description).decode(own).env)
        except msgspec.MsgspecError:
            return ()
    script = text_in(root, ".singularity.d/env/10-docker2singularity.sh")
    if script is not None:
        return _sound(assignments(script))
    return _sound((text_in(root, "etc/environment") or "").splitlines())


def assignments(script: str) -> list[str]:
    """Return the plain assignments of a shell script that exports variables, as `NAME=VALUE`. Pure."""
    found = []
    for line in script.splitlines():
        matched = _SCRIPT_LINE.fullmatch(line)
        if matched is None:
            continue
        value = matched["value"].strip()
        quoted = len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'"
        value = value[1:-1] if quoted else value
        given = _DEFAULT.fullmatch(value)
        value = given["value"] if given else value
        if not set(value) & set("$`\\"):
            found.append(f"{matched['name']}={value}")
    return found


def merged(host: Mapping[str, str], image: Sequence[str], libraries: str = "") -> dict[str, str]:
    """Return what a program inside starts with: the host's variables, but where its programs and libraries are, the image's.

    `libraries`: a folder where libraries are looked for last.
    """
    env = {name: value for name, value in host.items() if name not in _OF_THE_HOST}
    env["PATH"] = _PATH
    for line in image:
        name, _equals, value = line.partition("=")
        if name not in _OF_THE_USER:
            env[name] = value
    if libraries:
        env["LD_LIBRARY_PATH"] = f"{env['LD_LIBRARY_PATH']}:{libraries}" if env.get("LD_LIBRARY_PATH") else libraries
    return env


def python_in(root: str, image: Sequence[str]) -> str:
    """Return the path in the image of the interpreter that its PATH finds, "" where there is none."""
    path = dict(line.partition("=")[::2] for line in image).get("PATH") or _PATH
    for name in ("python3", "python"):
        for folder in path.split(":"):
            if not folder.startswith("/"):
                continue
            try:
                place = os.path.join(root, resolve(root, f"{folder}/{name}"))
            except NoPlaceError:
                continue
            if os.path.isfile(place) and os.access(place, os.X_OK):
                return os.path.join(folder, name)
    return ""


def _sound(lines: Sequence[str]) -> tuple[str, ...]:
    kept = []
    for line in lines[:_MOST_VARIABLES]:
        name, equals, value = line.partition("=")
        if equals and _NAME.fullmatch(name) and "\0" not in value:
            kept.append(f"{name}={value.strip()}")
    return tuple(kept)


def text_in(root: str, name: str) -> str | None:
    """Return a small file of the image; None where it is missing, leads out, or is no such file."""
    try:
        place = os.path.join(root, resolve(root, name))
        if not os.path.isfile(place):
            return None
        with open(place, "rb") as file:
            return file.read(_LARGEST_BYTES).decode("utf-8", "replace")
    except (NoPlaceError, OSError):
        return None
