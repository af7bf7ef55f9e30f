"""Everything workers print: from their pipes and terminals to the console, the log files and the evidence."""
