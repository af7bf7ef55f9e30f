"""TLS contexts for connections between nodes, from `--tls-cert`, `--tls-key` and `--tls-ca`: those of agents to the controller,
and those of keepers of checkpoints to each other.

With a CA both sides verify each other's chain: whoever is called lets nobody in whose certificate is not of that CA, and who
calls talks to nobody without one. Host names are not checked: certificates of clusters rarely carry the address that is
dialed, and any node of the job may be its controller. What binds a connection to the job is its secret, whose proofs cover
the TLS channel (`launcher.control.handshake`, `ckpt_io.memory.copies`); so a node that holds a certificate of the same CA cannot
stand between two others. For the same reason a certificate without a CA is of use: it encrypts, and the proofs find whoever
stands between.
"""

from __future__ import annotations

import os
import ssl
import threading
from typing import Any

from robust_run.errors import RobustRunError, UserError

#: How long a connection waits for the files to be looked at: they may lie on a file system that hangs.
LOOK_S = 0.5


class RenewedContext(ssl.SSLContext):
    """A context that takes up what was put in the place of its files: certificates may last an hour, and jobs last weeks.

    They are looked at whenever a connection begins. What makes no sense, because only half of it is there, is left for the next.
    """

    _files: tuple[str, str, str] = ("", "", "")
    _used: tuple[object, ...] = ()
    _found: tuple[object, ...] = ()
    _looking: threading.Thread | None = None

    def keep_up(self, cert: str, key: str, ca: str) -> None:
        """Begin with these files, which have been read."""
        self._files = cert, key, ca
        self._used = self._found = _marks(self._files)

    def wrap_socket(self, *args: Any, **kwargs: Any) -> ssl.SSLSocket:
        """Begin a connection over a socket."""
        self.renew()
        return super().wrap_socket(*args, **kwargs)

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """Begin a connection over buffers, as asyncio does."""
        self.renew()
        return super().wrap_bio(*args, **kwargs)

    def renew(self) -> None:
        """Take up what is new, if it can be seen at once."""
        if self._looking is None or not self._looking.is_alive():
            self._looking = threading.Thread(target=self._look, name="tls files", daemon=True)
            self._looking.start()
        self._looking.join(LOOK_S)
        if self._looking.is_alive() or self._found == self._used:
            return
        try:
            _load(self, *self._files)
        except RobustRunError:
            return
        self._used = self._found

    def _look(self) -> None:
        """Find out whether there are other files that can be used."""
        found = _marks(self._files)
        if found in (self._used, self._found):
            return
        try:
            _load(ssl.SSLContext(self.protocol), *self._files)
        except RobustRunError:
            return
        self._found = found


def _marks(paths: tuple[str, ...]) -> tuple[object, ...]:
    """Return what tells files from others in their place."""
    found: list[object] = []
    for path in paths:
        try:
            status = os.stat(path) if path else None
        except OSError:
            status = None
        found.append((status.st_mtime_ns, status.st_size, status.st_ino) if status is not None else None)
    return tuple(found)


def server_context(cert: str, key: str, ca: str) -> ssl.SSLContext | None:
    """Return what a port needs that is called, None for no TLS. Paths; empty where not given.

    Raises UserError for files that cannot be used, and for a CA or a key without a certificate.
    """
    if not (cert or key or ca):
        return None
    if not cert:
        given = "--tls-key" if key else "--tls-ca"
        raise UserError(f"{given} without --tls-cert: the controller needs a certificate; give --tls-cert")
    context = _context(ssl.PROTOCOL_TLS_SERVER, cert, key, ca)
    context.verify_mode = ssl.CERT_REQUIRED if ca else ssl.CERT_NONE
    context.num_tickets = 0  # each connects once: nothing is gained by resuming a session
    return context


def client_context(cert: str, key: str, ca: str) -> ssl.SSLContext | None:
    """Return what others are dialed with, None for no TLS. Paths; empty where not given.

    Raises UserError for files that cannot be used, and for a key without a certificate.
    """
    if not (cert or key or ca):
        return None
    if key and not cert:
        raise UserError("--tls-key without --tls-cert: give the certificate that the key belongs to")
    context = _context(ssl.PROTOCOL_TLS_CLIENT, cert, key, ca)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED if ca else ssl.CERT_NONE
    return context


def _context(protocol: int, cert: str, key: str, ca: str) -> RenewedContext:
    context = RenewedContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= (
        ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    )  # one channel, one set of keys: proofs are bound to it
    context.keep_up(cert, key, ca)
    _load(context, cert, key, ca)
    return context


def _load(context: ssl.SSLContext, cert: str, key: str, ca: str) -> None:
    for option, path in (("--tls-cert", cert), ("--tls-key", key), ("--tls-ca", ca)):
        if path:
            _check_readable(option, path)
    if cert:
        _load_certificate(context, cert, key)
    if ca:
        try:
            context.load_verify_locations(cafile=ca)
        except (ssl.SSLError, OSError) as error:
            raise UserError(f"--tls-ca {ca}: no certificate in PEM form ({_reason(error)})") from None


def _check_readable(option: str, path: str) -> None:
    try:
        with open(path, "rb") as file:
            file.read(1)
    except OSError as error:
        raise UserError(
            f"{option} {path}: cannot be read: {error.strerror}; give a file that this user can read"
        ) from None


def _load_certificate(context: ssl.SSLContext, cert: str, key: str) -> None:
    def no_password() -> str:  # OpenSSL would ask on the terminal
        raise UserError(
            f"--tls-key {key or cert}: the key has a password; give one without (openssl pkey -in ... -out ...)"
        )

    try:
        context.load_cert_chain(cert, key or None, password=no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise UserError(f"--tls-key {key or cert}: the key does not belong to --tls-cert {cert}") from None
        where = f"--tls-cert {cert} with --tls-key {key}" if key else f"--tls-cert {cert} (without --tls-key)"
        raise UserError(f"{where}: no certificate and key in PEM form ({_reason(error)})") from None


def _reason(error: OSError) -> str:
    return str(getattr(error, "reason", "") or error)
