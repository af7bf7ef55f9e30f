"""What can be wrong with a snapshot, as a tree by what the reader can do about it.

=====================  ==================================================  ================================================
class                  what it means                                       what to do
=====================  ==================================================  ================================================
`SetupRefused`         the set-up as typed cannot be snapshot              change the command line
`SetupFailed`          a set-up command failed                             see its output; mend the command
`CaptureRefused`       what the commands changed cannot be captured        another way to capture, or capture more folders
`SnapshotRefused`      a manifest or image is damaged, forged or foreign   build it again: `--refresh-setup`
`SnapshotDamaged`      the same, and it is not forged                      it is built anew where that is possible
`RestoreRefused`       this way to restore does not work here              the next rung of the ladder
`ToolMissing`          a program that is needed is not installed           install it
=====================  ==================================================  ================================================
"""

from __future__ import annotations

from robust_run.errors import PlatformError, UserError


class SetupRefused(UserError):  # noqa: N818 - a state of the world, named as such
    """What was asked for has no key: a file that is not there, too many files, a folder that cannot be captured."""


class SnapshotError(PlatformError):
    """Base of what can be wrong with a snapshot. Takes one message, so it may be pickled."""


class SetupFailed(SnapshotError):  # noqa: N818
    """A set-up command ended with something else than 0. The message has the last lines it wrote."""


class CaptureRefused(SnapshotError):  # noqa: N818
    """What the commands changed cannot be captured exactly, or lies outside the captured folders."""


class SnapshotRefused(SnapshotError):  # noqa: N818
    """A snapshot is not what its manifest says, or its manifest says what cannot be. Nothing of it is used."""


class SnapshotDamaged(SnapshotRefused):
    """It is cut short, gone in part, or its bytes are others. Nothing of it is used, and it may be replaced."""


class RestoreRefused(SnapshotError):  # noqa: N818
    """A snapshot is sound, but cannot be restored this way on this machine."""


class ToolMissing(SnapshotError):  # noqa: N818
    """A program is not installed. The message says what to install."""
