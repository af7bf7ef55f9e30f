"""The keeper's side: mounts the file, starts the server, replaces it when it dies, and asks it things.

handle = start("https://host/train.sqsh", block_map, "/var/cache/images", "/run/job/fuse", hot=runs)
...                       # handle.image_path is a file now: mount it, or read it
handle.close_window()     # the first step is done
handle.touches()          # for the hot list
handle.stop()             # after what was mounted on top of it is gone
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Callable, Sequence

from robust_run.mounts import syscalls
from robust_run.prefetch import blockmap
from robust_run.prefetch.errors import CacheRefused, ServerFailed
from robust_run.prefetch.rules.types import BlockMap, BlockRun, Status, Touch
from robust_run.prefetch.server import control, mounting, shared
from robust_run.prefetch.server.config import Background, ServeOptions, ServerConfig
from robust_run.prefetch.server.keeping import Keeper, State
from robust_run.prefetch.server.protocol import IMAGE_NAME

_OPTIONS = ServeOptions()


def start(  # noqa: PLR0913 - one call makes a server
    image_url: str,
    block_map: BlockMap,
    cache_root: str,
    mount_folder: str,
    *,
    hot: Sequence[BlockRun] = (),
    options: ServeOptions = _OPTIONS,
    control_path: str | None = None,
    on_problem: Callable[[str], None] = lambda _sentence: None,
    on_lost: Callable[[str], None] | None = None,
    on_note: Callable[[str], None] | None = None,
) -> ServerHandle:
    """Show an image as the file `image` in a folder, and return once its beginning could be read.

    Call it in the mount namespace where the file is wanted, best a private one. `hot` is fetched at once, in this order; see
    `hotlist.plan`. `control_path`: where the control socket goes; None: into the cache's folder. `on_problem` gets one sentence
    whenever the server was replaced or given up, `on_lost` (None: the same) when reads fail, and why, and `on_note` (None: the
    same) what is worth knowing and fails nothing; all from threads.

    Raises `MountRefused`, `CacheRefused`, `BlockMapRefused`, and `ServerFailed` where it cannot serve or does not within
    `ServeOptions.start_limit_s`. Nothing is left mounted then.
    """
    blockmap.checked(block_map, f"block map of {image_url}")
    cache_root, mount_folder = os.path.abspath(cache_root), os.path.realpath(mount_folder)
    image_url = image_url if "://" in image_url else os.path.abspath(image_url)
    control_path = os.path.abspath(control_path or _new_control_path(cache_root))
    listening = _listen(control_path)
    device = memory = peer_socket = name = -1
    try:
        name = control.hold(control_path)  # caches are cleared away, also while a job uses them
        peer_socket = _listen_for_peers(options)
        device = mounting.open_device()
        memory = shared.create(block_map.size_bytes)
        config = ServerConfig(
            image_url=image_url,
            block_map=block_map,
            cache_root=cache_root,
            mount_folder=mount_folder,
            device=device,
            shared=memory,
            control=listening.fileno(),
            mounted=mounting.mount(device, mount_folder),
            options=options,
            peer_socket=peer_socket,
            hot=tuple(hot),
        )
    except BaseException:
        _close((device, memory, peer_socket, name), listening, control_path)
        raise
    held = (device, memory, peer_socket, name)
    keeper = Keeper(
        config,
        f"{control_path}.log",
        name,
        lambda: _close(held, listening, control_path),
        on_problem,
        on_lost or on_problem,
        on_note or on_problem,
    )
    handle = ServerHandle(keeper, config, control_path, name)
    keeper.start()
    _learn_not_to_flush(handle.image_path)
    return handle


def _learn_not_to_flush(path: str) -> None:
    """Have the kernel hear once that closing the file needs no server.

    Else the keeper could never replace a dead one: its new process closes the files that it inherits before it becomes a server,
    and to close one of this mount it would wait for itself. (Since Linux 5.16 the kernel is told so with each open file.)
    """
    with contextlib.suppress(OSError):  # the first reader will see the error too
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))


class ServerHandle:
    """A server that runs, seen from the process that keeps it. Safe to use from threads."""

    def __init__(self, keeper: Keeper, config: ServerConfig, control_path: str, control_name: int) -> None:
        """Made by `start`."""
        self._keeper, self._config, self._control_name = keeper, config, control_name
        self._shared = shared.Shared(config.shared)
        self.control_path = control_path
        """The socket for other processes; see `control.ask`."""
        self.image_path = os.path.join(config.mount_folder, IMAGE_NAME)
        """The file."""

    def leave_device_to_keeper(self) -> None:
        """Have this thread hold the device no more, now that the thread that keeps the server does. Raises OSError.

        A thread that reads what is mounted of this file cannot be killed while it waits. Where all processes are killed at once,
        the kernel fails its read when nobody holds the device any more: if it did so itself, it would wait for ever.
        """
        syscalls.unshare(syscalls.OWN_FILES)
        os.close(self._config.device)

    @property
    def state(self) -> State:
        """`serving`; `restarting`: reads wait; `left`: it was unmounted or stopped; `failed`: reads give EIO, see `reason`."""
        return self._keeper.state

    @property
    def reason(self) -> str:
        """Why it failed, or was last replaced; "" where neither happened."""
        return self._keeper.reason

    @property
    def restarts(self) -> int:
        """How often a server that died was replaced."""
        return self._keeper.restarts

    def status(self, limit_s: float = 10.0) -> Status:
        """Ask it how it is. Raises `ControlFailed`, and `ServerFailed` where it was given up."""
        return self._ask(control.AskStatus(), Status, limit_s)

    def touches(self) -> list[Touch]:
        """Return what was read from the mount until the window was closed, by quantum. Needs no server, and never fails."""
        return self._shared.touches()

    @property
    def window_s(self) -> float:
        """How long the window was open, or has been until now, in seconds from the mount."""
        return self._shared.window_s

    def close_window(self) -> None:
        """Record no more touches. Needs no server, and never fails."""
        self._shared.close_window()

    def prefetch(self, runs: Sequence[BlockRun], limit_s: float = 10.0) -> int:
        """Have these fetched after those given before. Return how many blocks are not there yet. Raises as `status`."""
        return self._ask(control.AskPrefetch(tuple(runs)), control.Done, limit_s).count

    def background(self, width: int, bytes_per_s: float | None = None, limit_s: float = 10.0) -> None:
        """Have the rest of the image fetched with so many requests at once; 0: no more. Raises as `status`."""
        self._ask(control.AskBackground(Background(width=width, bytes_per_s=bytes_per_s)), control.Done, limit_s)

    def meet(self, members: Sequence[str], own: str, limit_s: float = 10.0) -> int:
        """Share blocks with these nodes from now on; see `PeerOptions`. Return how many they are. Raises as `status`."""
        return self._ask(control.AskPeers(tuple(members), own), control.Done, limit_s).count

    def stop(self, limit_s: float = 5.0) -> None:
        """Take the mount away and end the server, by force after `limit_s`. Who still reads gets EIO. Never raises."""
        self._keeper.stop(limit_s)

    def _ask(self, request: control.Request, kind: type[control._Reply], limit_s: float) -> control._Reply:
        if self.state in ("failed", "left"):
            raise ServerFailed(self.reason or f"{self._config.image_url}: the block server has left: start it again")
        return control.ask(self.control_path, request, kind, limit_s, held=self._control_name)


def _new_control_path(cache_root: str) -> str:
    """Return a new name in the cache's folder of sockets, and remove those there that no server listens at any more."""
    folder = os.path.join(cache_root, "control")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        for name in os.listdir(folder):
            if name.endswith(".sock"):
                _remove_stale(os.path.join(folder, name))
    except OSError as error:
        raise CacheRefused(f"{folder}: {error.strerror}: name another --image-cache folder") from error
    return os.path.join(folder, f"{os.getpid()}-{secrets.token_hex(4)}.sock")


