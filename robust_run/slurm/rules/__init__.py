"""What Slurm says and is told, as text and data. Pure."""
