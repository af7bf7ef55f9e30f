"""Whether the cache's disk has room, and what is said where it has none. Pure: numbers and time come in."""

from __future__ import annotations

#: So much more than the reserve must be free before blocks are kept again: else it would go to and fro.
_MARGIN_BYTES = 64 << 20
#: A disk that refused a block is tried again after this.
_TRY_AGAIN_S = 30.0
_SAY_EVERY_S = 60.0


def shortage(folder: str, free_bytes: int, reserve_bytes: int, missing_bytes: int) -> str:
    """Return what it means that not all of an image fits into the cache."""
    room_bytes = max(0, free_bytes - reserve_bytes)
    numbers = (
        f"{free_bytes >> 20} MiB are free there, {reserve_bytes >> 20} MiB of the disk are left to others, and"
        f" {missing_bytes >> 20} MiB of the image are not there yet"
    )
    if room_bytes < 1 << 20:
        return f"the cache {folder} is full: {numbers}: {_not_kept()}"
    kept = f"{room_bytes >> 20} MiB of them are kept, and the rest is fetched each time it is read"
    return f"the cache {folder} has no room for all of the image: {numbers}: {kept}; {_ADVICE}"


_ADVICE = "free some space, or name another --image-cache folder"


def _not_kept() -> str:
    return f"blocks are not kept, so this start and later ones are slower; {_ADVICE}"


class Room:
    """Whether blocks are kept. Not safe for threads: its owner holds a lock."""

    def __init__(self, folder: str, reserve_bytes: int) -> None:
        """`folder`: of the cache; `reserve_bytes`: what is left to others."""
        self._folder, self._reserve_bytes = folder, reserve_bytes
        self._refused_until_s = self._quiet_until_s = float("-inf")
        self.keeping = True

    def looked(self, free_bytes: int, missing_bytes: int, now_s: float) -> str:
        """Note how much is free. Return what is to be said of it; "": nothing is."""
        if free_bytes < self._reserve_bytes:
            return self._stop(
                shortage(self._folder, free_bytes, self._reserve_bytes, missing_bytes), missing_bytes, now_s
            )
        if free_bytes > self._reserve_bytes + _MARGIN_BYTES and now_s >= self._refused_until_s:
            self.keeping = True
        return ""

    def refused(self, why: str, missing_bytes: int, now_s: float) -> str:
        """Note that the disk did not take a block: a quota, a disk that fails. Return what is to be said; "": nothing is."""
        self._refused_until_s = now_s + _TRY_AGAIN_S
        return self._stop(f"the cache {self._folder} takes no block ({why}): {_not_kept()}", missing_bytes, now_s)

    def _stop(self, sentence: str, missing_bytes: int, now_s: float) -> str:
        was_keeping, self.keeping = self.keeping, False
        if not was_keeping or not missing_bytes or now_s < self._quiet_until_s:
            return ""
        self._quiet_until_s = now_s + _SAY_EVERY_S
        return sentence
