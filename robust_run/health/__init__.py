"""What is wrong with a node or a worker, read from what they show. Never acts; the launcher does."""
