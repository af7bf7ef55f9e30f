"""A folder of checkpoints that is a URL. Decides only; imported where --ckpt-dir is one."""

from __future__ import annotations

import urllib.parse

import msgspec

from robust_run.ckpt_io import address
from robust_run.errors import UserError
from robust_run.launcher.model.job import JobSpec
from robust_run.store import paths

#: Schemes of which a URL must name a host.
_WITH_HOST = ("http", "https", "s3", "gs", "abfs")
#: Schemes that are known without asking a library, whose import takes a moment.
_KNOWN = frozenset((*_WITH_HOST, "file", "hdfs", "viewfs", "gcs", "az", "memory"))


def resolve_url(url: str) -> str:
    """Return the URL as all nodes use it; of file://, the path. Raises UserError for what is none, or holds a secret.

    It stands in the journal, in messages and on pages, and is told to every worker: no place for credentials.
    """
    try:
        normal = address.normal(url)
        parts = urllib.parse.urlsplit(normal)
    except ValueError as error:
        raise UserError(f"--ckpt-dir {paths.scheme_of(url)}://...: is no URL: {error}") from error
    except UserError as error:
        raise UserError(f"--ckpt-dir: {error}") from error
    if not parts.scheme:
        raise UserError(f"--ckpt-dir {url!r}: is neither a path nor a URL")
    user = parts.netloc.rpartition("@")[0]
    if ":" in user or (user and parts.scheme in ("http", "https")) or parts.query or parts.fragment:
        raise UserError(
            f"--ckpt-dir {paths.shown(normal)}: leave out what stands before '@' or after '?': the URL is shown to everyone; "
            "give credentials as the store's own library reads them (environment, files)"
        )
    _check_scheme(parts.scheme)
    if parts.scheme == "file":
        from robust_run.store.opening import local_path

        return local_path(normal)
    if parts.scheme in _WITH_HOST and not parts.netloc:
        raise UserError(f"--ckpt-dir {url}: has no host; write {parts.scheme}://HOST/FOLDER")
    return normal


def _check_scheme(scheme: str) -> None:
    """Raise UserError for a kind of URL that nothing here opens: each node would find that out when the job has begun."""
    if scheme in _KNOWN:
        return
    try:
        from fsspec import available_protocols
    except ImportError:
        known = False
    else:
        known = scheme in available_protocols()
    if not known:
        raise UserError(
            f"--ckpt-dir {scheme}://...: no library here opens such URLs; known are paths, file, http, https, hdfs, viewfs, "
            "and what fsspec opens (s3, gs, abfs, sftp and others)"
        )


def with_mount(spec: JobSpec) -> JobSpec:
    """Return a job whose workers see the checkpoints of a URL as files. Raises UserError where there is nothing to be shown."""
    if spec.ckpt_dir is None:
        raise UserError("--ckpt-mount: shows the checkpoints of --ckpt-dir URL as files; give --ckpt-dir")
    if "://" not in spec.ckpt_dir:
        raise UserError(
            f"--ckpt-mount: is for a --ckpt-dir that is a URL; robust ckpt mount shows checkpoints in {spec.ckpt_dir} as files"
        )
    return msgspec.structs.replace(spec, ckpt_mount=True)
