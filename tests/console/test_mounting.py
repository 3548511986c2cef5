"""The console in other applications: ASGI, WSGI, Django and by itself, behind their own authentication."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from flask import Flask
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from retrysafe.console import EVERY_RIGHT, Console, Principal
from retrysafe.console.wsgi_adapter import wsgi
from retrysafe.errors import ConfigurationError
from tests.console.conftest import Deck
from tests.console.visiting import BASE, Page, Visitor
from tests.operating.conftest import SOURCES, Command

ADMIN = {"X-User": "ada"}


async def of_asgi(request: Request) -> Principal | None:
    name = request.headers.get("x-user")
    return Principal(name, EVERY_RIGHT) if name == "ada" else None


def of_environ(environ: Mapping[str, Any]) -> Principal | None:
    name = environ.get("HTTP_X_USER")
    return Principal(name, EVERY_RIGHT) if name == "ada" else None


async def settle(visitor: Visitor, deck: Deck, root: str) -> None:
    """A story through whatever is in front."""
    deck.unknown("K")
    home = await visitor.get(f"{root}/", **ADMIN)
    assert (home.status, "1 key is unknown" in home.text) == (200, True), home.text
    assert home.links["Keys"] == f"{root}/keys"
    key = await visitor.submit(home, "/keys/find", {"key": "K"}, **ADMIN)
    key = await visitor.get(key.path, **ADMIN)  # httpx does not send the header of our own to where it is led
    assert key.path.startswith(f"{root}/keys/"), key.text
    form = key.form("/resolve")
    given = {**form.fields, "outcome": "released", "reason": "r"}
    await visitor.post(form.action, given, Origin=BASE, **ADMIN)
    assert [record.effective_state for record in deck.place.operator().find(boundary="payments")] == ["released"]
    style = next(given["href"] for _, given in home.tags if given.get("rel") == "stylesheet")
    assert (await visitor.client.get(str(style))).headers["content-type"].startswith("text/css")
    assert (await visitor.get(f"{root}/")).status == 403


@pytest.mark.parametrize("make", [lambda app: Starlette(routes=[Mount("/ops", app)]), lambda app: mounted(app)])
async def test_under_asgi(shelf: Deck, make: Any) -> None:
    visitor = Visitor(make(shelf.console(access=of_asgi)))
    await settle(visitor, shelf, "/ops")


def mounted(console: Console) -> FastAPI:
    app = FastAPI()
    app.mount("/ops", console)
    return app


async def test_under_wsgi(shelf: Deck) -> None:
    app = Flask("shop")
    app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {"/ops": wsgi(shelf.console(access=of_environ))})  # type: ignore[method-assign]
    visitor = Visitor(app)
    visitor.client = httpx.AsyncClient(transport=_Wsgi(app), base_url=BASE)
    await settle(visitor, shelf, "/ops")


class _Wsgi(httpx.AsyncBaseTransport):
    """httpx' transport to a WSGI application, in a thread as a server would call it."""

    def __init__(self, app: Any) -> None:
        self._inner = httpx.WSGITransport(app)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        plain = httpx.Request(request.method, request.url, headers=request.headers, content=body)
        response = await asyncio.to_thread(self._inner.handle_request, plain)
        content = await asyncio.to_thread(response.read)
        return httpx.Response(response.status_code, headers=response.headers, content=content, request=request)


