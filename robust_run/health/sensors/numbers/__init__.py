"""What sensors have read, as numbers by which nodes are compared."""
