"""Every error robust-run raises, as a tree by whose fault it is.

======================  ================================  =========  ===============================
class                   whose fault                       exit code  what the reader should do
======================  ================================  =========  ===============================
`UserError`             the command line or environment   2          change what was typed
`PlatformError`         this machine or its file system   1          mend the machine, run again
`InternalError`         robust-run itself                 70         report it
======================  ================================  =========  ===============================

A worker that fails is not an error of ours: it is an event, and ends in a verdict (see `robust_run.report`).
"""

__all__ = ["InternalError", "PlatformError", "RobustRunError", "UserError"]


class RobustRunError(Exception):
    """Base of all our errors. The message is one line: the thing, the value, the limit, the next step."""

    exit_code = 1


class UserError(RobustRunError):
    """What was asked for cannot be done as typed. Nothing was started and nothing was lost."""

    exit_code = 2


class PlatformError(RobustRunError):
    """The machine refused something a job needs: a process, a port, a file."""

    exit_code = 1


class InternalError(RobustRunError):
    """A promise robust-run makes to itself was broken. Please report it with the journal."""

    exit_code = 70
