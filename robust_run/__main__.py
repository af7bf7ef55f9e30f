"""`python -m robust_run` is `robust-run`."""

from robust_run.cli import main

main()
