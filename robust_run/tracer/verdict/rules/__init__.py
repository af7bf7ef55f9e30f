"""The rules of verdicts, a module each: what it looks for in a scene, and the verdict if it is there. Pure.

Which rule is asked when is in `decide` (while an attempt runs) and `after` (when it has died by itself). `certainty`, `held` and
`sequences` are what several rules ask.
"""
