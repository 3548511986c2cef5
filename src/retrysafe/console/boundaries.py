"""The page of boundaries: those of the application in words, and those that only the store knows."""

from __future__ import annotations

from collections import defaultdict

from starlette.responses import Response

from retrysafe.admin.describe import describe
from retrysafe.console.now import shares
from retrysafe.console.visit import Area, ConsolePage, Visit

AREA = Area("Boundaries", "/boundaries")


def show(visit: Visit) -> Response:
    with visit.operator() as operator:
        sample = operator.sample()
    operations: defaultdict[str, set[str]] = defaultdict(set)
    for record in sample.records:
        operations[record.boundary].add(record.operation)
    described = [describe(boundary) for boundary in visit.console.boundaries]
    known = {one["boundary"] for one in described}
    return visit.page(
        "boundaries.html",
        AREA.title,
        AREA.title,
        described=described,
        others={name: sorted(found) for name, found in sorted(operations.items()) if name not in known},
        shares=shares(sample),
        sample=sample,
    )


PAGES = (ConsolePage("/boundaries", show),)