def _remove_stale(path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, control.short(path) as address:
        probe.setblocking(False)
        try:
            probe.connect(address)
        except ConnectionRefusedError:
            for leftover in (path, f"{path}.log"):
                if os.path.lexists(leftover):
                    os.unlink(leftover)
        except OSError:
            return


def _listen(path: str) -> socket.socket:
    try:
        return control.listen(path)
    except OSError as error:
        raise CacheRefused(f"{path}: {error.strerror or error}: no control socket can be made there") from error


def _listen_for_peers(options: ServeOptions) -> int:
    """Return a socket's descriptor; -1 where nothing is shared."""
    if options.peers is None:
        return -1
    from robust_run.prefetch.peers.together import listen

    try:
        return listen(options.peers).detach()
    except OSError as error:
        raise ServerFailed(f"{options.peers.bind}: {error.strerror or error}: peers cannot ask there") from error


def _close(descriptors: Sequence[int], listening: socket.socket, control_path: str) -> None:
    """Let go of all that a keeper holds. When no server has the device either, the kernel fails all reads of the file."""
    for descriptor in descriptors:
        if descriptor >= 0:
            os.close(descriptor)
    listening.close()
    for path in (control_path, f"{control_path}.log"):
        if os.path.lexists(path):
            os.unlink(path)
