"""What gloo says where data of another size comes than a call expects: ranks called different collectives. Pure.

gloo writes the size of each message before it, and compares that with the room in the call that waits for it. Where ranks made
different calls it fails whoever got more than there is room for: the rank whose call is right as often as the one whose is not.
So this end is the program's mistake, on whatever machine, and says nothing against the rank or the node that it ends.

What looks the same and is a real crash: an abort by another check of gloo's (no such message, a lost connection), which has other
words; broken memory, which ends in `double free`, `corrupted ...` or a signal, never in these words; and a size that nobody can
have sent (`_MOST_DIGITS`): what came is no message, so memory, a network or a stranger has written it. Few wrong bits in a size
cannot be told from a mistake; rings whose calls agree, and the same node each time, would show it.
"""

from __future__ import annotations

import re

#: The rule of a verdict that rests on these words alone.
RULE = "other_size"
#: 10 TB in bytes have more digits: no collective of one rank is as large.
_MOST_DIGITS = 13
_SAID = re.compile(rf"op\.preamble\.length <= op\.nbytes(?:\. (\d{{1,{_MOST_DIGITS}}}) vs\.? (\d+))?(?!\. \d)")


def is_said_in(text: str) -> bool:
    """Whether gloo says that data of another size came, and it is a size that a rank may have sent."""
    return _SAID.search(text) is not None


def sentence(who: str, count: int, text: str) -> str:
    """Say what is known where no record tells which rank made the wrong call; `who`: the ranks that gloo failed."""
    found = _SAID.search(text)
    sizes = f" ({found.group(1)} instead of {found.group(2)} bytes)" if found is not None and found.group(2) else ""
    whose, them = ("its call expects", "it") if count == 1 else ("their calls expect", "them")
    return (
        f"ranks called different collectives: on {who} gloo received data of another size than {whose}{sizes} and ended "
        f"{them}; no record tells which rank is wrong"
    )
