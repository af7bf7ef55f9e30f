"""What the doctor runs on every node of a tiny step: can nodes reach each other, what do they have. Standard library only.

    python -I -S probe.py FOLDER NODES TIMEOUT_S

Each task listens on a port of its own, says where in FOLDER (which is checked with it: is it shared?), waits for the others,
and connects to them: to all where there are few, else to the next `MOST_PEERS`. One line of JSON is its answer.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time

MOST_PEERS = 16


def main(folder: str, nodes: int, timeout_s: float) -> dict[str, object]:
    """Return what this node found."""
    number = int(os.environ.get("SLURM_PROCID", "0"))
    name = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    server = socket.create_server(("", 0), backlog=256)
    give_up_at = time.monotonic() + timeout_s
    say(folder, number, {"name": name, "addresses": addresses(), "port": server.getsockname()[1]})
    steps = range(1, min(nodes - 1, MOST_PEERS) + 1)
    peers = {(number + step) % nodes for step in steps}
    said = wait_for(folder, peers, give_up_at)
    unreachable = [str(at["name"]) for at in said.values() if not reach(at)]
    say(folder, number + nodes, {"done": True})
    # Those that connect to this node need its socket until they have.
    wait_for(folder, {(number - step) % nodes + nodes for step in steps}, give_up_at if len(said) == len(peers) else 0)
    return {
        "name": name,
        "task": number,
        "nodes": os.environ.get("SLURM_STEP_NODELIST", ""),
        "unheard": [f"task {peer}" for peer in sorted(peers - set(said))],
        "unreachable": unreachable,
        "fuse": os.access("/dev/fuse", os.R_OK | os.W_OK),
        "scontrol": any(os.access(f"{place}/scontrol", os.X_OK) for place in os.environ.get("PATH", "").split(":")),
        "robust_run": any(os.access(f"{place}/robust-run", os.X_OK) for place in os.environ.get("PATH", "").split(":")),
    }


def wait_for(folder: str, numbers: set[int], give_up_at: float) -> dict[int, dict[str, object]]:
    """Return what these have said, as far as they have until then."""
    said: dict[int, dict[str, object]] = {}
    while True:
        for number in numbers - set(said):
            if found := heard(folder, number):
                said[number] = found
        if len(said) == len(numbers) or time.monotonic() >= give_up_at:
            return said
        time.sleep(0.02)


def addresses() -> list[str]:
    """Return the addresses by which others may know this node, best first."""
    found = []
    launcher = os.environ.get("SLURM_LAUNCH_NODE_IPADDR")
    if launcher:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way_out:
            try:
                way_out.connect((launcher, 9))
                found.append(way_out.getsockname()[0])
            except OSError:
                pass
    return [*found, socket.gethostname()]


def say(folder: str, number: int, what: dict[str, object]) -> None:
    """Publish a file as a whole."""
    path = os.path.join(folder, f"{number}.json")
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        json.dump(what, file)
    os.rename(f"{path}.new", path)


def heard(folder: str, number: int) -> dict[str, object] | None:
    """Return what another has said."""
    try:
        with open(os.path.join(folder, f"{number}.json"), encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def reach(at: dict[str, object]) -> bool:
    """Whether a peer takes a connection at one of its addresses."""
    places, port = at.get("addresses"), at.get("port")
    for address in places if isinstance(places, list) else []:
        try:
            socket.create_connection((str(address), int(str(port))), timeout=5).close()
        except (OSError, ValueError):
            continue
        return True
    return False


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))), flush=True)
