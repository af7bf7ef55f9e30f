"""`robust top`: a job on a terminal, live."""
