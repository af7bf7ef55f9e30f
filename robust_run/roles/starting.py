"""Start of a job of several roles from Python: what `robust-run --roles FILE` does, from a notebook or a scheduler's script.

job = roles.launch({
    "name": "dapo",
    "roles": {
        "trainer": {"command": "train.py", "ends": "job"},
        "rollout": {"command": "rollout.py", "members": 4, "restart": "alone"},
    },
})
job.wait()
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from robust_run.errors import UserError


def launch(
    roles: Mapping[str, Any] | str | os.PathLike[str],
    options: Sequence[str] = (),
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a job, and return the process that guards it: wait for it, or send it SIGTERM to end the job.

    `roles`: what the file of roles says, or its path. `options`: of `robust-run`, such as ("--log-dir", "runs"). A mistake in
    `roles` is told by the process, in a line, with exit code 2. Raises UserError for what cannot be written down, OSError.
    """
    if not isinstance(roles, Mapping):
        return _start(os.fspath(roles), options, env, cwd, None)
    try:
        text = json.dumps(roles)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"the roles have what no file can hold: {error}; use text, numbers, lists and tables"
        ) from error
    # The file is read before anything is started. It has no name that could be left behind.
    with tempfile.TemporaryFile() as file:
        file.write(text.encode())
        file.flush()
        return _start(f"/dev/fd/{file.fileno()}", options, env, cwd, file.fileno())


def _start(
    path: str,
    options: Sequence[str],
    env: Mapping[str, str] | None,
    cwd: str | os.PathLike[str] | None,
    descriptor: int | None,
) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "robust_run", "--roles", path, *options]
    handed = () if descriptor is None else (descriptor,)
    return subprocess.Popen(argv, env=None if env is None else dict(env), cwd=cwd, pass_fds=handed)
