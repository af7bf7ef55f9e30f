"""The rendezvous options of torchrun: how they are written, whether the job has one node, and what of them matters then.

What several nodes make of them is in `many_nodes`, `meeting_place` and `rdzv_conf`.
"""

from __future__ import annotations

import math
import re

import msgspec

from robust_run.errors import UserError
from robust_run.launcher.model.job import NO_PORT
from robust_run.launcher.start.options.option_types import NODES, Options
from robust_run.launcher.start.options.options import OPTIONS

HIGHEST_PORT = 65535
MOST_COORDINATORS = 16
ETCD_PORT = 2379
"""Where none is given, as with etcd."""
MOST_NODES = 100_000
"""More nodes than any cluster has: a larger number is a slip of the finger."""
_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")
_HOST = re.compile(r"[\w.:%-]+")
_UNSET_ID = "none"


class Rendezvous(msgspec.Struct, frozen=True, kw_only=True):
    """What of the rendezvous reaches the workers."""

    master_addr: str = "127.0.0.1"
    master_port: int | None = None
    """None: a free port for each attempt."""
    rdzv_id: str | None = None
    """None: nobody named the job."""


def resolve_rendezvous(options: Options) -> Rendezvous:
    """Return what the options ask for. Raises UserError for backends that are not built and values that make no sense.

    A port given for the workers (--master-port, or --rdzv-endpoint of a static rendezvous) is kept. The port of a c10d
    endpoint is the meeting point's, not the workers', so they get a free one, as everybody does who gives no port.
    """
    if options.standalone:
        return Rendezvous()
    check_backend(options.rdzv_backend)
    settings = parse_settings(options.rdzv_conf)
    check_port("--master-port", options.master_port)
    rdzv_id = job_id(options)
    if options.rdzv_backend == "static" and options.rdzv_endpoint:
        host, port = parse_endpoint(options.rdzv_endpoint)
        if port is None:
            raise UserError(f"--rdzv-endpoint {options.rdzv_endpoint!r} has no port; write HOST:PORT")
        return Rendezvous(master_addr=host, master_port=port or None, rdzv_id=rdzv_id)
    if options.rdzv_backend == "static" and options.master_port is not None:
        host = parse_host("--master-addr", options.master_addr)
        return Rendezvous(master_addr=host, master_port=options.master_port or None, rdzv_id=rdzv_id)
    if settings.get("store_type") != "file":  # there the endpoint is a path
        parse_endpoint(options.rdzv_endpoint)
    local = parse_host("--local-addr", options.local_addr or Rendezvous().master_addr)
    return Rendezvous(master_addr=local, rdzv_id=rdzv_id)


def job_id(options: Options) -> str | None:
    """Return the name that --rdzv-id gives the job; None: nobody named it."""
    return options.rdzv_id if not options.standalone and options.rdzv_id not in ("", _UNSET_ID) else None


def parse_endpoint(endpoint: str) -> tuple[str, int | None]:
    """Split `host:port`, `host`, `[v6]:port` or `[v6]`; empty is this machine. Raises UserError for anything else."""
    text = endpoint.strip()
    if not text:
        return Rendezvous().master_addr, None
    bare_v6 = text.startswith("[") and text.endswith("]")
    host, colon, port_text = (text, "", "") if bare_v6 else text.rpartition(":")
    if not colon:
        host = text
    host = _unbracketed(host)
    if not _HOST.fullmatch(host):
        raise UserError(f"--rdzv-endpoint {endpoint!r}: {host!r} is not a host; write HOST:PORT")
    if not colon:
        return host, None
    if not re.fullmatch(r"[0-9]{1,5}", port_text) or int(port_text) > HIGHEST_PORT:
        raise UserError(
            f"--rdzv-endpoint {endpoint!r}: {port_text!r} is not a port from 0 to {HIGHEST_PORT}; write HOST:PORT"
        )
    return host, int(port_text)


def parse_settings(text: str) -> dict[str, str]:
    """Split `key=value,key=value`, also with quotes a shell or a YAML file left around it, or around a value.

    Raises UserError for any other part.
    """
    text = _unquoted(text.strip())
    settings: dict[str, str] = {}
    for part in text.split(",") if text else ():
        key, _, value = (_unquoted(word.strip()) for word in part.partition("="))
        if not key or not value:
            raise UserError(f"--rdzv-conf: {part!r} is not KEY=VALUE; write KEY=VALUE,KEY=VALUE")
        settings[key] = value
    return settings


def _unquoted(text: str) -> str:
    is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" and text[0] not in text[1:-1]
    return text[1:-1].strip() if is_quoted else text


def check_backend(backend: str) -> None:
    """Raise UserError for a backend that is not static or c10d."""
    if backend in ("static", "c10d"):
        return
    if backend in ("etcd", "etcd-v2"):
        raise UserError(
            f"--rdzv-backend {backend}: nodes meet without etcd; use c10d, and --coordinator etcd://HOST:PORT if"
            " another node shall be able to take the controller over"
        )
    from difflib import get_close_matches

    near = get_close_matches(backend, ("static", "c10d"), n=1)
    hint = f"did you mean {near[0]}?" if near else "use static or c10d, or leave the option out"
    raise UserError(f"--rdzv-backend: there is no backend {backend!r}; {hint}")


def check_seconds(name: str, seconds: float) -> None:
    """Raise UserError for what is no time to wait."""
    if not (seconds >= 0 and math.isfinite(seconds)):
        raise UserError(f"{name} {seconds:g}: must be 0 or more, and not infinite")


