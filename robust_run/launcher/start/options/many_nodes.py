"""From the options of a job of several nodes to `ManyNodes`: where they meet, how long they wait, who may lead.

Decides only. Who really hosts the controller is found out when the job starts (see `meeting`).
"""

from __future__ import annotations

import math
import os
import re

import msgspec

from robust_run.errors import UserError
from robust_run.launcher.model.job import ManyNodes
from robust_run.launcher.model.world import World, absolute, shown
from robust_run.launcher.start.options.options import NODES, OPTIONS, Options
from robust_run.launcher.start.options.rendezvous import (
    check_backend,
    check_port,
    job_id,
    parse_endpoint,
    parse_host,
    parse_settings,
)

MOST_NODES = 100_000
"""More nodes than any cluster has: a larger number is a slip of the finger."""
MOST_COORDINATORS = 16

STATIC_PORT = 29500
C10D_PORT = 29400
ETCD_PORT = 2379
"""The ports where none is given, as with torchrun and etcd."""

_DEFAULTS = ManyNodes(host="", port=0)
_ANY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104 - they are refused
_MISSES = 3
_YES = ("1", "true", "t", "yes", "y")
_NO = ("0", "false", "f", "no", "n")
_CONF_USED = ("join_timeout", "last_call_timeout", "is_host", "keep_alive_interval", "keep_alive_max_attempt")
_CONF_IGNORED = ("close_timeout", "heartbeat", "heartbeat_timeout", "read_timeout", "store_type", "timeout", "rank")


