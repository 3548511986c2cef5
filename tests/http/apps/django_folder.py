"""A Django project in one module: it appends to a file whatever it does, and its database is a SQLite file."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import django
from django.conf import settings

FOLDER = Path(os.environ.get("RETRYSAFE_TEST_FOLDER", "."))

settings.configure(
    SECRET_KEY="test",
    ALLOWED_HOSTS=["127.0.0.1"],
    ROOT_URLCONF=__name__,
    INSTALLED_APPS=["retrysafe.django"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(FOLDER / "db")}},
    MIDDLEWARE=["retrysafe.http.django.IdempotencyMiddleware"],
    RETRYSAFE={"BOUNDARY": f"{__name__}.orders", "PRINCIPAL": "shared", "ROUTES": {"/leased/**": "off"}},
)
django.setup()

from django.core.asgi import get_asgi_application  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.core.wsgi import get_wsgi_application  # noqa: E402
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse  # noqa: E402
from django.urls import path  # noqa: E402

from retrysafe import Boundary  # noqa: E402
from retrysafe.http.django import idempotent  # noqa: E402

orders = Boundary("orders", store="default", effects="transactional")
leased = idempotent(
    Boundary("leased", store=f"sqlite:///{FOLDER / 'keys.db'}"), response_limit=5_000, principal="shared"
)


def work(request: HttpRequest) -> HttpResponse:
    """Paths that end in "slow" wait for the file "go"."""
    _note(request)
    while request.path.endswith("slow") and not (FOLDER / "go").exists():
        time.sleep(0.005)
    return HttpResponse(b"done", status=201)


def large(request: HttpRequest) -> StreamingHttpResponse:
    """More than is kept."""
    _note(request)
    return StreamingHttpResponse(b"x" * 1000 for _ in range(20))


async def asynchronous(request: HttpRequest) -> StreamingHttpResponse:
    """The same from an async view."""
    _note(request)

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"x" * 1000

    return StreamingHttpResponse(chunks())


def _note(request: HttpRequest) -> None:
    with (FOLDER / "ledger").open("a") as ledger:
        ledger.write(f"{request.path}\n")


urlpatterns = [
    path("slow", work),
    path("orders", work),
    path("leased/slow", leased(work)),
    path("leased/large", leased(large)),
    path("leased/async", leased(asynchronous)),
]

call_command("migrate", verbosity=0)


def __getattr__(name: str) -> Any:
    return {"wsgi": get_wsgi_application, "asgi": get_asgi_application}[name]()
