"""Shared secret of a job's nodes, and the token derived from it for one job.

The secret is looked for in --token-file, then ROBUST_TOKEN, then a file of the user's own, which the first job makes:
where home folders are shared, all nodes find the same one. A job's token is derived from it, so that who learns the
token of one job (it is in its run directory) can join no other.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from robust_run.atomic_file import write_file
from robust_run.errors import PlatformError, UserError
from robust_run.launcher.model.job import ManyNodes
from robust_run.launcher.model.world import shown
from robust_run.secret_file import SHORTEST, checked, read_secret

VARIABLE = "ROBUST_TOKEN"
READING_NAME = "token.read"
"""File in a run directory with the token that may only read."""

NO_SECRET = "robust-run --insecure-rendezvous"  # noqa: S105 - everybody knows it
"""In place of a secret where a user does without: known to all, so that nodes still find out that they are of one job."""

_RANDOM_BYTES = 32
_EXPORT = f"export {VARIABLE} with {SHORTEST} or more random characters, the same on every node"
_DOMAIN = b"robust-run job token\0"
_READING = b"robust-run reading token\0"
_METRICS = b"robust-run metrics token\0"
_KEEPERS = b"robust-run memory keepers\0"
_FETCHERS = b"robust-run units of checkpoints\0"


def find_secret(token_file: str, env: Mapping[str, str]) -> str:
    """Return the secret; `token_file` is absolute, or empty if none was named. May make the user's own file.

    Raises UserError if there is none, or one that others can read or guess.
    """
    if token_file:
        secret = read_secret(token_file, _EXPORT)
        if secret is None:
            raise UserError(f"--token-file {shown(token_file)} does not exist; make it with mode 0600, or {_EXPORT}")
        return secret
    if env.get(VARIABLE):
        return checked(env[VARIABLE], VARIABLE)
    path = _own_file(env)
    secret = read_secret(path, _EXPORT)
    return secret if secret is not None else _make(path)


def job_secret(many: ManyNodes, env: Mapping[str, str]) -> str:
    """Return the secret of a job, or what stands for one where a user does without. Raises UserError."""
    return NO_SECRET if many.insecure else find_secret(many.token_file, env)


def job_name(many: ManyNodes) -> str:
    """Return what all nodes of a job call it before they have talked: its name, else where they meet."""
    return many.job or f"endpoint {many.host.lower().rstrip('.')}:{many.port}"


def job_token(secret: str, name: str) -> str:
    """Return the token of one job, 64 hexadecimal digits: it tells nothing of the secret or of other jobs' tokens."""
    import hmac

    return hmac.new(
        secret.encode(errors="surrogateescape"), _DOMAIN + name.encode(errors="surrogateescape"), "sha256"
    ).hexdigest()


def reading_token(token: str) -> str:
    """Return the token that may only look at a job, 64 hexadecimal digits: it tells nothing of the job's own."""
    import hmac

    return hmac.new(token.encode(errors="surrogateescape"), _READING, "sha256").hexdigest()


def metrics_token(secret: str) -> str:
    """Return the token that may read the metrics of every job of a secret, and nothing else, 64 hexadecimal digits.

    A Prometheus that finds jobs by itself has one for all of them; each job's own differ.
    """
    import hmac

    return hmac.new(secret.encode(errors="surrogateescape"), _METRICS, "sha256").hexdigest()


def metrics_token_here(token_file: str, env: Mapping[str, str]) -> str:
    """Return the metrics token of the secret that is here already; empty where there is none, or it cannot be used."""
    try:
        if token_file:
            secret = read_secret(token_file)
        else:
            secret = checked(env[VARIABLE], VARIABLE) if env.get(VARIABLE) else read_secret(_own_file(env))
    except UserError:
        return ""
    return metrics_token(secret) if secret is not None else ""


def keeper_key(token: str, run_id: str) -> bytes:
    """Return what keepers of a job's nodes prove to each other, 32 bytes: who learns it can copy checkpoints, nothing else."""
    import hmac

    said = _KEEPERS + run_id.encode(errors="surrogateescape")
    return hmac.new(token.encode(errors="surrogateescape"), said, "sha256").digest()


def fetch_key(token: str, run_id: str) -> str:
    """Return what nodes of a job show each other for units of checkpoints that were fetched: who learns it can read them."""
    import hmac

    said = _FETCHERS + run_id.encode(errors="surrogateescape")
    return hmac.new(token.encode(errors="surrogateescape"), said, "sha256").hexdigest()


def write_token(run_directory_path: str, token: str) -> None:
    """Put a job's token, and the one that may only read, into its run directory, for its owner alone. Raises PlatformError."""
    for name, secret in (("token", token), (READING_NAME, reading_token(token))):
        path = os.path.join(run_directory_path, name)
        draft = f"{path}.{os.urandom(8).hex()}"
        try:
            write_file(path, f"{secret}\n".encode("ascii"), draft=draft, mode=0o600, durable=True)
        except OSError as error:
            raise PlatformError(f"cannot write the job's token to {shown(path)}: {error.strerror}") from error


def read_token(run_directory_path: str) -> str:
    """Return the token of the job in a run directory. Raises UserError if it is not there or others can read it."""
    path = os.path.join(run_directory_path, "token")
    token = read_secret(path, _EXPORT)
    if token is None:
        raise UserError(
            f"no token in {shown(run_directory_path)}; is that the run directory of a job of several nodes?"
        )
    return token


def _own_file(env: Mapping[str, str]) -> str:
    folder = env.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(folder):
        home = env.get("HOME", "")
        if not os.path.isabs(home):
            raise UserError(f"no home folder to keep the job's secret in (HOME is not set); {_EXPORT}")
        folder = os.path.join(home, ".config")
    return os.path.join(folder, "robust-run", "token")


def _make(path: str) -> str:
    """Make the user's file, or return what another node wrote there meanwhile: the first link wins, whole."""
    folder = os.path.dirname(path)
    secret = os.urandom(_RANDOM_BYTES).hex()
    draft = f"{path}.{os.urandom(8).hex()}"
    try:
        _make_folder(os.path.dirname(folder))
        _make_folder(folder)
        _write_new(draft, secret)
        try:
            os.link(draft, path)
        except FileExistsError:
            pass
        finally:
            _remove(draft)
    except OSError as error:
        raise UserError(f"cannot keep the job's secret in {shown(folder)}: {error.strerror}; {_EXPORT}") from error
    found = read_secret(path, _EXPORT)
    if found is None:
        raise UserError(f"{shown(path)} was removed as soon as it was made; run again, or {_EXPORT}")
    return found


def _make_folder(folder: str) -> None:
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise


def _write_new(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(f"{text}\n")
        file.flush()
        os.fsync(descriptor)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return
