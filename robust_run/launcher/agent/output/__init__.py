"""Output of workers: lines, files, the console."""
