"""`python -m robust_run.prefetch.server`: started by `handle.start`, never by people."""

import os
import sys

from robust_run.prefetch.server.process import main

_code = main()
sys.stderr.flush()
os._exit(_code)  # threads may be within a read that cannot be ended; the kernel takes what is left
