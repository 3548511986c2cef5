"""Django projects of one test: an alias, a boundary, views, and a client that retries."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retrysafe import Boundary
from retrysafe.backends.registry import connect
from tests.conftest import require
from tests.django.aliases import add_alias, remove_alias, set_up
from tests.faults.helpers import unique
from tests.http.observing import Recorder
from tests.versions import Alternative

set_up()

from django.db import connections  # noqa: E402
from django.http import HttpRequest, HttpResponse, JsonResponse  # noqa: E402
from django.test import Client, override_settings  # noqa: E402
from django.urls import path  # noqa: E402

PLACES: dict[str, tuple[str, bool]] = {
    **{Alternative(name, "leased"): (name, False) for name in ("sqlite", "postgresql", "mysql")},
    **{
        Alternative(f"{name}-transactional", "transactional"): (name, True)
        for name in ("sqlite", "postgresql", "mysql")
    },
    **{Alternative(name, "leased"): ("sqlite", False) for name in ("redis", "memory")},
}
SQL = [name for name, (_, transactional) in PLACES.items() if transactional]
MIDDLEWARE = "retrysafe.http.django.IdempotencyMiddleware"


@dataclass
class User:
    pk: int
    is_authenticated: bool = True


class Authentication:
    """Authenticates the name in the header."""

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> Any:
        name = request.headers.get("X-User")
        known = name is not None and name.isdigit()
        request.user = User(int(name) if known else 0, known)  # type: ignore[attr-defined,arg-type]
        return self.get_response(request)


class Leading:
    """Leads requests to other views."""

    urls: Any

    @classmethod
    def to(cls, view: Any) -> None:
        """To this one."""
        cls.urls = type("Urls", (), {"urlpatterns": [path("orders", view)]})

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> Any:
        request.urlconf = self.urls  # type: ignore[attr-defined]
        return self.get_response(request)


LEADING = "tests.http.django_site.Leading"
AUTHENTICATION = "tests.http.django_site.Authentication"


@dataclass
class Site:
    """One alias for the work, and boundaries that keep their records on it or elsewhere."""

    alias: str
    store: str
    transactional: bool
    seen: Recorder = field(default_factory=Recorder)
    stack: ExitStack = field(default_factory=ExitStack)
    runs: int = 0

    def boundary(self, **terms: Any) -> Boundary:
        terms.setdefault("effects", "transactional" if self.transactional else "keyed")
        terms.setdefault("store", self.store)
        made = Boundary(unique(), observers=[self.seen], **terms)
        self.stack.callback(made.close)
        return made

    def settings(self, **settings: Any) -> None:
        self.stack.enter_context(override_settings(**settings))

    def serve(self, view: Any = None, *more: Any, **settings: Any) -> Client:
        """A client of the views, the first at /orders."""
        settings.setdefault("MIDDLEWARE", [AUTHENTICATION])
        urls = type("Urls", (), {"urlpatterns": [path("orders", view or self.create), *more]})
        self.settings(ROOT_URLCONF=urls, **settings)
        return Client(raise_request_exception=False, enforce_csrf_checks=True)

    def guarded(self, door: str, view: Any = None, boundary: Boundary | None = None, **options: Any) -> Client:
        """A client of one view behind the decorator or the middleware; ``settings`` are the project's."""
        from retrysafe.http.django import idempotent

        boundary, settings = boundary or self.boundary(), options.pop("settings", {})
        if door == "decorator":
            return self.serve(
                idempotent(boundary, **{"principal": "shared", **options})(view or self.create), **settings
            )
        around = settings.pop("MIDDLEWARE", [AUTHENTICATION])
        named = {name.upper(): value for name, value in options.items()}
        guard = {"BOUNDARY": boundary, "PRINCIPAL": "shared", "REQUIRED": True, **named}
        return self.serve(view, MIDDLEWARE=[*around, MIDDLEWARE], RETRYSAFE=guard, **settings)

    def create(self, request: HttpRequest) -> HttpResponse:
        """The view: one row for every run."""
        self.work()
        return JsonResponse({"order": self.runs, "item": request.body.decode()}, status=201)

    def work(self) -> None:
        self.runs += 1
        self.execute("INSERT INTO goods (value) VALUES (%s)", f"{self.runs}")

    def execute(self, sql: str, *values: str) -> None:
        with connections[self.alias].cursor() as cursor:
            cursor.execute(sql, values or None)

    def rows(self) -> int:
        """Count the runs whose effect was committed."""
        assert not connections[self.alias].in_atomic_block
        with connections[self.alias].cursor() as cursor:
            cursor.execute("SELECT count(*) FROM goods")
            return int(cursor.fetchone()[0])


@contextmanager
def opened(name: str, tmp_path: Path, **settings: Any) -> Iterator[Site]:
    for left in connections.settings.values():  # Django wraps views for the aliases of all tests
        left["ATOMIC_REQUESTS"] = False
    kind, transactional = PLACES[name]
    if kind != "sqlite":
        require(kind)
    own = {"NAME": str(tmp_path / "site.db")} if kind == "sqlite" else {}
    alias = add_alias(kind, **own, **settings)
    store = {"redis": os.environ.get("RETRYSAFE_TEST_REDIS", ""), "memory": "memory://"}.get(name, alias)
    if name == "redis":
        require("redis")
    connect(alias).migrate()
    with connections[alias].cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS goods (value varchar(100) PRIMARY KEY)")
        cursor.execute("DELETE FROM goods")
    site = Site(alias, store, transactional)
    default = connections.settings["default"]
    atomic, default["ATOMIC_REQUESTS"] = default["ATOMIC_REQUESTS"], False
    try:
        with site.stack:
            yield site
    finally:
        default["ATOMIC_REQUESTS"] = atomic
        remove_alias(alias)


def post(client: Client, key: str | None = "k", body: str = "lamp", path: str = "/orders", **headers: str) -> Any:
    """One request of a client that retries."""
    if key is not None:
        headers["Idempotency-Key"] = key
    method = headers.pop("method", "POST")
    return client.generic(method, path, body, content_type=headers.pop("type", "text/plain"), headers=headers)


def replayed(response: Any) -> bool:
    return response.headers.get("Idempotent-Replayed") == "true"


def code(response: Any) -> str:
    assert response.headers["Content-Type"] == "application/problem+json", (response, response.content)
    return str(response.json()["code"])
