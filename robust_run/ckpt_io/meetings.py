"""What nodes of a job that is over have told each other in a root of checkpoints, where nobody has cleared it away.

At the end of a job each node says in a hidden folder of the root which steps it has (`checkpoint.flush.choosing`); the node of
rank 0 removes it. If that one dies just then, it stays: some hundred bytes that nobody reads again.

**How it is known that nobody uses one:** by its age, that of the newest file in it. A meeting takes 10 minutes at most, and who
stood still for longer is waited for by nobody. **What looks the same:** the meeting of a job that ends just now, also of another
job with the same root; folders of others, so what has anything in it that is not ours is left alone, and so are links.
**Clocks** of nodes and of storage differ, so a job goes by what storage itself noted last in that root, which is no later than
its clock: an age comes out too small. Files may say a time that is yet to come; so not later than this node's clock, either.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress

from robust_run.ckpt_io import address
from robust_run.ckpt_io.errors import TargetLost
from robust_run.ckpt_io.finding import StoreOpener
from robust_run.ckpt_io.removing import OURS, remove_if_empty
from robust_run.ckpt_io.rules.retention import Meeting, plan_meetings
from robust_run.store import paths
from robust_run.store.errors import NotFound, StoreError
from robust_run.store.types import Entry, Store

KINDS = ("offer", "said", "done", "sign", "failed")
"""What a note's name begins with."""
_FOLDER = re.compile(r"\.robust-run-[0-9a-f]{32}")
_NOTE = re.compile(rf"(?:{'|'.join(KINDS)})-[0-9]{{5,}}")


def folder_of(uuid: str) -> str:
    """Return the name of a meeting's folder; hidden among the checkpoints of a root."""
    return f".robust-run-{uuid}"


def find_meetings(store: Store, entries: Sequence[Entry]) -> list[Meeting]:
    """Return what is left of meetings, of what a root has in it; one that has something else in it is none. Raises StoreError."""
    found = []
    for each in entries:
        if each.is_folder and not each.is_link and _FOLDER.fullmatch(each.name):
            with suppress(NotFound):  # it is just being removed
                notes = store.list(each.name)
                if all(map(_is_note, notes)):
                    found.append(Meeting(name=each.name, modified_s=_newest_s([each, *notes])))
    return found


def remove_meeting(root: str, name: str, stores: StoreOpener) -> None:
    """Remove one: what is a note of it, and the folder if nothing else is in it. Raises StoreError."""
    with closing(stores(root)) as store, suppress(NotFound):
        for note in filter(_is_note, store.list(name)):
            store.remove(f"{name}/{note.name}")
    remove_if_empty(address.join(root, name), stores)


def remove_old_meetings(
    root: str, grace_s: float, stores: StoreOpener, now_s: Callable[[], float] = time.time
) -> list[str]:
    """Remove those that have been over for so long, by this clock and that of storage; return their names. Raises StoreError."""
    with closing(stores(root)) as store:
        try:
            entries = store.list()
        except NotFound:
            return []
        found = find_meetings(store, entries)
    noted_s = _newest_s(entries)
    old = plan_meetings(found, grace_s=grace_s, now_s=min(noted_s, now_s())) if noted_s is not None else []
    for each in old:
        remove_meeting(root, each.name, stores)
    return [each.name for each in old]


def _is_note(entry: Entry) -> bool:
    is_ours = _NOTE.fullmatch(entry.name) or OURS.fullmatch(entry.name)
    return bool(is_ours) and not entry.is_folder and not entry.is_link


def _newest_s(entries: Sequence[Entry]) -> float | None:
    return max((each.modified_s for each in entries if each.modified_s is not None), default=None)


def meetings_of(root: str, stores: StoreOpener) -> list[Meeting]:
    """Return what is left of meetings. Raises TargetLost."""
    place = address.normal(root)
    try:
        with closing(stores(place)) as store:
            return find_meetings(store, store.list())
    except NotFound:
        return []
    except StoreError as error:
        raise TargetLost(paths.shown(place), error.what) from error


def remove_meeting_of(root: str, name: str, stores: StoreOpener) -> None:
    """Remove what is left of one. Raises TargetLost."""
    place = address.normal(root)
    try:
        remove_meeting(place, name, stores)
    except StoreError as error:
        raise TargetLost(paths.shown(address.join(place, name)), error.what) from error
