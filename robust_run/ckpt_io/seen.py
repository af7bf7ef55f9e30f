"""What one look at a folder of checkpoints shows, and which of them is the newest. Plain data and their order. Pure.

The order is one for all: the launcher's choice (`launcher.core.resume.choosing`), `robust ckpt latest` and `prune` go by it.
"""

from __future__ import annotations

import os.path
import re

import msgspec

Age = tuple[bool, int, float, bool, str]


class SeenCheckpoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One checkpoint, as one machine sees it."""

    name: str
    """Of its folder."""
    uuid: str = ""
    """Of its manifest; empty: the manifest cannot be read, as `fault` says."""
    step: int | None = None
    created_s: float = 0.0
    """Seconds since the epoch; where the manifest cannot be read, of the file."""
    written_by: str = ""
    """Which version of which job's code wrote it (see `newest.written_by`); empty: it does not say."""
    is_link: bool = False
    """The name is a symbolic link."""
    fault: str | None = None
    """Empty: its manifest is valid, and all its parts are there, as long as they should be. Else what is wrong. None: its parts
    were not looked at."""

    @property
    def age(self) -> Age:
        """Return what orders it among others: see `age`."""
        return age(self.step, self.created_s, self.name, is_link=self.is_link)


class FolderLook(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One look at a folder, the newest checkpoint first."""

    seen: tuple[SeenCheckpoint, ...] = ()
    left_out: int = 0
    """Older ones that are not among `seen`."""
    trouble: str = ""
    """Why nothing can be said of the folder; a folder that does not exist is an empty one."""
    may_pass: bool = True
    """Whether looking again may help in that trouble."""


class MemoryGeneration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Parts that one node holds whole of one attempt and step."""

    attempt: int
    step: int
    world_size: int
    ranks: tuple[int, ...]
    """Sorted."""
    created_s: float = 0.0
    """When the last of them was copied: seconds since the epoch."""
    copies: tuple[int, ...] = ()
    """Ranks of other nodes whose parts are held, too, whole; sorted. `ranks` may be empty where there are some."""
    largest_bytes: int = 0
    """What the largest of these parts takes of the node's memory; 0: it was not said."""


class MemoryHeld(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one node holds in memory, and how much more of it there is."""

    generations: tuple[MemoryGeneration, ...] = ()
    """The newest first."""
    room_bytes: int | None = None
    """So much more may be taken for parts; None: nothing is known that limits it."""


def age(step: int | None, created_s: float, name: str, *, is_link: bool) -> Age:
    """Return what orders checkpoints: newer is greater.

    By step; one that says its step comes after one that does not; of those without a step, by when they were made. Of what is
    there twice, the folder counts as newer than a link to it.
    """
    known = -1 if step is None else step
    return known >= 0, known, created_s, not is_link, name


def below(folder: str, name: str) -> str:
    """Return the path or URL of what a folder of checkpoints has under a name."""
    if "://" not in folder:
        return os.path.join(folder, name)
    from robust_run.store import paths  # and the parsing of URLs: for jobs that were given one

    return paths.child(folder, name)


def is_url(folder: str) -> bool:
    """Whether a folder of checkpoints is a URL, and no path of a machine."""
    return "://" in folder


# --- What names say: of which step it is, or that it is not finished. What is written under such a name is renamed when it is
# whole; until then it is no checkpoint. Pure.
#
# It imports next to nothing: the launcher asks.

UNFINISHED = ".unfinished"
"""What a writable mount puts behind the name of a file of which it cannot tell whether it is whole."""

#: `step-3.pt.tmp`, `step-3.tmp.1234`, `step-3.pt.part`, `step-3.orbax-checkpoint-tmp-99`, `tmp-checkpoint-500`, and what Python's
#: tempfile calls its files. No more than what is customary: a checkpoint that is taken for unfinished is not resumed from.
_TEMPORARY = re.compile(
    r"""  .+ \. (?: te?mp (?: [._-] \w{1,32} )? | part | partial | incomplete | unfinished )
        | .+ \. orbax-checkpoint-tmp (?: -\d+ )?
        | \.? tmp [._-] .+
        | tmp [0-9a-z_]{8}
    """,
    re.VERBOSE | re.DOTALL,
)


_STEP = re.compile(r"(?:^|[^A-Za-z])(?:step|iter|iteration|global_step)[-_]?(\d{1,18})$", re.IGNORECASE)


def step_said(name: str) -> int | None:
    """Return the training step that the name of a checkpoint ends with, as `step-4000` does; None where it says none."""
    match = _STEP.search(name)
    return int(match[1]) if match else None


def is_temporary(name: str) -> bool:
    """Whether a name says that what lies there is not finished."""
    return _TEMPORARY.fullmatch(name) is not None