@pytest.mark.slow
def test_as_a_view_of_django(shelf: Deck) -> None:
    """In a process of its own, since Django's settings are a process's."""
    shelf.unknown("K")
    program = f"""
import re
from django.conf import settings
settings.configure(ROOT_URLCONF=__name__, SECRET_KEY="x", ALLOWED_HOSTS=["testserver"], MIDDLEWARE=[
    "django.middleware.security.SecurityMiddleware", "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware", "django.middleware.clickjacking.XFrameOptionsMiddleware"])
import django; django.setup()
from django.urls import path
from django.test import Client
from retrysafe.console import Console, EVERY_RIGHT, Principal
from retrysafe.console.wsgi_adapter import django_view
view = django_view(Console({shelf.url!r}, access=lambda request:
    Principal("ada", EVERY_RIGHT) if request.headers.get("X-User") == "ada" else None))
urlpatterns = [path("ops/", view), path("ops/<path:path>", view)]
client = Client(enforce_csrf_checks=True, headers={{"X-User": "ada"}})
home = client.get("/ops/")
assert home.status_code == 200 and b"1 key is unknown" in home.content, home.content
assert home["X-Frame-Options"] == "DENY" and "frame-ancestors" in home["Content-Security-Policy"]
token = re.search(rb'name="token" value="(\\w+)"', home.content)[1].decode()
form = "application/x-www-form-urlencoded"
found = client.generic("POST", "/ops/keys/find", f"key=K&token={{token}}", form)
assert found.status_code == 303, found.content
key = client.get(found["Location"])
seen = re.search(rb'name="seen" value="([^"]+)"', key.content)[1].decode()
given = f"seen={{seen}}&outcome=released&reason=r"
bad = client.generic("POST", found["Location"] + "/resolve", given, form)
assert bad.status_code == 403, bad.content
done = client.generic("POST", found["Location"] + "/resolve", f"{{given}}&token={{token}}", form)
assert done.status_code == 303, done.content
assert Client().get("/ops/keys").status_code == 403
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": SOURCES},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert [record.effective_state for record in shelf.place.operator().find(boundary="payments")] == ["released"]


def test_a_coroutine_function_is_refused_where_nothing_awaits_it(shelf: Deck) -> None:
    app = wsgi(shelf.console(access=of_asgi))
    environ = {"REQUEST_METHOD": "GET", "wsgi.url_scheme": "http", "wsgi.input": io.BytesIO(), "PATH_INFO": "/"}
    with pytest.raises(ConfigurationError, match="give a plain one"):
        app(environ, lambda status, headers: None)


def test_a_store_that_serves_async_code_only_is_refused() -> None:
    url = os.environ.get("RETRYSAFE_TEST_POSTGRESQL", "postgresql://localhost/x").replace(":", "+asyncpg:", 1)
    with pytest.raises(ConfigurationError, match="sync driver"):
        Console(url, access=of_asgi)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "shop.example"])
def test_it_is_served_to_other_machines_only_with_an_authenticator(shelf: Deck, command: Command, host: str) -> None:
    done = command("console", "--store", shelf.url, "--host", host, "--port", "0")
    assert (done.code, "--access" in done.err) == (2, True)


def test_options_that_do_not_go_together_are_refused(shelf: Deck, command: Command) -> None:
    store = ("console", "--store", shelf.url, "--port", "0")
    both = command(*store, "--access", "tests.console.test_mounting:of_asgi", "--allow", "resolve")
    assert (both.code, "--allow" in both.err) == (2, True)
    wrong = command(*store, "--allow", "everything")
    assert (wrong.code, "the rights are" in wrong.err) == (2, True)
    none = command("console", "--store", "sqlite:////no/such/file.db")
    assert (none.code, "does not exist" in none.err) == (2, True)


@pytest.mark.slow
def test_it_serves_by_itself_and_reads_only(shelf: Deck, tmp_path: Any) -> None:
    shelf.unknown("K")
    audit = tmp_path / "audit.jsonl"
    arguments = ["console", "--store", shelf.url, "--port", "0", "--allow", "reveal", "--audit", str(audit)]
    served = subprocess.Popen(
        [sys.executable, "-m", "retrysafe", *arguments],
        env={**os.environ, "PYTHONPATH": SOURCES},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert served.stdout is not None
        base = served.stdout.readline().split()[1].rstrip("/")
        with httpx.Client(base_url=base) as client:
            home = Page(client.get("/"))
            assert "may reveal" in home.text
            assert "server" not in home.response.headers
            assert client.get("/", headers={"Host": "evil.example"}).status_code == 421
            form = home.form("/keys/find")
            found = client.post(form.action, data={**form.fields, "key": "K"})
            key = Page(client.get(found.headers["location"]))
            assert [one.action.rpartition("/")[2] for one in key.forms] == ["reveal"]
            shown = client.post(key.forms[0].action, data=key.forms[0].fields)
            assert "TimeoutError" in shown.text
        assert '"event": "revealed"' in audit.read_text()
    finally:
        served.terminate()
        assert served.wait(30) == 0
        served.stdout.close()


def test_the_command_resolves_all_that_a_filter_selects(shelf: Deck, command: Command, tmp_path: Any) -> None:
    shelf.unknown("a", "b", "c")
    shelf.unknown("d", operation="refund")
    chosen = ("keys", "resolve", "--all", "--operation", "charge", "--as", "released", "--store", shelf.url)
    dry = command(*chosen, "--dry-run")
    assert (dry.code, "3 selected, nothing changed" in dry.out) == (0, True)
    assert command(*chosen).code == 2
    done = command(*chosen, "--yes", "--audit", str(tmp_path / "audit.jsonl"), "--reason", "outage")
    assert (done.code, done.out.splitlines()[-1]) == (0, "resolved: 3")
    assert (tmp_path / "audit.jsonl").read_text().count('"outcome"') >= 3
    assert len(shelf.place.operator().find(states=["unknown"])) == 1
    assert command(*chosen, "--yes").code == 1
    count = command("keys", "list", "--state", "unknown", "--count", "--store", shelf.url)
    assert count.out == "1 key\n"
