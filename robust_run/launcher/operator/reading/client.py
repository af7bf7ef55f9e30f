"""API client: asks a running job over the Unix socket of its run directory, else over HTTP with the job's token."""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import struct
from collections.abc import Mapping
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from robust_run.decoders import json_decoder
from robust_run.errors import PlatformError, UserError
from robust_run.launcher.operator.reading.place import (
    SOCKET_NAME,
    TOKEN_NAME,
    ApiEndpoint,
    read_place,
    short_address,
    this_boot,
)
from robust_run.launcher.records.token import read_token
from robust_run.secret_file import read_secret

#: The first question has the controller import its web server: half a second of a CPU, which is seconds on a busy machine.
TIMEOUT_S = 10.0

#: An answer is never larger than this: 10,000 nodes are 3 MB.
LARGEST_ANSWER_BYTES = 256 << 20

#: Where a token may be given, for a job whose run directory is out of reach.
TOKEN_VARIABLE = "ROBUST_JOB_TOKEN"  # noqa: S105 - the name of one


_ONLY_THERE = "listens on that machine alone; ask there, or start jobs with --http-host 0.0.0.0"


class NoAnswerError(PlatformError):
    """No controller answers. `refused` means that none runs there, as far as this machine can tell."""

    def __init__(self, message: str, *, refused: bool) -> None:
        super().__init__(message)
        self.refused = refused


class SaysNoError(PlatformError):
    """The controller answers, and does not do it."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class _Problem(msgspec.Struct):
    error: str


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        with short_address(self._path) as address:
            self.sock.connect(address)
        if (owner := _listener_of(self.sock)) not in (0, os.geteuid()) and os.geteuid() != 0:
            raise NoAnswerError(
                f"{self._path} is answered by user {owner}, who is not you: nothing was sent there", refused=False
            )


def _listener_of(connection: socket.socket) -> int:
    """Return the user at the other end of a Unix socket, as the kernel has it."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


class ApiTarget(msgspec.Struct, frozen=True, kw_only=True):
    """One way to a controller: a Unix socket, or an address and a token."""

    socket: str = ""
    url: str = ""
    token: str = ""
    tls_ca: str = ""

    def get(self, path: str, query: Mapping[str, object] | None = None, wait_s: float = 0.0) -> bytes:
        """Return the answer to a question. Raises NoAnswerError, or PlatformError with what the controller says."""
        return self._ask("GET", f"{path}?{urlencode(query)}" if query else path, None, wait_s)

    def post(self, path: str, body: msgspec.Struct) -> bytes:
        """Return the answer to a wish. Raises as `get` does."""
        return self._ask("POST", path, msgspec.json.encode(body), 0.0)

    def send(self, path: str, body: bytes, content_type: str) -> bytes:
        """Return the answer to what is no JSON. Raises as `get` does."""
        return self._ask("POST", path, body, 0.0, content_type)

    def _ask(
        self, method: str, path: str, body: bytes | None, wait_s: float, content_type: str = "application/json"
    ) -> bytes:
        headers = {"Connection": "close"}
        if body is not None:
            headers["Content-Type"] = content_type
        if self.token and not self.socket:
            headers["Authorization"] = f"Bearer {self.token}"
        where = self.socket or self.url
        connection = self._connection(TIMEOUT_S + wait_s)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            data = answer.read(LARGEST_ANSWER_BYTES)
        except (ConnectionRefusedError, FileNotFoundError) as error:
            raise NoAnswerError(f"no controller listens at {where}", refused=True) from error
        except TimeoutError as error:
            raise NoAnswerError(
                f"the controller at {where} did not answer within {TIMEOUT_S + wait_s:g} s", refused=False
            ) from error
        except (OSError, http.client.HTTPException) as error:
            unknown_ca = isinstance(error, ssl.SSLCertVerificationError) and not self.tls_ca
            hint = "; give the job's CA or the controller's certificate with --tls-ca FILE" if unknown_ca else ""
            raise NoAnswerError(
                f"cannot ask the controller at {where}: {_reason(error)}{hint}", refused=False
            ) from error
        finally:
            connection.close()
        if answer.status != 200:
            raise SaysNoError(_problem(answer.status, data, where), answer.status)
        return data

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        if self.socket:
            return _UnixConnection(self.socket, timeout_s)
        scheme, host, port = split_url(self.url)
        if scheme == "https":
            return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=_tls(self.tls_ca))
        return http.client.HTTPConnection(host, port, timeout=timeout_s)


def prepare() -> None:
    """Have all that answers are decoded by ready, before several threads ask at a time.

    msgspec (0.22) makes what it knows of a Struct when it is first decoded, and two threads that do so at once crash the process.
    """
    for kind in (ApiEndpoint, _Problem):
        json_decoder(kind)


def node_path(name: str, action: str) -> str:
    """Return the path of an action on a node."""
    return f"/v1/nodes/{quote(name, safe='')}/{action}"


