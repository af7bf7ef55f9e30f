"""Running the set-up commands and finding out exactly what they changed.

**Invariant:** a capture is whole or it is refused; what was changed outside the captured folders is named, never lost in silence.
"""
