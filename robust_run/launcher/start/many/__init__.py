"""One node of several: meets the others, joins, holds its lease, hosts the controller."""
