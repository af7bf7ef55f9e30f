"""From memory to storage: which generation is written when, and by which process."""
