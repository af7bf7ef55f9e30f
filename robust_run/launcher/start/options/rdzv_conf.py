"""Settings of --rdzv-conf that count here: their names, their values and their limits."""

from __future__ import annotations

from robust_run.errors import UserError
from robust_run.launcher.model.job import ManyNodes
from robust_run.launcher.start.options.rendezvous import check_seconds

DEFAULTS = ManyNodes(host="", port=0)
_MISSES = 3
_YES = ("1", "true", "t", "yes", "y")
_NO = ("0", "false", "f", "no", "n")
_CONF_USED = ("join_timeout", "last_call_timeout", "is_host", "keep_alive_interval", "keep_alive_max_attempt")
_CONF_IGNORED = ("close_timeout", "heartbeat", "heartbeat_timeout", "read_timeout", "store_type", "timeout", "rank")


def check_known(settings: dict[str, str]) -> None:
    """Refuse what is nearly the name of a setting; what only torchrun's plug-ins know is left alone."""
    for key in settings:
        if key in _CONF_USED or key in _CONF_IGNORED:
            continue
        from difflib import get_close_matches

        if near := get_close_matches(key, _CONF_USED, n=1, cutoff=0.8):
            raise UserError(f"--rdzv-conf: there is no setting {key!r}; did you mean {near[0]}?")


def keep_alive(settings: dict[str, str]) -> tuple[float, float]:
    """Return the time between heartbeats and the lease: so many of them may be missed."""
    heartbeat_s = seconds(settings, "keep_alive_interval", DEFAULTS.heartbeat_s)
    misses = seconds(settings, "keep_alive_max_attempt", _MISSES)
    if heartbeat_s < 0.05:
        raise UserError(f"--rdzv-conf keep_alive_interval={heartbeat_s:g}: must be 0.05 seconds or more")
    if misses < 2:
        raise UserError(
            f"--rdzv-conf keep_alive_max_attempt={misses:g}: must be 2 or more, or one late answer ends the workers"
        )
    return heartbeat_s, heartbeat_s * misses


def seconds(settings: dict[str, str], key: str, default: float) -> float:
    """Return a setting that is a time. Raises UserError."""
    if key not in settings:
        return default
    try:
        number = float(settings[key])
    except ValueError:
        raise UserError(f"--rdzv-conf {key}={settings[key]!r} is not a number") from None
    check_seconds(f"--rdzv-conf {key}:", number)
    return number


def yes_or_no(settings: dict[str, str], key: str) -> bool | None:
    """Return a setting that is one or the other, None where it is not there. Raises UserError."""
    value = settings.get(key)
    if value is not None and value.lower() not in (*_YES, *_NO):
        raise UserError(f"--rdzv-conf {key}={value!r} is neither 1 nor 0")
    return None if value is None else value.lower() in _YES
