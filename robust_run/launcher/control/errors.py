"""Errors of a control connection, besides those of the network itself."""

from __future__ import annotations

from robust_run.errors import PlatformError


class ProtocolError(PlatformError):
    """A peer sent what nobody who speaks the protocol sends; it is disconnected."""


class NotController(PlatformError):  # noqa: N818 (what it is, not that it is one)
    """Something answers where the controller should be, but it is none, or not in a way this agent can talk to."""


class NoController(PlatformError):  # noqa: N818 (as above)
    """Nothing was left to do on this node, and no controller was found for too long."""

    exit_code = 69
    """EX_UNAVAILABLE: what follows up under a scheduler tells it from other failures by that."""


class JoinRefusal(PlatformError):  # noqa: N818 (as above)
    """The controller does not let this agent in."""

    def __init__(self, reason: str, *, final: bool, is_proven: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.final = final
        """Trying again is of no use."""
        self.is_proven = is_proven
        """Whether who refuses knows the job's token. If not, it may be anybody on the way there."""


class VersionMismatch(JoinRefusal):
    """Agent and controller speak different protocols."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, final=True)


class WrongToken(JoinRefusal):
    """Agent and controller know different secrets."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, final=True)
