"""What follows from what the sensors, the workers' output and the training metrics say: a table, and pure functions over it."""
