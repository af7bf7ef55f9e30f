"""What an agent does for checkpoints in memory: its keeper, the writing at the end, the folder whose files are in memory."""
