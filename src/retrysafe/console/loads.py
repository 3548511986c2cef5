"""The page of loads: the last load of each part of the tables in this store."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.responses import Response

from retrysafe.console.visit import Area, ConsolePage, Visit
from retrysafe.loads.sql import marks_of
from retrysafe.messaging.operators import Operating

AREA = Area("Loads", "/loads")
ROWS = 50
"""Parts on the page."""


def show_list(visit: Visit) -> Response:
    asked = {name: visit.ask(name) for name in ("table", "run")}
    named = {column: asked[name] for column, name in (("target", "table"), ("run", "run")) if asked[name]}
    with Operating(visit.console.store, observers=()) as operating:
        found = operating.look(lambda backend: marks_of(backend, ROWS + 1, **named))
    command = visit.commands.line("batch runs", [("table", asked["table"])] if asked["table"] else ())
    return visit.page(
        "loads.html",
        AREA.title,
        AREA.title,
        parts=found[:ROWS],
        more=len(found) > ROWS,
        fields=asked,
        command=command,
        show=visit.commands.line("batch show", (), asked["run"]),
    )


PAGES: Iterable[ConsolePage] = (ConsolePage(AREA.path, show_list),)
