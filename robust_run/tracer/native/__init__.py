"""The recorder's fast half, in C: how it is built and where it is kept. The half in Python (`tracer/arm`) does without it."""
