"""What is kept of a run (`robust_run.fleet.words`), from the lines of its journal and its incidents. Pure."""
