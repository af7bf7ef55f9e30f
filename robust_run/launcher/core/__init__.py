"""The controller's mind: what happens to a job, as a pure function from (state, event, now) to (state, actions).

No clock, process, socket, file or log in here. The controller carries the actions out and feeds back what happens; tests,
benches and the journal's replay feed the same events and must get the same actions.
"""

from robust_run.launcher.core.membership import awaits_resume, awaits_store, name_of
from robust_run.launcher.core.state import Eviction, JobState, Member, Policy
from robust_run.launcher.core.step import replay, step

__all__ = ["Eviction", "JobState", "Member", "Policy", "awaits_resume", "awaits_store", "name_of", "replay", "step"]
