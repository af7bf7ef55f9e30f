"""Jobs of several roles: which worlds there are, what each waits for, what follows when one ends; and their work queues.

Each role's worlds are jobs of their own, with the launcher's own healing. What decides between them is pure: `core`,
`queue.core`.
"""
