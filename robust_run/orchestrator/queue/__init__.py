"""Work queues of a job of several roles: leased, bounded, at least once, exact for a consumer that goes back to a checkpoint."""