class _Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where the nodes meet, and what this one was told of its part."""

    host: str
    port: int
    node_rank: int | None = None


def resolve_many(options: Options, world: World) -> tuple[ManyNodes | None, tuple[str, ...]]:
    """Return how the nodes meet, None for a job of one node; and notes for the user.

    One node with standbys is a job of several. Raises UserError, one line, for the first thing that cannot be.
    """
    fewest, most = parse_nnodes(options.nnodes)
    standby = _standby(options.standby, most)
    coordinator = _coordinator(options)
    if options.wait_for_nodes is not None:
        _check_seconds("--wait-for-nodes", options.wait_for_nodes)
    if _is_one_node(options, fewest, most, standby):
        return None, _nothing_for_one_node(options)
    check_backend(options.rdzv_backend)
    settings = parse_settings(options.rdzv_conf)
    _check_known(settings)
    static = options.rdzv_backend == "static"
    place = _static(options, most + standby) if static else _c10d(options, settings)
    is_host = _yes_or_no(settings, "is_host")
    if is_host is None and place.node_rank is not None:
        is_host = place.node_rank == 0
    heartbeat_s, lease_s = _keep_alive(settings)
    tls_cert, tls_key, tls_ca = resolve_tls(options, is_host, world)
    many = ManyNodes(
        fewest=fewest,
        most=most,
        host=place.host,
        port=place.port,
        job=job_id(options) or options.run_id or "",
        node_rank=place.node_rank,
        is_host=is_host,
        local_addr=parse_host("--local-addr", options.local_addr) if options.local_addr else None,
        join_timeout_s=_seconds(settings, "join_timeout", _DEFAULTS.join_timeout_s),
        last_call_s=_seconds(settings, "last_call_timeout", _DEFAULTS.last_call_s),
        wait_for_nodes_s=options.wait_for_nodes,
        standby=standby,
        heartbeat_s=heartbeat_s,
        lease_s=lease_s,
        evict_list=_evict_list(options, world),
        controller_standby=_controller_standby(options, most + standby),
        coordinator=coordinator,
        tls_cert=tls_cert,
        tls_key=tls_key,
        tls_ca=tls_ca,
        token_file=absolute(options.token_file, world) if options.token_file else "",
    )
    return many, _remarks(options, place, static=static)


def _remarks(options: Options, place: _Place, *, static: bool) -> tuple[str, ...]:
    """Return what the user should know of how these options were taken."""
    if not static and "node-rank" in options.given:
        return ("--node-rank does nothing: with c10d the controller places the nodes",)
    if static and not options.rdzv_endpoint.strip() and "master-addr" not in options.given:
        return (
            f"without --master-addr HOST the nodes meet at {place.host}:{place.port}, which is no other machine than this",
        )
    return ()


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


def _is_one_node(options: Options, fewest: int, most: int, standby: int) -> bool:
    """Whether the job needs no network. Raises UserError where the options contradict each other."""
    if options.standalone and (fewest > 1 or (standby > 0 and options.standby != "auto")):
        what = f"--nnodes {options.nnodes}" if fewest > 1 else f"--standby {options.standby}"
        raise UserError(f"--standalone is one node that no other can join; leave it or {what} out")
    if not options.standalone and most + standby > 1:
        return False
    if options.node_rank != 0:
        raise UserError(f"--node-rank {options.node_rank}: the only node of a job has rank 0; leave the option out")
    return True


def _nothing_for_one_node(options: Options) -> tuple[str, ...]:
    names = [
        f"--{each.name}" for each in OPTIONS if each.group == NODES and getattr(options, each.field) != each.default
    ]
    asked = [name for name in names if name != "--standby"]  # `auto` may well mean none
    return (f"{', '.join(asked)}: nothing to do, the job has one node",) if asked else ()


def _standby(text: str, most: int) -> int:
    if text.strip() == "auto":
        from robust_run.launcher.core.spares import standby_count

        return standby_count(most)
    if not re.fullmatch(r"\s*[0-9]{1,9}\s*", text):
        raise UserError(f"--standby {text!r} is neither a number of nodes, 0 or more, nor auto")
    if int(text) > MOST_NODES:
        raise UserError(f"--standby {text}: at most {MOST_NODES} nodes can be asked for")
    return int(text)


# --- where they meet ------------------------------------------------------------------------------------------------


def _static(options: Options, nodes: int) -> _Place:
    """--rdzv-endpoint wins over --master-addr and --master-port, as with torchrun."""
    if options.rdzv_endpoint.strip():
        host, port = _endpoint(options.rdzv_endpoint, None)
    else:
        host = parse_host("--master-addr", options.master_addr)
        check_port("--master-port", options.master_port)
        port = STATIC_PORT if options.master_port is None else options.master_port
        _check_meeting_point("--master-addr", host, "--master-port", port)
    if "node-rank" not in options.given:
        return _Place(host=host, port=port)
    if not 0 <= options.node_rank < nodes:
        raise UserError(f"--node-rank {options.node_rank}: the job's nodes are 0 to {nodes - 1}, standbys included")
    return _Place(host=host, port=port, node_rank=options.node_rank)


def _c10d(options: Options, settings: dict[str, str]) -> _Place:
    if settings.get("store_type") == "file":
        raise UserError("--rdzv-conf store_type=file: nodes meet at an address; give --rdzv-endpoint HOST:PORT instead")
    if not options.rdzv_endpoint.strip():
        raise UserError(
            f"--nnodes {options.nnodes} needs a place to meet: give --rdzv-endpoint HOST:PORT, the same on every node"
        )
    host, port = _endpoint(options.rdzv_endpoint, C10D_PORT)
    return _Place(host=host, port=port)


def _endpoint(text: str, default_port: int | None) -> tuple[str, int]:
    host, given_port = parse_endpoint(text)
    port = default_port if given_port is None else given_port
    if port is None:
        raise UserError(f"--rdzv-endpoint {text!r} has no port; write HOST:PORT")
    _check_meeting_point("--rdzv-endpoint", host, "--rdzv-endpoint", port)
    return host, port


def _check_meeting_point(host_option: str, host: str, port_option: str, port: int) -> None:
    if host in _ANY_ADDRESS:
        raise UserError(f"{host_option} {host} is every machine and none; name the one where the nodes shall meet")
    if port == 0:
        raise UserError(f"{port_option}: port 0 is a different one each time; give one that all nodes know")


# --- --rdzv-conf ----------------------------------------------------------------------------------------------------


def _check_known(settings: dict[str, str]) -> None:
    """Refuse what is nearly the name of a setting; what only torchrun's plug-ins know is left alone."""
    for key in settings:
        if key in _CONF_USED or key in _CONF_IGNORED:
            continue
        from difflib import get_close_matches

        if near := get_close_matches(key, _CONF_USED, n=1, cutoff=0.8):
            raise UserError(f"--rdzv-conf: there is no setting {key!r}; did you mean {near[0]}?")


