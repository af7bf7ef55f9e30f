"""What people read: incidents, verdicts and summaries. Never decides anything."""
