"""The page of the doctor: what is set up so that a promise is broken or weaker than it looks."""

from __future__ import annotations

from starlette.responses import Response

from retrysafe.backends.urls import without_password
from retrysafe.console.visit import Area, ConsolePage, Visit
from retrysafe.doctor.diagnosing import diagnose
from retrysafe.doctor.events import tell

AREA = Area("Doctor", "/doctor")
WITHIN = 3.0
"""Seconds that the store, and each broker, has to answer all checks."""


def show(visit: Visit) -> Response:
    console = visit.console
    stores = [console.store, *(boundary.entrypoint.backend for boundary in console.boundaries)]
    found = diagnose(stores=stores, brokers=console.brokers, topics=console.topics, within=WITHIN)
    tell(found, console.observers)
    asked = [
        *(("broker", without_password(url)) for url in console.brokers),
        *(("topic", one) for one in console.topics),
    ]
    return visit.page(
        "doctor.html", AREA.title, AREA.title, found=found, command=console.commands.line("doctor", asked)
    )


PAGES = (ConsolePage("/doctor", show),)
