"""A folder for PYTHONPATH: only what an interpreter looks for at its start lies in it."""
