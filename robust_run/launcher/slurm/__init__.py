"""Jobs of the Slurm workload manager: what a step knows of itself, how a job is submitted, what a site must be like."""
