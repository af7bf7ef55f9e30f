"""The page of one incident."""
