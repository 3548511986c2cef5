"""The checks at the start of a process, for teams that ask for them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from retrysafe.doctor.diagnosing import WITHIN, diagnose
from retrysafe.doctor.diagnosis import Diagnosis
from retrysafe.doctor.events import tell
from retrysafe.doctor.waivers import Waiver
from retrysafe.errors import ConfigurationError
from retrysafe.protocol.checks import Severity
from retrysafe.protocol.events import Observer
from retrysafe.protocol.records import Duration

_LOG = logging.getLogger("retrysafe.doctor")
_LEVELS = {Severity.ERROR: logging.ERROR, Severity.WARNING: logging.WARNING, Severity.NOTE: logging.INFO}


def check_at_start(
    app: Any = None,
    *,
    stores: Iterable[Any] = (),
    brokers: Iterable[str] = (),
    topics: Iterable[str] = (),
    consumed_by: Mapping[str, Iterable[str]] = {},
    refuse: bool = False,
    waivers: Iterable[Waiver] = (),
    within: Duration = WITHIN,
    observers: Iterable[Observer] = (),
) -> list[Diagnosis]:
    """Run the doctor once, when the process starts, and log each finding to "retrysafe.doctor".

    Arguments:
        app: the application; its boundaries and their stores are examined.
        stores: further stores.
        brokers: their URLs.
        topics: the queues, topics or streams that are looked at there; the windows of inboxes are compared with them.
        consumed_by: the names of the boundaries whose inboxes consume a topic; others are not compared with it.
        refuse: raise `ConfigurationError` when a finding is an error that no waiver covers.
        waivers: findings that are accepted.
        within: how long each store and broker may take.
        observers: are told ``doctor_examined`` for each severity, with the number of findings that no waiver covers.
    """
    found = diagnose(
        stores=stores,
        brokers=brokers,
        topics=topics,
        consumed_by=consumed_by,
        app=object() if app is None else app,
        waivers=waivers,
        within=within,
    )
    for one in found:
        level = logging.INFO if one.waived else _LEVELS[one.severity]
        _LOG.log(level, "%s: %s: %s Fix: %s", one.id, one.subject, one.evidence, one.fix)
    tell(found, observers)
    errors = [one for one in found if one.severity is Severity.ERROR and one.waived is None]
    if refuse and errors:
        raise ConfigurationError("; ".join(f"{one.id}: {one.subject}: {one.evidence} Fix: {one.fix}" for one in errors))
    return found
