"""What the jobs of a folder have shown: runs, their faults, rates with intervals, what starts cost. Data; acts on nothing."""
