"""Stop-time diagnostics: what is run on nodes while no training is.

Each check is a program of its own that measures; what its figures mean is judged elsewhere, purely. **Invariants:** the
modules that decide (`plan`, `judge`, `bits`, `groups`, `history`, `replay`) know no clock, process or file; only check
programs import torch; no check is without a time limit, and nothing of it is left when it is over.
"""
