"""What can be wrong with a checkpoint. All are faults of the platform: of a disk, a network, or of what others wrote there.

==================  ====================================================  =========================================
class               what it means                                         what to do
==================  ====================================================  =========================================
`NotACheckpoint`    there is no manifest: nothing was ever committed      look for another (`robust ckpt list`)
`ManifestRefused`   there is a manifest that says what cannot be          `robust ckpt repair`, or another checkpoint
`Damaged`           one unit is not what was saved                        `robust ckpt repair` from a second copy
`TargetLost`        a target does not answer, or is another's             bring it back, or name it with `also`
`Replaced`          another save took the place of what was being read    open it again
`Mixed`             ranks of one load opened different checkpoints        have all of them open the same
`OutOfOrder`        a file of a mount was written elsewhere than at its end  write it beside, and copy it
`NotWhole`          a file of a mount was closed and is not whole         see what ended its writer; save it again
`FailedBefore`      a file of a mount will not be there, as was said      save it again
`SegmentRefused`    what lies in memory is not what was saved there       start from an older step
`MemoryUnavailable`  checkpoints cannot be kept in memory now             training goes on without them
==================  ====================================================  =========================================
"""

from __future__ import annotations

from typing import Any

from robust_run.errors import PlatformError

#: Public: what training scripts may meet. The others concern who writes through a mount.
__all__ = ["CheckpointError", "Damaged", "ManifestRefused", "Mixed", "NotACheckpoint", "Replaced", "TargetLost"]


class CheckpointError(PlatformError):
    """A checkpoint cannot be read or written as it should."""

    def __reduce__(self) -> tuple[Any, ...]:
        """torch.distributed hands the errors of one rank to the others as pickles, which know nothing of our arguments."""
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[CheckpointError], args: tuple[object, ...], state: dict[str, object]) -> CheckpointError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class NotACheckpoint(CheckpointError):  # noqa: N818 - a state of the world, named as such
    """No manifest lies at this address: a save that died, or no save at all."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"{url} is no checkpoint: {reason}; see `robust ckpt list` for those there are")
        self.url = url
        self.reason = reason


class ManifestRefused(CheckpointError):  # noqa: N818
    """A manifest is damaged, of another version, or contradicts itself. Nothing that it says is followed."""

    def __init__(self, reason: str, url: str = "") -> None:
        place = f" of {url}" if url else ""
        super().__init__(f"manifest{place} refused: {reason}; repair the checkpoint from a copy or use another")
        self.reason = reason
        self.url = url


class Damaged(CheckpointError):  # noqa: N818
    """A unit is not what was saved. Buffers that it was to be read into hold nothing of worth."""

    def __init__(self, *, file: str, unit: int, target: str, part: str, reason: str, brief: str = "") -> None:
        super().__init__(
            f"damaged: logical file {file}, unit {unit}, target {target}, part {part}: {reason}; "
            "repair it with `robust ckpt repair` from a second copy, or load another checkpoint"
        )
        self.file = file
        self.unit = unit
        self.target = target
        """URL of the checkpoint's folder on the target."""
        self.part = part
        self.reason = reason
        self.brief = f"unit {unit} of {part.rpartition('/')[2]} in {target} {brief or f'cannot be read: {reason}'}"
        """What is wrong, as a clause of one line."""
        self.url = ""
        """Path or URL of the checkpoint's folder on its primary target, and the uuid of its manifest, where they are known."""
        self.uuid = ""


class TargetLost(CheckpointError):  # noqa: N818
    """A target cannot be reached, is full or read-only, or does not hold this checkpoint."""

    def __init__(self, target: str, reason: str) -> None:
        super().__init__(f"target {target} failed: {reason}")
        self.target = target
        self.reason = reason


class Replaced(CheckpointError):  # noqa: N818
    """The checkpoint was saved anew under its name while this one was open; what was open is gone."""

    def __init__(self, url: str) -> None:
        super().__init__(f"{url} was saved anew while it was being read: open it again")
        self.url = url


class Mixed(CheckpointError):  # noqa: N818
    """Ranks of one load opened different checkpoints. Nothing was loaded on any of them."""


class OutOfOrder(CheckpointError):  # noqa: N818
    """A file that is written through a mount was written, or cut, elsewhere than at its end. It will never be there."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"not saved: {what}. Files are written from front to back: write it to another file system and copy it (numpy.savez "
            "and zipfile seek back; numpy.save does not). What the name stood for stays"
        )


class CutShort(OutOfOrder):
    """It was cut to fewer bytes than were written."""


class NotWhole(CheckpointError):  # noqa: N818
    """A file that was written through a mount and closed shows by its format that it is not whole."""

    def __init__(self, why: str, size_bytes: int, aside: str) -> None:
        super().__init__(
            f"not saved: it was closed after {size_bytes} bytes and is not whole: {why}. It is kept as {aside}. "
            "What the name stood for stays"
        )


class FailedBefore(CheckpointError):  # noqa: N818
    """A file that is written through a mount failed before, which was said then. Nothing of it is there, nor will be."""


class SegmentRefused(CheckpointError):  # noqa: N818
    """A rank's part in memory is damaged or contradicts itself. Nothing that it says is followed."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"checkpoint in memory refused: {reason}; start from an older step, or from storage")
        self.reason = reason


class MemoryUnavailable(CheckpointError):  # noqa: N818
    """The node's memory keeper has no room, does not answer, or has gone. Training goes on without it."""


class ObjectRefused(CheckpointError):  # noqa: N818 - a state of the world, named as such
    """Something in the checkpoint is not what it may be read as: an object that runs code, an unknown dtype.

    If you trust the checkpoint's author as much as your own program, load it with `trust_objects=True`.
    """


class PeerFailed(CheckpointError):  # noqa: N818
    """Another rank, which was to read for this one, could not. The cause is in that rank's error."""
