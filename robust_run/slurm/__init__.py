"""Jobs under Slurm: what a step says of itself, warnings, requeueing. Not imported where no SLURM_* variable is."""
