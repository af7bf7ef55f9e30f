"""Jobs of several roles on several nodes: what leader and nodes say to each other, and how long a node may be silent."""