def _keep_alive(settings: dict[str, str]) -> tuple[float, float]:
    """Return the time between heartbeats and the lease: so many of them may be missed."""
    heartbeat_s = _seconds(settings, "keep_alive_interval", _DEFAULTS.heartbeat_s)
    misses = _seconds(settings, "keep_alive_max_attempt", _MISSES)
    if heartbeat_s < 0.05:
        raise UserError(f"--rdzv-conf keep_alive_interval={heartbeat_s:g}: must be 0.05 seconds or more")
    if misses < 2:
        raise UserError(
            f"--rdzv-conf keep_alive_max_attempt={misses:g}: must be 2 or more, or one late answer ends the workers"
        )
    return heartbeat_s, heartbeat_s * misses


def _seconds(settings: dict[str, str], key: str, default: float) -> float:
    if key not in settings:
        return default
    try:
        number = float(settings[key])
    except ValueError:
        raise UserError(f"--rdzv-conf {key}={settings[key]!r} is not a number") from None
    _check_seconds(f"--rdzv-conf {key}:", number)
    return number


def _check_seconds(name: str, seconds: float) -> None:
    if not (seconds >= 0 and math.isfinite(seconds)):
        raise UserError(f"{name} {seconds:g}: must be 0 or more, and not infinite")


def _yes_or_no(settings: dict[str, str], key: str) -> bool | None:
    value = settings.get(key)
    if value is not None and value.lower() not in (*_YES, *_NO):
        raise UserError(f"--rdzv-conf {key}={value!r} is neither 1 nor 0")
    return None if value is None else value.lower() in _YES


# --- our own options ------------------------------------------------------------------------------------------------


def _coordinator(options: Options) -> str:
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


def _controller_standby(options: Options, nodes: int) -> int:
    count = options.controller_standby
    if not 0 <= count < nodes:
        raise UserError(
            f"--controller-standby {count}: must be 0 to {nodes - 1}, the nodes of the job besides the controller's"
        )
    if count and not options.coordinator and options.log_dir == os.devnull:
        raise UserError(
            "--controller-standby needs a journal that others can read;"
            f" choose a --log-dir that the nodes share in place of {os.devnull}"
        )
    return count


def _evict_list(options: Options, world: World) -> str:
    if not options.evict_list:
        return ""
    path = absolute(options.evict_list, world)
    kind, folder = world.files.kind(path), os.path.dirname(path)
    if kind not in ("missing", "file") or world.files.kind(folder) != "folder":
        why = f"it is a {kind}" if kind not in ("missing", "file") else f"there is no folder {shown(folder)}"
        raise UserError(f"--evict-list {options.evict_list!r} cannot be a list: {why}; choose another file")
    return path


def resolve_tls(options: Options, is_host: bool | None, world: World) -> tuple[str, str, str]:
    """Return certificate, key and authorities. A node that surely hosts nothing needs the authorities only."""
    named = {"--tls-cert": options.tls_cert, "--tls-key": options.tls_key, "--tls-ca": options.tls_ca}
    if bool(options.tls_cert) != bool(options.tls_key):
        there, missing = ("--tls-cert", "--tls-key") if options.tls_cert else ("--tls-key", "--tls-cert")
        raise UserError(f"{there} needs {missing} beside it: a controller shows one and signs with the other")
    if options.tls_ca and not options.tls_cert and is_host is not False:
        raise UserError("--tls-ca needs --tls-cert and --tls-key: this node may have to host the controller")
    paths = {name: absolute(file, world) if file else "" for name, file in named.items()}
    for name, path in paths.items():
        if path and (world.files.kind(path) != "file" or not world.files.access(path, os.R_OK)):
            raise UserError(f"{name} {named[name]!r} is no file that can be read; check the name and its permissions")
    return paths["--tls-cert"], paths["--tls-key"], paths["--tls-ca"]
