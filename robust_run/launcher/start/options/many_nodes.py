"""From the options of a job of several nodes to `ManyNodes`: where they meet, how long they wait, who may lead.

Decides only. Who really hosts the controller is found out when the job starts (see `meeting`).
"""

from __future__ import annotations

import os
import re

from robust_run.errors import UserError
from robust_run.launcher.model.job import ManyNodes
from robust_run.launcher.model.world import World, absolute, shown
from robust_run.launcher.start.options import meeting_place, rdzv_conf
from robust_run.launcher.start.options.meeting_place import RendezvousPlace
from robust_run.launcher.start.options.option_types import Options
from robust_run.launcher.start.options.rendezvous import (
    check_backend,
    is_one_node,
    job_id,
    nothing_for_one_node,
    parse_coordinator,
    parse_host,
    parse_nnodes,
    parse_settings,
    parse_standby,
)

MOST_NAME = 253
"""Characters of a host's name, as DNS has it."""
_NODE_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MOST_NAME - 1}}}")


def resolve_many(options: Options, world: World) -> tuple[ManyNodes | None, tuple[str, ...]]:
    """Return how the nodes meet, None for a job of one node; and notes for the user.

    One node with standbys is a job of several. Raises UserError, one line, for the first thing that cannot be.
    """
    if is_one_node(options):
        return None, nothing_for_one_node(options)
    fewest, most = parse_nnodes(options.nnodes)
    standby = usual = parse_standby(options.standby, most)
    standby_why = ""
    check_backend(options.rdzv_backend)
    settings = parse_settings(options.rdzv_conf)
    rdzv_conf.check_known(settings)
    static = options.rdzv_backend == "static"
    place = meeting_place.static(options, most + usual) if static else meeting_place.c10d(options, settings)
    is_host = rdzv_conf.yes_or_no(settings, "is_host")
    if is_host is None and place.node_rank is not None:
        is_host = place.node_rank == 0
    if options.standby.strip() == "auto" and is_host is not False and most > 1:
        from robust_run.launcher.start.options.fleet_standby import standbys_by_fleet

        standby, standby_why = standbys_by_fleet(most, options, world)
    heartbeat_s, lease_s = rdzv_conf.keep_alive(settings)
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
        join_timeout_s=rdzv_conf.seconds(settings, "join_timeout", rdzv_conf.DEFAULTS.join_timeout_s),
        last_call_s=rdzv_conf.seconds(settings, "last_call_timeout", rdzv_conf.DEFAULTS.last_call_s),
        wait_for_nodes_s=options.wait_for_nodes,
        standby=standby,
        standby_why=standby_why,
        heartbeat_s=heartbeat_s,
        lease_s=lease_s,
        evict_list=_evict_list(options, world),
        controller_standby=_controller_standby(options, most + usual),
        on_sigterm=options.on_sigterm,
        coordinator=parse_coordinator(options),
        found=options.found,
        node_name=parse_node_name(options.node_name),
        tls_cert=tls_cert,
        tls_key=tls_key,
        tls_ca=tls_ca,
        token_file=absolute(options.token_file, world) if options.token_file else "",
        insecure=_insecure(options),
    )
    return many, _remarks(options, place, static=static)


def _remarks(options: Options, place: RendezvousPlace, *, static: bool) -> tuple[str, ...]:
    """Return what the user should know of how these options were taken."""
    if options.insecure_rendezvous:
        return (
            f"--insecure-rendezvous: whoever reaches port {place.port} of {place.host} can steer this job and run programs "
            "on its nodes",
        )
    if not static and "node-rank" in options.given:
        return ("--node-rank does nothing: with c10d the controller places the nodes",)
    if static and not options.rdzv_endpoint.strip() and "master-addr" not in options.given:
        return (
            f"without --master-addr HOST the nodes meet at {place.host}:{place.port}, which is no other machine than this",
        )
    return ()


def _insecure(options: Options) -> bool:
    if options.insecure_rendezvous and options.token_file:
        raise UserError("--insecure-rendezvous is for jobs without a secret; leave it or --token-file out")
    if options.insecure_rendezvous and options.http_host:
        raise UserError(
            "--insecure-rendezvous with --http-host: anybody could stop the job from a browser; give a secret "
            "(ROBUST_TOKEN, --token-file), or leave --http-host out"
        )
    return options.insecure_rendezvous


def parse_node_name(text: str | None) -> str:
    """Return what --node-name says, empty if it was not given. Raises UserError."""
    name = (text or "").strip()
    if name and not _NODE_NAME.fullmatch(name):
        raise UserError(
            f"--node-name {name!r} is no name of a machine: letters, digits, dots and dashes, {MOST_NAME} at most"
        )
    return name


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
