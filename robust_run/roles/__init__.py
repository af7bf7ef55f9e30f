"""What a worker of a job of several roles (`robust-run --roles FILE`) knows of the others, and says of itself.

    from robust_run import roles

    me = roles.me()                               # role, index, rank
    roles.ready(address="http://10.0.0.3:8000")   # others may rely on this worker
    roles.wait_ready("reward")                    # until all its members are
    for member in roles.members("rollout"): ...   # name, generation, ready, addresses
    prompts = roles.queue("prompts")              # see `robust_run.roles.work_queue`
    key = roles.peer_key("my protocol 1")         # the same in all workers of the job, and nowhere else

A member that died comes back under its name, with a higher generation. Nothing is connected before the first call.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping

import msgspec

from robust_run.errors import PlatformError, UserError
from robust_run.roles.client import Client, Place
from robust_run.roles.peer_keys import derive
from robust_run.roles.queue_words import Counts, Item
from robust_run.roles.words import Me, Member, ReadyCall
from robust_run.roles.work_queue import Queue

__all__ = [
    "Counts",
    "Item",
    "Me",
    "Member",
    "Queue",
    "changes",
    "is_active",
    "launch",
    "me",
    "members",
    "peer_key",
    "queue",
    "ready",
    "wait_ready",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from robust_run.roles.starting import launch as launch

PLACE, ROLE, INDEX, SERIAL = "ROBUST_ROLES_PLACE", "ROBUST_ROLE", "ROBUST_ROLE_INDEX", "ROBUST_ROLE_SERIAL"

AWAITED = ("waits", "starting", "running", "pausing")
"""States of a member that is ready, or will be."""

_lock = threading.Lock()
_client: Client | None = None
_queues: dict[str, Queue] = {}


def is_active() -> bool:
    """Whether this process is a worker of a job of several roles."""
    return PLACE in os.environ


def me(env: Mapping[str, str] | None = None) -> Me:
    """Return who this worker is. Raises UserError: it is none of a job of several roles."""
    env = os.environ if env is None else env
    if PLACE not in env:
        raise UserError("this is no worker of a job of several roles; start it with robust-run --roles FILE")
    try:
        return Me(
            role=env[ROLE],
            index=int(env[INDEX]),
            rank=int(env.get("RANK", "0")),
            serial=int(env[SERIAL]),
            attempt=int(env.get("TORCHELASTIC_RESTART_COUNT", "0")),
        )
    except (KeyError, ValueError) as error:
        raise UserError(
            f"the environment of this worker is not complete ({error}); it was changed after its start"
        ) from error


def ready(address: str = "") -> None:
    """Say that this rank is ready for others, and where it is reached."""
    client = _connected()
    client.ask(ReadyCall(number=client.number(), address=address))


def members(role: str) -> tuple[Member, ...]:
    """Return the members of a role, in order. Raises UserError for a role that the job has not."""
    client = _connected()
    found = client.members(role)
    if not found:
        raise UserError(f"this job has no role {role!r}")
    return found


def wait_ready(role: str, count: int | None = None, timeout_s: float | None = None) -> tuple[Member, ...]:
    """Wait until members of a role are ready, and return those; `count`: so many are enough, None: all that are to run.

    Those that are done, were given up or are told to end are not waited for. Raises TimeoutError.
    """
    client = _connected()
    members(role)

    def enough() -> bool:
        known = [each for each in client.known(role) if each.state in AWAITED]
        return sum(each.ready for each in known) >= (len(known) if count is None else count)

    if not client.wait(enough, timeout_s):
        raise TimeoutError(f"{role} was not ready within {timeout_s:g} s")
    return tuple(each for each in client.members(role) if each.ready)


def changes(role: str) -> Iterator[tuple[Member, ...]]:
    """Yield the members of a role now, and again whenever one has changed. Raises UserError as `members`."""
    client = _connected()
    members(role)
    last: tuple[Member, ...] = ()
    while True:
        client.wait(lambda seen=last: tuple(sorted(client.known(role), key=lambda each: each.index)) != seen, None)  # type: ignore[misc]
        last = client.members(role)
        yield last


def peer_key(purpose: str) -> bytes:
    """Return 32 bytes that all workers of this job have, on all its nodes, and nobody else: for connections between them.

    `purpose` names the protocol; another one has another key. The key outlives restarts of workers and of what leads the job.
    Whoever has it belongs to the job: prove that with an HMAC over nonces of both ends, and never send the key itself. Raises
    UserError: this is no worker of such a job, or the purpose is empty or too long.
    """
    me()
    return derive(_place().secret, purpose)


def queue(name: str) -> Queue:
    """Return a queue of the job, which is made when it is first used."""
    client = _connected()
    with _lock:
        return _queues.setdefault(name, Queue(client, name))


def _connected() -> Client:
    global _client  # noqa: PLW0603 - one connection of a process
    with _lock:
        if _client is None:
            _client = Client(me(), _place)
        return _client


def _place() -> Place:
    """Return where the orchestrator is now: the file is written anew when it was started again elsewhere."""
    path = os.environ.get(PLACE, "")
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(), type=Place)
    except OSError:
        raise
    except msgspec.MsgspecError as error:
        raise PlatformError(f"{path} is no place of an orchestrator: {error}") from error


def __getattr__(name: str) -> object:
    """Give `launch`, which workers do not need, when it is first asked for."""
    if name == "launch":
        from robust_run.roles.starting import launch

        return launch
    raise AttributeError(f"module 'robust_run.roles' has no attribute {name!r}")
