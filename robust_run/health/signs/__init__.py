"""What readings of a machine mean: lines of the kernel's log, Xids, what lasts, what a script reports. Pure."""
