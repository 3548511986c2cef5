"""A Django project with a guard inside, and perhaps one around it, for the matrix of pairs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.http.django_site import MIDDLEWARE, opened

from django.core.handlers.asgi import ASGIHandler  # isort: skip
from django.core.handlers.wsgi import WSGIHandler  # isort: skip
from django.http import HttpRequest, HttpResponse  # isort: skip
from django.urls import path  # isort: skip
from rest_framework.views import APIView  # isort: skip

from retrysafe.http.django import idempotent  # isort: skip
from retrysafe.http.drf import Idempotency, IdempotentMixin  # isort: skip


class Served(NamedTuple):
    """The project over both protocols."""

    wsgi: Any
    asgi: Any


@contextmanager
def site_of(folder: Path, inside: str, inner: Any, outer: Any) -> Iterator[Served]:
    """The project; ``outer`` is the middleware's side, where that is the outer guard."""
    with opened("memory", folder) as site:
        guarding = inner if inside == "middleware" else outer
        if guarding is not None:
            site.settings(RETRYSAFE={"BOUNDARY": guarding.boundary, "PRINCIPAL": guarding.principal(of_django)})
        urls = type("Urls", (), {"urlpatterns": [path("pay", VIEWS[inside](inner))]})
        site.settings(ROOT_URLCONF=urls, ALLOWED_HOSTS=["*"], REST_FRAMEWORK={"UNAUTHENTICATED_USER": None})
        site.settings(MIDDLEWARE=[] if guarding is None else [MIDDLEWARE])
        yield Served(WSGIHandler(), ASGIHandler())


def of_django(request: Any) -> Any:
    return request.headers


def plain(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"secret of {request.headers.get('x-user')}")


def of_rest_framework(side: Any) -> Any:
    class Pay(IdempotentMixin, APIView):  # type: ignore[misc]
        authentication_classes = ()
        permission_classes = ()
        idempotency = Idempotency(side.boundary, principal=side.principal(of_django))

        def post(self, request: Any) -> HttpResponse:
            return plain(request)

    return Pay.as_view()


VIEWS: dict[str, Any] = {
    "decorator": lambda side: idempotent(side.boundary, principal=side.principal(of_django))(plain),
    "middleware": lambda side: plain,
    "rest_framework": of_rest_framework,
}
