"""Dependencies installed once, mounted everywhere: set-up commands run on one node; what they changed is kept and restored.

**Invariant:** a snapshot is there once its manifest is, which is written last; nothing starts on half an environment. What
does not match its digest, its signature or this platform is refused with the reason.
"""
