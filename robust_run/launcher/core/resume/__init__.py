"""Which checkpoint an attempt resumes from. Pure."""
