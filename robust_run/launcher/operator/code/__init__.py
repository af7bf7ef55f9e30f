"""`robust update` and `robust code`."""
