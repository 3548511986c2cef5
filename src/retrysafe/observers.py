"""What retrysafe tells about its decisions: stable names, and an observer that logs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from retrysafe.ports import Observer, Occurrence

if TYPE_CHECKING:
    import logging

DEBUG, INFO, WARNING, ERROR = 10, 20, 30, 40
"""The levels of `logging`, which is imported only when something is logged."""

OCCURRENCES: dict[str, tuple[int, str]] = {
    "received": (DEBUG, "a guarded operation was asked for"),
    "passed": (DEBUG, "there was no key, and the boundary lets such calls pass unguarded"),
    "started": (DEBUG, "the key was claimed and the work begins (fields: token, attempts)"),
    "takeover": (
        WARNING,
        "the key was claimed from an attempt whose lease had lapsed (token, attempts)",
    ),
    "reclaimed": (
        INFO,
        "the key was used before; its window is over and it is new work (token, attempts)",
    ),
    "replayed": (INFO, "the stored result was given instead of running again"),
    "failure_replayed": (INFO, "the stored failure was given instead of running again (error_type)"),
    "conflict": (INFO, "another attempt is running; the caller was told so (retry_after)"),
    "waited": (DEBUG, "another attempt is running; the caller waits (pause)"),
    "frozen_snapshot": (
        WARNING,
        "the isolation level hides from a waiting duplicate what it waits for: rerun its transaction (isolation)",
    ),
    "store_warning": (WARNING, "the server's settings weaken a promise; told once per process (setting, text)"),
    "mismatch": (WARNING, "the same key came with another payload and was refused (differing)"),
    "expired_refused": (INFO, "the key's window is over and the boundary refuses its reuse"),
    "completed": (INFO, "the work ended and its result is stored"),
    "result_withheld": (ERROR, "the work ended, but its result could not be encoded"),
    "failed": (INFO, "the work failed for good and the failure is stored (error_type)"),
    "released": (INFO, "the work failed and the key is free for a retry (error_type)"),
    "rolled_back": (INFO, "the work failed and its transaction was rolled back (error_type)"),
    "unknown": (
        WARNING,
        "the work ended in doubt and the key waits for a probe or a person (error_type)",
    ),
    "doubted": (WARNING, "the caller was told that an earlier outcome is unknown"),
    "probed": (INFO, "the probe answered (outcome)"),
    "resolved": (WARNING, "a person settled an unknown outcome (outcome)"),
    "expired": (WARNING, "a person ended the window of a key, so that it may be used again (forgotten)"),
    "swept": (INFO, "a sweeper has removed what was forgotten (removed, archived, seconds)"),
    "sweep_failed": (WARNING, "a sweeper could not go on; it tries again (error)"),
    "restarted": (INFO, "the database wanted the whole transaction again (restarts)"),
    "renewal_failed": (WARNING, "a lease could not be renewed in time; it is tried again (error)"),
    "lease_lost": (ERROR, "this attempt holds its key no longer; nothing it writes will be stored"),
    "unrecorded": (ERROR, "the work ended but the store did not answer: the lease lapses (ending)"),
}
"""Every occurrence: its level in the log, and what it means with the fields it carries."""


def logger() -> logging.Logger:
    """The logger "retrysafe", silent unless the application sets logging up."""
    import logging

    found = logging.getLogger("retrysafe")
    if not found.handlers:
        found.addHandler(logging.NullHandler())
    return found


class LoggingObserver:
    """Logs every occurrence to the logger "retrysafe", the key redacted to eight digits of its hash."""

    def __init__(self, log: logging.Logger | None = None) -> None:
        self._log = log or logger()

    def __call__(self, occurrence: Occurrence, /) -> None:
        level = OCCURRENCES[occurrence.name][0]
        if self._log.isEnabledFor(level):
            known = dict(zip(occurrence._fields[1:5], occurrence[1:5], strict=True))
            told = {name: value for name, value in known.items() if value} | dict(occurrence.fields)
            fields = "".join(f" {name}={value}" for name, value in told.items())
            self._log.log(level, "%s%s", occurrence.name, fields, extra={"retrysafe": occurrence._asdict()})


def tell(observers: Sequence[Observer], describe: Callable[[], Occurrence]) -> None:
    """Tell every observer; what one raises is logged and stops nobody."""
    if not observers:
        return
    occurrence = describe()
    for observer in observers:
        try:
            observer(occurrence)
        except Exception:  # noqa: BLE001 - it is logged, and must stop nobody
            logger().exception("An observer failed on %r.", occurrence.name)


NO_FIELDS: Mapping[str, Any] = {}
