"""Generated fleets: what detectors are measured on. The settings are published in docs/outliers.md; none is read elsewhere."""
