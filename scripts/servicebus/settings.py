"""The settings of an entity, in the words and the defaults of the service."""

from __future__ import annotations

import re
from collections.abc import Mapping

_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:([\d.]+)S)?)?")
_UNITS = (86400.0, 3600.0, 60.0, 1.0)


def seconds(text: str) -> float:
    """A duration of ISO 8601 in seconds."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a duration")
    return sum(float(number) * unit for number, unit in zip(match.groups(), _UNITS, strict=True) if number)


class Settings:
    """The elements of a description, as texts by their names."""

    def __init__(self, elements: Mapping[str, str]) -> None:
        self.elements = dict(elements)
        self.sessions = self._flag("RequiresSession")
        self.recognises = self._flag("RequiresDuplicateDetection")
        self.partitions = self._flag("EnablePartitioning")
        self.dead_when_expired = self._flag("DeadLetteringOnMessageExpiration")
        self.lock = seconds(elements.get("LockDuration", "PT1M"))
        self.kept = seconds(elements.get("DefaultMessageTimeToLive", "P10675199D"))
        self.window = seconds(elements.get("DuplicateDetectionHistoryTimeWindow", "PT10M"))
        self.deliveries = int(elements.get("MaxDeliveryCount", "10"))
        self.size = int(elements.get("MaxSizeInMegabytes", "1024")) << 20
        self.status = elements.get("Status", "Active")

    def _flag(self, name: str) -> bool:
        return self.elements.get(name, "false").lower() == "true"