def check_port(name: str, port: int | None) -> None:
    """Raise UserError for a port that is none. 0, a free one, is one."""
    if port is not None and not 0 <= port <= HIGHEST_PORT:
        raise UserError(f"{name} {port} is not a port; use 1 to {HIGHEST_PORT}, or 0 for a free one")


def parse_http_port(text: str | None) -> int | None:
    """Return what --http-port asks for: a port, 0 for a free one, NO_PORT for none; None: not asked. Raises UserError."""
    if text is None:
        return None
    if text.strip().lower() == "off":
        return NO_PORT
    digits = text.strip()
    if not (digits.isascii() and digits.isdecimal() and int(digits[:9]) <= HIGHEST_PORT):
        raise UserError(f"--http-port {text} is not a port; use 1 to {HIGHEST_PORT}, 0 for a free one, or off for none")
    return int(digits)


def parse_host(name: str, text: str) -> str:
    """Return the host that an option names, without the brackets of IPv6. Raises UserError if it is none."""
    host = _unbracketed(text)
    if not _HOST.fullmatch(host):
        raise UserError(f"{name} {host!r} is not a host name or address")
    return host


def _unbracketed(host: str) -> str:
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def parse_nnodes(text: str) -> tuple[int, int]:
    """Return MIN and MAX of `N` or `MIN:MAX`. Raises UserError."""
    parts = text.split(":")
    if len(parts) > 2 or not all(re.fullmatch(r"\s*\d{1,9}\s*", part) for part in parts):
        raise UserError(f"--nnodes {text!r} is neither a number nor MIN:MAX; for one node write --nnodes 1")
    fewest, most = int(parts[0]), int(parts[-1])
    if not 1 <= fewest <= most:
        raise UserError(f"--nnodes {text}: needs 1 <= MIN <= MAX; for one node write --nnodes 1")
    if most > MOST_NODES:
        raise UserError(f"--nnodes {text}: at most {MOST_NODES} nodes can be asked for")
    return fewest, most


def parse_standby(text: str, most: int) -> int:
    """Return K of `--standby`; of `auto`, as many as MAX nodes need. Raises UserError."""
    if text.strip() == "auto":
        from robust_run.launcher.core.spares import standby_count

        return standby_count(most)
    if not re.fullmatch(r"\s*[0-9]{1,9}\s*", text):
        raise UserError(f"--standby {text!r} is neither a number of nodes, 0 or more, nor auto")
    if int(text) > MOST_NODES:
        raise UserError(f"--standby {text}: at most {MOST_NODES} nodes can be asked for")
    return int(text)


def parse_coordinator(options: Options) -> str:
    """Return `etcd://HOST:PORT,...` with every port written out, empty if there is none."""
    text = options.coordinator or ""
    if not text:
        return ""
    scheme, _, rest = text.partition("://")
    endpoints = rest.split(",")
    if scheme != "etcd" or len(endpoints) > MOST_COORDINATORS:
        raise UserError(f"--coordinator {text!r} is not etcd://HOST:PORT, with up to {MOST_COORDINATORS} HOST:PORT")
    if options.controller_standby == 0:
        raise UserError("--coordinator is for controllers that stand by; say how many with --controller-standby K")
    written = []
    for endpoint in endpoints:
        try:
            host, port = parse_endpoint(endpoint) if endpoint.strip() else ("", None)
        except UserError:
            host, port = "", None
        if not host or port == 0:
            raise UserError(f"--coordinator: {endpoint!r} is not HOST:PORT; write etcd://HOST:PORT,HOST:PORT")
        written.append(f"[{host}]:{port or ETCD_PORT}" if ":" in host else f"{host}:{port or ETCD_PORT}")
    return f"etcd://{','.join(written)}"


def is_one_node(options: Options) -> bool:
    """Whether the job needs no network; with standbys it does. Raises UserError where the options contradict each other."""
    fewest, most = parse_nnodes(options.nnodes)
    standby = parse_standby(options.standby, most)
    if options.coordinator:
        parse_coordinator(options)
    if options.wait_for_nodes is not None:
        check_seconds("--wait-for-nodes", options.wait_for_nodes)
    if options.standalone and (fewest > 1 or (standby > 0 and options.standby != "auto")):
        what = f"--nnodes {options.nnodes}" if fewest > 1 else f"--standby {options.standby}"
        raise UserError(f"--standalone is one node that no other can join; leave it or {what} out")
    if not options.standalone and most + standby > 1 and not _meets_nobody(options, fewest):
        return False
    if options.node_rank != 0:
        raise UserError(f"--node-rank {options.node_rank}: the only node of a job has rank 0; leave the option out")
    return True


def _meets_nobody(options: Options, fewest: int) -> bool:
    """Whether no other node could find this one: it meets at a free port of its own, as some type for torchrun on one machine."""
    if fewest > 1 or options.rdzv_backend != "c10d" or options.standby not in ("auto", "0"):
        return False
    host, port = parse_endpoint(options.rdzv_endpoint)
    return port == 0 and host.lower() in _THIS_MACHINE


def nothing_for_one_node(options: Options) -> tuple[str, ...]:
    """Return what is said of options for several nodes, where the job has one."""
    if _meets_nobody(options, 1) and parse_nnodes(options.nnodes)[1] > 1:
        return (
            f"--rdzv-endpoint {options.rdzv_endpoint}: port 0 is one that no other node knows; this job has one node",
        )
    names = [
        f"--{each.name}" for each in OPTIONS if each.group == NODES and getattr(options, each.field) != each.default
    ]
    # `auto` may well mean none; a name may be the environment's of a whole cluster
    asked = [name for name in names if name not in ("--standby", "--node-name")]
    return (f"{', '.join(asked)}: nothing to do, the job has one node",) if asked else ()
