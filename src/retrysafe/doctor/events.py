"""Tells observers what the doctor has found, so that one metric and one alert can watch it."""

from __future__ import annotations

from collections.abc import Iterable

from retrysafe.claims.observers import Observers
from retrysafe.doctor.diagnosis import Diagnosis
from retrysafe.protocol.checks import Severity
from retrysafe.protocol.events import Observer

_NAME = "retrysafe.doctor"


def tell(found: Iterable[Diagnosis], observers: Iterable[Observer]) -> None:
    """Emit ``doctor_examined`` for every severity, with the findings that no waiver covers.

    A severity without a finding is told too: a gauge would otherwise keep what it was told before.
    """
    open_ids: dict[Severity, list[str]] = {severity: [] for severity in Severity}
    for one in found:
        if one.waived is None:
            open_ids[one.severity].append(one.id)
    told = Observers(observers)
    for severity, ids in open_ids.items():
        fields = {"severity": severity.value, "findings": len(ids), "checks": tuple(sorted(set(ids)))}
        told.emit("doctor_examined", _NAME, "", b"", "", fields)
