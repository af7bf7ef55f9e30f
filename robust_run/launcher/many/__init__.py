"""An agent of a job of several nodes: joins, keeps its connection and its lease, and fences itself."""
