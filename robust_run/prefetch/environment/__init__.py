"""`--prefetch-env`: no image at all, but a Python environment on a slow shared file system. What starts read of it is read ahead.

    arm/      what runs in the worker then: an audit hook; it imports nothing of this package
    lists     what was noted, merged over launches by the rules of hot lists, and where that lies
    starting  how a worker is made to note which files it opens; what a launch does: warm what is known, in the order of first
              use; record; say what it brought

**Invariant:** the program runs as it would without us, also if something goes wrong here.
"""