def split_url(url: str) -> tuple[str, str, int | None]:
    """Return scheme, host and port. Raises UserError for what is no address of a controller."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = None, None, None
    if parts is None or parts.scheme not in ("http", "https") or not host:
        raise UserError(f"--url {url!r} is no address of a controller; write http://HOST:PORT")
    return parts.scheme, host, port


def remote(url: str, token_file: str, tls_ca: str, env: Mapping[str, str]) -> ApiTarget:
    """Return the way to a controller that the user named. Raises UserError, PlatformError."""
    split_url(url)
    token = _token_of(token_file) if token_file else env.get(TOKEN_VARIABLE, "")
    if not token:
        raise UserError(f"--url needs the job's token: give --token-file FILE or set {TOKEN_VARIABLE}")
    return ApiTarget(url=url, token=token, tls_ca=tls_ca)


class ClientMachine(msgspec.Struct, frozen=True):
    """The machine where the command runs."""

    host: str
    boot: str = ""
    """See `ApiEndpoint.boot`."""

    def has(self, place: ApiEndpoint) -> bool:
        """Whether a controller that says that it is there runs on this very kernel: what refuses here is gone then."""
        return place.boot == self.boot if place.boot and self.boot else place.host == self.host


def this_machine() -> ClientMachine:
    """Return where we are."""
    return ClientMachine(socket.gethostname(), this_boot())


def reach(run_directory: str, token_file: str, tls_ca: str, env: Mapping[str, str], here: ClientMachine) -> ApiTarget:
    """Return a way to the controller of a run directory on which it answers.

    The run directory may be shared with other machines, where its Unix socket refuses also if the controller lives: there only
    the web server tells anything, and its silence or refusal (a firewall's, perhaps) proves nothing. Raises NoAnswerError.
    """
    try:
        place = read_place(run_directory)
    except PlatformError as error:  # the journal still tells
        raise NoAnswerError(str(error), refused=False) from error
    if place is None:
        raise NoAnswerError("its controller is gone", refused=True)
    problems: list[NoAnswerError] = []
    only_there = ""
    if place.is_loopback and not (here.has(place) and here.host == place.host):
        only_there = f": its web server ({place.http}) {_ONLY_THERE}"  # here, something else may listen there
        place = msgspec.structs.replace(place, http="")
    for target in _ways(run_directory, place, token_file, tls_ca, env):
        try:
            target.get("/v1/status")
        except NoAnswerError as error:
            problems.append(error)
        else:
            return target
    if not problems:
        text = f"its controller (pid {place.pid} on {place.host}) has no status socket"
        raise NoAnswerError(f"{text}{' from here' if only_there else ''}{only_there}", refused=False)
    if here.has(place):
        for problem in problems:
            if not problem.refused:
                raise problem
        raise NoAnswerError(f"its controller on {place.host} is gone", refused=True)
    tried = only_there or next((f": {each}" for each in problems if "://" in str(each)), "")
    raise NoAnswerError(
        f"its controller runs or ran on {place.host}, which cannot be asked from here{tried}", refused=False
    )


def _ways(
    run_directory: str, place: ApiEndpoint, token_file: str, tls_ca: str, env: Mapping[str, str]
) -> list[ApiTarget]:
    # Where the socket is said to be is a path of the controller's machine or container.
    ways = [ApiTarget(socket=os.path.join(os.path.abspath(run_directory), SOCKET_NAME))] if place.socket else []
    if place.http:
        token = _token(run_directory, token_file, env)
        if token:
            known_ca = place.tls_ca if os.path.isfile(place.tls_ca) else ""  # a path of the controller's machine
            ways.append(ApiTarget(url=place.http, token=token, tls_ca=tls_ca or known_ca))
    return ways


def _token(run_directory: str, token_file: str, env: Mapping[str, str]) -> str:
    """Return what to send to the address that a run directory names; empty where that must not have any secret of ours."""
    if token_file or not os.path.exists(os.path.join(run_directory, TOKEN_NAME)):
        if not _is_ours(run_directory):
            return ""  # a stranger's folder must not say where our secret goes
        return _token_of(token_file) if token_file else env.get(TOKEN_VARIABLE, "")
    return read_token(run_directory)


def _is_ours(folder: str) -> bool:
    try:
        return os.stat(folder).st_uid in (0, os.geteuid())
    except OSError:
        return False


def _token_of(path: str) -> str:
    token = read_secret(path, f"or set {TOKEN_VARIABLE}")
    if token is None:
        raise UserError(f"the token file {path!r} is not there")
    if not token.isascii() or not token.isprintable():
        raise UserError(f"the token file {path!r} holds no token")
    return token


def _tls(tls_ca: str) -> ssl.SSLContext:
    """Return what checks the server. What was given for this job, a CA or the very certificate, vouches for its machines
    under any name.
    """
    try:
        context = ssl.create_default_context(cafile=tls_ca or None)
    except (OSError, ValueError) as error:
        raise UserError(f"--tls-ca {tls_ca!r} cannot be used: {_reason(error)}") from error
    if tls_ca:
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the certificate itself is enough, without its CA
    return context


def _problem(status: int, data: bytes, where: str) -> str:
    try:
        return json_decoder(_Problem).decode(data).error
    except msgspec.MsgspecError:
        return f"what listens at {where} is no controller of robust-run (HTTP status {status})"


def _reason(error: BaseException) -> str:
    return (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__
