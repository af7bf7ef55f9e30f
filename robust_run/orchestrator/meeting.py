"""From options to where the nodes of a job of several roles meet, and who leads. Pure, but for one try to listen."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
from collections.abc import Callable, Mapping

import msgspec

from robust_run.errors import PlatformError, UserError
from robust_run.launcher.model.job import ManyNodes
from robust_run.launcher.model.world import World
from robust_run.launcher.records import token
from robust_run.launcher.start.options.many_nodes import resolve_many
from robust_run.launcher.start.options.options import Options
from robust_run.orchestrator.listening import hold, is_taken
from robust_run.orchestrator.model.node_words import Several
from robust_run.roles.words import Tls
from robust_run.slurm.rules.types import SlurmStep
from robust_run.tls import client_context, server_context

_LABEL = b"robust-run roles\0"


def with_slurm(options: Options, step: SlurmStep | None, env: Mapping[str, str]) -> tuple[Options, str]:
    """Return the options with what a step of Slurm says of nodes, and this node's name; as they are outside of one.

    Raises UserError for a step of another shape.
    """
    if step is None or options.standalone or {"rdzv-endpoint", "nnodes"} & options.given:
        return options, ""
    from robust_run.slurm.rules.fill import check_shape
    from robust_run.slurm.rules.ports import ports_of
    from robust_run.slurm.rules.surroundings import nodes_of_job
    from robust_run.slurm.start import address_of

    check_shape(step, max(nodes_of_job(env), sum(step.het_nodes)), "--roles FILE")
    if len(step.nodes) < 2:
        return options, ""

    changed = msgspec.structs.replace(
        options,
        nnodes=str(len(step.nodes)),
        rdzv_backend="c10d",
        rdzv_endpoint=f"{address_of(step.nodes[0], env)}:{ports_of(step)[0]}",
        rdzv_id=f"{step.job}.{step.step}",
        rdzv_conf="is_host=1" if step.node_id == 0 else "is_host=0",
        given=options.given | {"nnodes", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf"},
    )
    return changed, step.node_name


def several(
    options: Options,
    world: World,
    env: Mapping[str, str],
    step: SlurmStep | None = None,
    *,
    say: Callable[[str], None],
) -> tuple[Several | None, socket.socket | None]:
    """Return where nodes meet (None: the job has one), and what listens there if this node founds the job.

    `say`: is given notes for the user. Raises UserError, PlatformError where it was told to found the job and cannot listen.
    """
    options, name = with_slurm(options, step, env)
    many, notes = resolve_many(options, world)
    for note in notes:
        say(note)
    if many is None:
        return None, None
    files = Tls(cert=many.tls_cert, key=many.tls_key, ca=many.tls_ca) if many.tls_cert or many.tls_ca else None
    if files is not None:  # mistakes are said before anything is started; any of the nodes may have to lead
        server_context(files.cert, files.key, files.ca)
        client_context(files.cert, files.key, files.ca)
    listener, taken = _seat(many)
    said = token.job_token(token.job_secret(many, env), token.job_name(many))
    where = Several(
        host=many.host,
        port=many.port,
        nodes=many.most,
        fewest=many.fewest,
        last_call_s=many.last_call_s,
        name=options.node_name or name or socket.gethostname(),
        secret=hashlib.sha256(_LABEL + said.encode()).digest(),
        join_timeout_s=many.join_timeout_s,
        tls=files,
        members_options=_members_options(many),
        is_leader=listener is not None,
        taken=taken,
    )
    return where, listener


def _members_options(many: ManyNodes) -> tuple[str, ...]:
    """Return what the launchers of a member of several nodes need to trust each other as the nodes of this job do."""
    said = {
        "--token-file": many.token_file,
        "--tls-cert": many.tls_cert,
        "--tls-key": many.tls_key,
        "--tls-ca": many.tls_ca,
    }
    words = [word for option, value in said.items() if value for word in (option, value)]
    return (*words, "--insecure") if many.insecure else tuple(words)


def is_this_machine(host: str, port: int) -> bool:
    """Whether this machine is the one that is called `host`. Raises UserError for no name."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UserError(f"--rdzv-endpoint {host}:{port}: no machine is called {host} ({error.strerror})") from error
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as tried:
        try:
            tried.bind((address[0], 0, *address[2:]))
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                return False
            raise UserError(f"--rdzv-endpoint {host}:{port} cannot be listened on: {error.strerror}") from error
    return True


def _seat(many: ManyNodes) -> tuple[socket.socket | None, str]:
    """Return the socket that makes this node the one that founds the job; None: another does, and why this one cannot.

    How it is known who founds where nobody was told: one process of a machine can listen at a port, and it is held from here on.
    Raises PlatformError where this node was told to found, and cannot; UserError.
    """
    if many.is_host is None and not is_this_machine(many.host, many.port):
        return None, ""
    if many.is_host is False:
        return None, ""
    try:
        return hold(many.port), ""
    except OSError as error:
        why = os.strerror(error.errno or 0)
        if many.is_host:
            raise PlatformError(is_taken(many.port, why)) from error
        if error.errno != errno.EADDRINUSE:
            raise UserError(f"--rdzv-endpoint {many.host}:{many.port} cannot be listened on: {why}") from error
        return None, why
