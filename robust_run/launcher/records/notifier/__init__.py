"""Delivers notifications to webhooks and commands, beside the job."""
