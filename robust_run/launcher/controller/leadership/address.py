"""Address of the coordinator (`--coordinator etcd://HOST:PORT[,HOST:PORT]`), parsed and checked. Imported before workers."""

from __future__ import annotations

import re

import msgspec

from robust_run.errors import UserError

DEFAULT_PORT = 2379
MOST_ENDPOINTS = 16

_HIGHEST_PORT = 65535
_HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?|\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9._-]+)?\]")
_SCHEMES = {"etcd": False, "etcd+http": False, "etcd+https": True}
_EXAMPLE = "write etcd://HOST:PORT[,HOST:PORT...] or etcd+https://..."


class EtcdAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where an etcd cluster listens for clients."""

    endpoints: tuple[tuple[str, int], ...]
    """Host and port of each member, in the order given."""
    tls: bool = False
    ca_file: str = ""
    """Certificates that TLS trusts; empty: the machine's."""

    def __str__(self) -> str:
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.endpoints)
        return f"etcd{'+https' if self.tls else ''}://{hosts}"


def parse_coordinator(text: str, ca_file: str = "") -> EtcdAddress:
    """Return the etcd that is meant. `ca_file` is what --tls-ca says. Raises UserError for anything else."""
    scheme, separator, rest = text.strip().partition("://")
    if not separator or scheme not in _SCHEMES:
        raise UserError(f"--coordinator {text!r} is no address of an etcd; {_EXAMPLE}")
    if "@" in rest:
        raise UserError("--coordinator: a user and a password for etcd are not supported; use an etcd without, or TLS")
    rest = rest.rstrip("/")
    if any(mark in rest for mark in "/?#"):
        raise UserError(f"--coordinator {text!r}: an etcd has no path; {_EXAMPLE}")
    endpoints = tuple(dict.fromkeys(_endpoint(part.strip(), text) for part in rest.split(",")))
    if len(endpoints) > MOST_ENDPOINTS:
        raise UserError(f"--coordinator names {len(endpoints)} endpoints; give at most {MOST_ENDPOINTS}")
    tls = _SCHEMES[scheme]
    return EtcdAddress(endpoints=endpoints, tls=tls, ca_file=ca_file if tls else "")


def _endpoint(part: str, text: str) -> tuple[str, int]:
    host, colon, port_text = part.rpartition(":")
    if not colon or part.endswith("]"):
        host, port_text = part, str(DEFAULT_PORT)
    if not _HOST.fullmatch(host):
        raise UserError(f"--coordinator {text!r}: {host!r} is not a host; {_EXAMPLE}")
    if not re.fullmatch(r"[0-9]{1,5}", port_text) or not 1 <= int(port_text) <= _HIGHEST_PORT:
        raise UserError(f"--coordinator {text!r}: {port_text!r} is not a port from 1 to {_HIGHEST_PORT}; {_EXAMPLE}")
    return host.strip("[]"), int(port_text)
