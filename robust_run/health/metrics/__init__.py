"""What a script says about its training: loss, gradient norm, speed. How it is said, read, and judged."""
