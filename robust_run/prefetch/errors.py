"""What can be wrong with a lazy image, as a tree by what the reader can do about it.

=====================  =====================================================  ==========================================
class                  what it means                                          what to do
=====================  =====================================================  ==========================================
`BlockMapRefused`      the sidecar of an image says what cannot be            make it again: `robust image build`
`HotListRefused`       a hot list is damaged or of another image              nothing: the start is recorded anew
`CacheRefused`         the cache's folder is not ours, or cannot be written   name another folder
`ServerFailed`         the block server could not start, or died for good     see the cause in the message
`ControlFailed`        a block server does not answer                         see whether it runs
=====================  =====================================================  ==========================================

Where the kernel does not let us mount, it is a `MountRefused` of `mounts`.
"""

from __future__ import annotations

from robust_run.errors import PlatformError


class ImageError(PlatformError):
    """Base of what can be wrong with a lazy image. Takes one message, so it may be pickled."""


class BlockMapRefused(ImageError):  # noqa: N818 - a state of the world, named as such
    """A block map is damaged, of another version, or contradicts itself. Nothing that it says is followed."""


class HotListRefused(ImageError):  # noqa: N818
    """A hot list cannot be used. The image works without it, only slower."""


class CacheRefused(ImageError):  # noqa: N818
    """The folder for blocks cannot be used."""


class ServerFailed(ImageError):  # noqa: N818
    """The block server did not start, or died so often that it was given up."""


class ControlFailed(ImageError):  # noqa: N818
    """A block server could not be asked, or refused what it was asked."""


class ImageRefused(ImageError):  # noqa: N818 - a state of the world, named as such
    """A file is no image we know, is damaged, or asks for what no sound image asks for. Nothing that it says is followed."""


class BuildFailed(ImageError):  # noqa: N818
    """An image could not be made: a tool is missing or failed, or the disk is full. Nothing is left behind."""


class InsideFailed(ImageError):  # noqa: N818 - a state of the world, named as such
    """The image cannot be entered; the message says which part of it failed. Nothing is left mounted."""
