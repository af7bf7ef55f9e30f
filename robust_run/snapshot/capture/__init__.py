"""Running the set-up commands and finding out exactly what they changed.

**Invariant:** a capture is whole or it is refused; what was changed where nobody captures is named, never lost in silence.
"""
