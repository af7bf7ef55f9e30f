"""How commands reach a job: a live controller, or the run directory of a dead one."""
