"""What people are shown of a job of several roles, beside its state: its history, its page, a live screen, and why it waits."""
