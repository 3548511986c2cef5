"""The console as an ASGI application: it checks who asks, and leads each request to its page."""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retrysafe.admin.audit import Audit
from retrysafe.admin.operator import connect
from retrysafe.backends import registry
from retrysafe.backends.sql.store import keeps_messages
from retrysafe.backends.steps import runs_of
from retrysafe.boundary import Boundary
from retrysafe.claims.encryption import Keyring
from retrysafe.console import boundaries as boundary_pages
from retrysafe.console import bulk, doctor, keys, loads, messages, now, runs, templates
from retrysafe.console.access import Access, Principal
from retrysafe.console.operations import Operations
from retrysafe.console.security import HEADERS, Denied, Forms, check_host, check_origin, host_of, page_before
from retrysafe.console.visit import ConsolePage, ConsoleState, Fields, Visit, texts
from retrysafe.doctor.brokers import examination_of
from retrysafe.errors import ConfigurationError, RetrysafeError, StoreUnavailable
from retrysafe.loads.sql import is_target
from retrysafe.protocol.events import Observer

_LOG = logging.getLogger("retrysafe.console")
_AUDIT = logging.getLogger("retrysafe.audit")
PRINCIPAL = "retrysafe.principal"
"""The entry of the scope with the principal, if the application in front has found it."""
MOST_BYTES = 1 << 20
"""Bytes of a form."""
MOST_FIELDS = 100

_OF_MESSAGES = (*bulk.MESSAGE_PAGES, *messages.PAGES)
PAGES: tuple[ConsolePage, ...] = (
    *now.PAGES, *bulk.KEY_PAGES, *keys.PAGES, *runs.PAGES, *_OF_MESSAGES, *loads.PAGES,
    *boundary_pages.PAGES, *doctor.PAGES, *bulk.PAGES
)  # fmt: skip
"""Every page; where paths overlap, the first one is meant."""
_AREAS = (
    *(now.AREA, keys.AREA, keys.UNKNOWN, runs.AREA, messages.AREA, loads.AREA),
    *(boundary_pages.AREA, doctor.AREA, bulk.AREA),
)


