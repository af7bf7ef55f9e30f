"""Which machine of a fleet is the odd one, seen from host metrics alone. Needs numpy, imported on first use."""
