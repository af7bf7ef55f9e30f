"""The words of the launcher: jobs, events, actions, orders, protocols, lease times. No behaviour, and nothing of the machine."""
