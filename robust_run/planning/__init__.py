"""`robust plan`: months of a job in a minute. The real core decides; nodes, faults and people are simulated. See docs/plan.md."""
