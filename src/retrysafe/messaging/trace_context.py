"""The trace that a message is written in, kept with it: it leaves later, in another process."""

from __future__ import annotations

import sys


def trace_headers() -> dict[str, str]:
    """The headers that carry the current trace (W3C Trace Context by default); none where OpenTelemetry is not used."""
    if "opentelemetry" not in sys.modules:
        return {}
    from opentelemetry import propagate

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier
