"""Names that say: not finished. What is written under one is renamed when it is whole; until then it is no checkpoint. Pure.

It imports next to nothing: the launcher asks.
"""

from __future__ import annotations

import re

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


def is_temporary(name: str) -> bool:
    """Whether a name says that what lies there is not finished."""
    return _TEMPORARY.fullmatch(name) is not None
