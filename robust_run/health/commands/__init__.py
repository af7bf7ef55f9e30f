"""`robust check` and `robust outliers`: options, files and what is printed."""
