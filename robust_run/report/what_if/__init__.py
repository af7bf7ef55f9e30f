"""What-if: how long a step would take if one rank, stage or kind of work were as fast as its peers."""