class Console(ConsoleState):
    """Pages for operators of one store.

    Arguments:
        store: the store's URL, or what else ``Boundary(store=…)`` takes for sync code.
        access: called with each request of the application that the console is mounted in (a Starlette ``Request``, a
            WSGI environ, a Django ``HttpRequest``); returns the `Principal`, or None to refuse the request. It may be a
            coroutine function under ASGI. ``Local("resolve", …)`` lets in the user of this machine.
        boundaries: boundaries of this application, which the pages describe in words.
        brokers: URLs of brokers, which the page of the doctor examines.
        topics: the queues, topics or streams that are looked at there.
        hosts: the names that a request's Host header may have, without ports; by default any, which is for
            applications that check them.
        secret: authenticates forms. Give one if several processes serve the console: by default each has its own.
        audit: called with an entry before and after each change, and before a payload is shown; by default entries are
            logged to "retrysafe.audit" as JSON. An `AuditFile` writes them to a file.
        observers: receive an event for every change, and ``doctor_examined`` from the page of the doctor.
        key_secret: the boundaries' ``secret=``, if they have one: keys are found by their hash.
        encryption: the boundaries' keyring, if they have one: results are encrypted like their own.

    Raises `ConfigurationError` if the store does not exist, or serves async code only, and for a broker without checks.
    """

    def __init__(
        self,
        store: Any,
        *,
        access: Access,
        boundaries: Iterable[Boundary] = (),
        brokers: Iterable[str] = (),
        topics: Iterable[str] = (),
        hosts: Iterable[str] | None = None,
        secret: str | bytes | None = None,
        audit: Audit | None = None,
        observers: Iterable[Observer] = (),
        key_secret: str | bytes | None = None,
        encryption: Keyring | None = None,
    ) -> None:
        self._backend = connect(store)
        if not self._backend.serves_sync:
            raise ConfigurationError(
                f"store= ({self._backend.address}) serves async code only, and the console asks from threads: give the "
                "URL of a sync driver, such as postgresql://."
            )
        self._backend.users += 1
        self.store = store
        self.address = self._backend.address
        self.commands = self._backend.commands
        self.boundaries = tuple(boundaries)
        self.brokers, self.topics = tuple(brokers), tuple(topics)
        for url in self.brokers:
            examination_of(url)
        self.observers = tuple(observers)
        self.key_secret = key_secret
        self.encryption = encryption
        self.audit = _log if audit is None else audit
        self.forms = Forms(secret)
        self.has_messages = keeps_messages(self._backend.store)
        self._hosts = None if hosts is None else frozenset(map(host_of, hosts))
        self.access = access
        offered = {
            messages.AREA: self.has_messages,
            runs.AREA: runs_of(self._backend) is not None,
            loads.AREA: is_target(self._backend),
        }
        self.areas = tuple(area for area in _AREAS if offered.get(area, True))
        self.operations = Operations(self, lambda plan, cursor: bulk.step(self, plan, cursor))
        shown = (page for page in PAGES if self.has_messages or page not in _OF_MESSAGES)
        routes = [Route(page.path, partial(self._answer, page), methods=[page.method]) for page in shown]
        routes += [Route(f"/static/{name}", _file(name, kind)) for name, kind in templates.STATIC.items()]
        self._app = Starlette(routes=routes, exception_handlers={404: _not_found, 405: _not_found})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            check_host(Request(scope), self._hosts)
            app: ASGIApp = self._app
        except Denied as refused:
            app = _refusal_page(Request(scope), refused)
        await app(scope, receive, _add_headers(send))

    async def principal_of(self, asked: Any) -> Principal | None:
        """Find the principal of a request to the application in front."""
        found = self.access(asked)
        return await found if inspect.isawaitable(found) else found

    def close(self) -> None:
        """Stop operations before their next batch, and close the connections that nothing else uses."""
        self.operations.close()
        if registry.leave(self._backend):
            self._backend.close()

    # ------------------------------------------------------------ a request

    async def _answer(self, page: ConsolePage, request: Request) -> Response:
        try:
            principal = await self._principal(request)
            nonce = self.forms.nonce(request)
            form: Fields = {}
            if page.method == "POST":
                check_origin(request)
                form = await _form(request)
                self.forms.check(request, (form.get("token") or [""])[-1], principal.name)
            visit = Visit(self, request, principal, form, nonce)
            if page.right is not None:
                visit.require(page.right)
            response = await run_in_threadpool(page.show, visit)
            self.forms.remember(request, response, nonce)
            return response
        except Denied as refused:
            return _refusal_page(request, refused)
        except StoreUnavailable as error:
            _LOG.warning("the store cannot be used: %s", error.detail)
            return _refusal_page(request, Denied(503, "The store cannot be used", error.detail or ""))
        except RetrysafeError as error:
            return _refusal_page(request, Denied(400, "That cannot be done", error.detail or str(error)))
        except Exception:  # noqa: BLE001 - a page shows nothing of an error that it does not know
            _LOG.exception("a page of the console has failed")
            return _refusal_page(request, Denied(500, "The page has failed", "The console's log says why."))

    async def _principal(self, request: Request) -> Principal:
        found = request.scope.get(PRINCIPAL) or await self.principal_of(request)
        if not isinstance(found, Principal) or not found.name:
            raise Denied(403, "No access", "The application in front of this console does not let you in.")
        return found


def _add_headers(send: Send) -> Send:
    """Add the headers of every page to all responses, also to those of the router."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sending


async def _form(request: Request) -> Fields:
    """The fields of a form; files are not taken."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Denied(415, "No form", "This address takes the fields of a form.")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise Denied(413, "Too large", f"A form has at most {MOST_BYTES} bytes.")
    try:
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict")
    except ValueError:
        raise Denied(400, "No form", "The fields of the form cannot be read.") from None
    return texts(fields)


def _refusal_page(request: Request, refused: Denied) -> Response:
    values = {"title": refused.title, "text": refused.text, "version": templates.version()}
    places = {"root": str(request.scope.get("root_path", "")), "before": page_before(request)}
    return HTMLResponse(templates.render("refused.html", {**values, **places}), refused.status)


async def _not_found(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    return _refusal_page(request, Denied(status, "Not found", "The console has no such page."))


def _file(name: str, kind: str) -> Callable[[Request], Response]:
    def serve(request: Request) -> Response:
        kept = {"Cache-Control": "public, max-age=604800, immutable"} if request.url.query else {}
        return Response(templates.static(name), media_type=kind, headers=kept)

    return serve


def _log(entry: Mapping[str, Any], /) -> None:
    _AUDIT.info("%s", json.dumps(entry, ensure_ascii=False))
