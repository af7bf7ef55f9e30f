"""What is armed inside a worker, and its readers outside. It must never be why training fails."""
