"""Which disks, mounts, processes and control groups of a node are those of the job."""
