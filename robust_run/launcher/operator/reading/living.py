"""Whether a run that has said where it serves may still go on: one whose controller was killed has left its `api.json`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from robust_run.errors import RobustRunError
from robust_run.launcher.operator.reading.client import NoAnswerError, reach, this_machine
from robust_run.launcher.operator.reading.place import PLACE_NAME
from robust_run.launcher.operator.views.life import life_of


def may_live(runs: Iterable[str], env: Mapping[str, str], *, token_file: str = "", tls_ca: str = "") -> list[str]:
    """Return those of these run directories whose job may go on: it answers, or nothing here can tell that it does not."""
    served = [path for path in runs if os.path.lexists(os.path.join(path, PLACE_NAME))]
    return [path for path in served if not _is_over(path, token_file, tls_ca, env)]


def _is_over(path: str, token_file: str, tls_ca: str, env: Mapping[str, str]) -> bool:
    """Whether it is known here that nobody controls it any more."""
    try:
        reach(path, token_file, tls_ca, env, this_machine())
    except NoAnswerError as silence:
        from robust_run.launcher.operator.reading.dead import read_dead
        from robust_run.launcher.operator.reading.life_signs import signs_of

        try:
            return life_of(signs_of(read_dead(path), path, silence)).life in ("over", "gone")
        except RobustRunError:
            return False  # its journal cannot be read
    return False
