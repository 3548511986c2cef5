"""The fixture's own description in one cell, and the half of its handler that no framework has a part in."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from retrysafe import Boundary, ConfigurationError, current, reject, wait
from retrysafe.conformance import apps
from retrysafe.conformance.apps import AppState, HandlerScript
from tests.faults.helpers import unique
from tests.http.contract.stores import Place

LEASE = 3.0
WINDOW = 86_400
LIMITS = {"request_memory": 65_536, "request": 200_000, "response": 50_000}
OPTIONS: dict[str, Any] = {
    "body_memory": 65_536,
    "body_limit": 200_000,
    "response_limit": 50_000,
    "key_policy": "strong",
}
METHODS = ("GET", "HEAD", "POST", "PATCH")
ALWAYS = frozenset({"gate", "stream", "raise", "principals", "elapse", "cors", "compression"})
_NO_STORE = "the store is the memory of the server itself: it can't be out of reach while the server runs"
SERIAL = "in SQLite one transaction excludes every other: duplicates wait"


@dataclass
class Fixture:
    """One cell: an integration on a place. What differs between integrations is what they are built with."""

    place: Place
    features: frozenset[str] = ALWAYS
    unsupported: Mapping[str, str] = field(default_factory=dict)
    openapi: str | None = None
    server: str = ""

    def __post_init__(self) -> None:
        self.name = unique()
        self.alias = ""
        self.state = AppState(self._capabilities(), self._controls(), self._effects)

    @property
    def waits(self) -> bool:
        """True if duplicates wait: those of a serial store can't be told anything before the first has ended."""
        return self.place.transactional and self.place.kind == "sqlite"

    def boundary(self, **terms: Any) -> Boundary:
        """The boundary of the cell."""
        place = self.place
        terms.setdefault("store", place.url)
        place.boundary = Boundary(
            self.name,
            effects="transactional" if place.transactional else "keyed",
            lease=f"{LEASE}s",
            window=f"{WINDOW}s",
            concurrency=wait(5) if self.waits else reject(),
            **terms,
        )
        return place.boundary

    def _capabilities(self) -> dict[str, Any]:
        place = self.place
        features, unsupported = set(self.features), dict(self.unsupported)
        if place.down is None:
            unsupported["store"] = _NO_STORE
        else:
            features.add("store")
        return {
            "name": "retrysafe",
            "server": self.server,
            "mode": "transactional" if place.transactional else "leased",
            "features": sorted(features),
            "limits": {**LIMITS, "window": WINDOW, "lease": LEASE},
            "choices": {
                "key_policy": "strong",
                **({"header": OPTIONS["header"]} if "header" in OPTIONS else {}),
                **({"concurrency": "wait"} if self.waits else {}),
            },
            "unsupported": unsupported,
            "openapi": self.openapi,
        }

    def _controls(self) -> dict[str, apps.Control]:
        place = self.place

        def store(up: str) -> None:
            assert place.up is not None
            assert place.down is not None
            (place.up if up == "1" else place.down)()

        return {"elapse": lambda seconds: place.elapse(float(seconds)), "store": store}

    @property
    def _effects(self) -> Any:
        return self.place.effects if self.place.transactional else None

    # ------------------------------------------------------------ the handler

    def effect(self, id: str) -> None:
        """Write an effect into the transaction of the claim, if it has one."""
        if self.place.transactional and (tx := _transaction()) is not None:
            self._write(tx, id)

    async def aeffect(self, id: str) -> None:
        """The same in a task."""
        if self.place.transactional and (tx := _transaction()) is not None:
            done = self._write(tx, id)
            if hasattr(done, "__await__"):
                await done

    def _write(self, tx: Any, id: str) -> Any:
        insert = self.place.insert
        return tx.execute(insert.replace("%s", "?") if isinstance(tx, sqlite3.Connection) else insert, (id,))

    @staticmethod
    def script(header: str | None) -> HandlerScript:
        """Parse the runner's instructions for the handler."""
        return HandlerScript.read(header or "")


def _transaction() -> Any:
    """The transaction of the request's claim; None for a request that carries no key."""
    try:
        return current().tx
    except ConfigurationError:
        return None


def principal(authorization: str | None) -> str | None:
    """Return the principal of a request: "Bearer alice.2" is alice's."""
    return (authorization or "").removeprefix("Bearer ").partition(".")[0] or None
