"""Python processes of ours: what is imported at their start stays, so that nobody looks for garbage among it.

Python looks at all objects again and again while their number grows, and several times as a process ends: a fifth of the CPU that
a controller takes from start to end without work. So garbage is collected seldom until all is imported; then what is there is
moved to where Python does not look (`gc.freeze`), and the rest is collected as ever. Only modules of ours and what they need are
there by then: of a user's program nothing is ever frozen (`tracer/arm/startup/fewer_collections.py` says why).
"""

from __future__ import annotations

import gc

SELDOM = (50_000, 20, 50)
"""Thresholds until all is imported."""
_before: list[tuple[tuple[int, int, int], tuple[int, int, int]]] = []


def boot(module: str, call: str, name: str = "main") -> str:
    """Return the program of a child process, for `python -c`: it imports a function of a module of ours, and makes a call.

    No file of the folder that it is started in can take the place of a module.
    """
    return (
        f"import gc, sys; del sys.path[0]; usual = gc.get_threshold(); gc.set_threshold{SELDOM}; "
        f"from {module} import {name}; gc.freeze(); gc.set_threshold(*usual); {call}"
    )


def collect_seldom() -> None:
    """The start of a process: much is about to be imported that stays."""
    usual = gc.get_threshold()
    gc.set_threshold(*SELDOM)
    _before.append((usual, gc.get_threshold()))  # Python 3.14.0 to 3.14.4 always tell 0 for the third


def collect_as_ever() -> None:
    """All is imported: what lives for long goes on with its usual thresholds. Does nothing without `collect_seldom`."""
    if _before:
        gc.freeze()
        usual, seldom = _before.pop()
        if gc.get_threshold() == seldom:
            gc.set_threshold(*usual)
