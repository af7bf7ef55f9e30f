"""What a node's kernel, devices, links, disks and clocks say about it, watched all the time at next to no cost. Never acts."""
