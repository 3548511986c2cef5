"""The page of the doctor: what is set up so that a promise is broken or weaker than it looks."""

from __future__ import annotations

from starlette.responses import Response

from retrysafe.console.visit import Area, Page, Visit
from retrysafe.doctor.diagnosing import diagnose

AREA = Area("Doctor", "/doctor")
WITHIN = 3.0
"""Seconds that the store has to answer all checks."""


def show(visit: Visit) -> Response:
    """The page."""
    console = visit.console
    stores = [console.store, *(boundary.entrypoint.backend for boundary in console.boundaries)]
    return visit.page("doctor.html", AREA.title, AREA.title, found=diagnose(stores=stores, within=WITHIN))


PAGES = (Page("/doctor", show),)
