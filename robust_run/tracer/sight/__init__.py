"""How an agent looks at the ranks of its node: /proc, stacks, rings and torch's flight recorder, all within a second.

Loaded only when a look is asked for. Nothing here raises for what a rank does or is: it yields less evidence instead.
"""
