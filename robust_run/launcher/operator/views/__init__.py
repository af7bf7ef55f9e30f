"""What is shown of a job, and what follows from an operator's wish. Pure."""
