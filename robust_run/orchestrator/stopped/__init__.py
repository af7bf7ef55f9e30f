"""Workers that are stopped while others wait: `watch` finds out, `deciding` says whether it is certain, `asking` acts."""
