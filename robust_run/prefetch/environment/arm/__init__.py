"""What runs in a worker; on its path this folder holds `sitecustomize` and nothing else."""
