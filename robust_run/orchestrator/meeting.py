"""From options to where the nodes of a job of several roles meet, and who leads. Pure, but for one try to listen."""

from __future__ import annotations

import errno
import hashlib
import socket
from collections.abc import Callable, Mapping

import msgspec

from robust_run.errors import UserError
from robust_run.launcher.model.job import ManyNodes
from robust_run.launcher.model.world import World
from robust_run.launcher.records import token
from robust_run.launcher.start.options.many_nodes import resolve_many
from robust_run.launcher.start.options.options import Options
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
) -> Several | None:
    """Return where nodes meet; None: the job has one. `say`: is given notes for the user. Raises UserError."""
    options, name = with_slurm(options, step, env)
    many, notes = resolve_many(options, world)
    for note in notes:
        say(note)
    if many is None:
        return None
    files = Tls(cert=many.tls_cert, key=many.tls_key, ca=many.tls_ca) if many.tls_cert or many.tls_ca else None
    if files is not None:  # mistakes are said before anything is started; any of the nodes may have to lead
        server_context(files.cert, files.key, files.ca)
        client_context(files.cert, files.key, files.ca)
    said = token.job_token(token.job_secret(many, env), token.job_name(many))
    return Several(
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
        is_leader=many.is_host if many.is_host is not None else can_listen(many.host, many.port),
    )


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


def can_listen(host: str, port: int) -> bool:
    """Whether this machine is the one that is called `host`, and nobody listens there yet. Raises UserError for no name."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UserError(f"--rdzv-endpoint {host}:{port}: no machine is called {host} ({error.strerror})") from error
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(address)
            tried.listen(1)
        except OSError as error:
            if error.errno in (errno.EADDRNOTAVAIL, errno.EADDRINUSE):
                return False
            raise UserError(f"--rdzv-endpoint {host}:{port} cannot be listened on: {error.strerror}") from error
    return True
