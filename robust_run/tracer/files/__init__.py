"""Files that a worker writes about itself: made by its launcher (`arming`), their formats, and readers, which trust nothing."""
