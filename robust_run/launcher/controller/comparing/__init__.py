"""What a controller compares while a job runs: ranks, nodes, groups and their values, with each other and with their own past."""
