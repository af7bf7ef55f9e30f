"""Address where the nodes of a job meet, as --rdzv-endpoint, --master-addr and --master-port say it."""

from __future__ import annotations

import msgspec

from robust_run.errors import UserError
from robust_run.launcher.start.options.options import Options
from robust_run.launcher.start.options.rendezvous import check_port, parse_endpoint, parse_host

STATIC_PORT = 29500
C10D_PORT = 29400
"""The ports where none is given, as with torchrun."""

_ANY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104 - they are refused


class RendezvousPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where the nodes meet, and what this one was told of its part."""

    host: str
    port: int
    node_rank: int | None = None


def static(options: Options, nodes: int) -> RendezvousPlace:
    """Return the place; --rdzv-endpoint wins over --master-addr and --master-port, as with torchrun. Raises UserError."""
    if options.rdzv_endpoint.strip():
        host, port = _endpoint(options.rdzv_endpoint, None)
    else:
        host = parse_host("--master-addr", options.master_addr)
        check_port("--master-port", options.master_port)
        port = STATIC_PORT if options.master_port is None else options.master_port
        _check_meeting_point("--master-addr", host, "--master-port", port)
    if "node-rank" not in options.given:
        return RendezvousPlace(host=host, port=port)
    if not 0 <= options.node_rank < nodes:
        raise UserError(f"--node-rank {options.node_rank}: the job's nodes are 0 to {nodes - 1}, standbys included")
    return RendezvousPlace(host=host, port=port, node_rank=options.node_rank)


def c10d(options: Options, settings: dict[str, str]) -> RendezvousPlace:
    """Return where --rdzv-endpoint says; the controller places the nodes. Raises UserError."""
    if settings.get("store_type") == "file":
        raise UserError("--rdzv-conf store_type=file: nodes meet at an address; give --rdzv-endpoint HOST:PORT instead")
    if not options.rdzv_endpoint.strip():
        raise UserError(
            f"--nnodes {options.nnodes} needs a place to meet: give --rdzv-endpoint HOST:PORT, the same on every node"
        )
    host, port = _endpoint(options.rdzv_endpoint, C10D_PORT)
    return RendezvousPlace(host=host, port=port)


def _endpoint(text: str, default_port: int | None) -> tuple[str, int]:
    host, given_port = parse_endpoint(text)
    port = default_port if given_port is None else given_port
    if port is None:
        raise UserError(f"--rdzv-endpoint {text!r} has no port; write HOST:PORT")
    _check_meeting_point("--rdzv-endpoint", host, "--rdzv-endpoint", port)
    return host, port


def _check_meeting_point(host_option: str, host: str, port_option: str, port: int) -> None:
    if host in _ANY_ADDRESS:
        raise UserError(
            f"{host_option} {host} is no address that other nodes can connect to; name the machine where they meet"
        )
    if port == 0:
        raise UserError(f"{port_option}: port 0 is a different one each time; give one that all nodes know")
