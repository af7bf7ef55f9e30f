"""The wake chain of a process that waits: what each of its threads is in, until when, and who can wake it. Pure.

`sight.wake` asks the kernel; `waits` and `chain` judge what it said, from the recorded reading alone.
"""
