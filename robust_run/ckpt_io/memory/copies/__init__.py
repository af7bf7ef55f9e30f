"""Between the keepers of two nodes: copies of parts, sent, held for others, and brought back."""
