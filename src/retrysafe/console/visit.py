"""One request to the console: who makes it, what the store's operators are, and the page that answers it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from retrysafe.admin.audit import Audit
from retrysafe.admin.operator import Operator
from retrysafe.backends.commands import Commands
from retrysafe.boundary import Boundary
from retrysafe.claims.encryption import Keyring
from retrysafe.console import templates
from retrysafe.console.access import Principal, Right
from retrysafe.console.operations import Operations
from retrysafe.console.security import Denied, Forms
from retrysafe.messaging.inbox.operator import InboxOperator
from retrysafe.messaging.relay.operator import OutboxOperator
from retrysafe.protocol.events import Observer

Fields = Mapping[str, list[str]]


class Area(NamedTuple):
    """A part of the console that has a place in its navigation."""

    title: str
    path: str


class ConsoleState:
    """The store and the application that every page of one console is about; `Console` has the arguments."""

    store: Any
    address: str
    commands: Commands
    boundaries: tuple[Boundary, ...]
    brokers: tuple[str, ...]
    topics: tuple[str, ...]
    observers: tuple[Observer, ...]
    key_secret: str | bytes | None
    encryption: Keyring | None
    audit: Audit
    forms: Forms
    has_messages: bool
    areas: tuple[Area, ...]
    operations: Operations

    def operator(self, actor: str) -> Operator:
        return Operator(
            self.store,
            actor=actor,
            observers=self.observers,
            secret=self.key_secret,
            encryption=self.encryption,
            audit=self.audit,
        )


class ConsolePage(NamedTuple):
    """A path of the console: what answers it, by which method, and the right that it takes."""

    path: str
    show: Callable[[Visit], Response]
    method: str = "GET"
    right: Right | None = None


def texts(fields: Fields) -> Fields:
    """Fields as they are, if stores can compare them with what they have: no database keeps a NUL in a text."""
    if any("\0" in value for values in fields.values() for value in values):
        raise Denied(400, "No text", "Nothing was changed: a field has the character NUL, which no record has.")
    return fields


class Visit:
    """One request by a principal, with the fields of its query and of its form."""

    def __init__(self, console: ConsoleState, request: Request, principal: Principal, form: Fields, nonce: str) -> None:
        self.console = console
        self.request = request
        self.principal = principal
        self.form = form
        self._nonce = nonce

    # ------------------------------------------------------------ what was asked

    @property
    def query(self) -> Fields:
        params = self.request.query_params
        return texts({name: [value.strip() for value in params.getlist(name)] for name in params})

    def ask(self, name: str) -> str:
        return (self.query.get(name) or [""])[-1]

    def field(self, name: str) -> str:
        return (self.form.get(name) or [""])[-1].strip()

    def path(self, name: str) -> str:
        return str(self.request.path_params[name])

    def require(self, right: Right) -> None:
        if not self.principal.may(right):
            raise Denied(
                403, "Not allowed", f"{self.principal.name} does not have the right “{right}”. Nothing was changed."
            )

    # ------------------------------------------------------------ operators

    @property
    def commands(self) -> Commands:
        return self.console.commands

    def operator(self) -> Operator:
        return self.console.operator(self.principal.name)

    def outbox(self) -> OutboxOperator:
        return OutboxOperator(self.console.store, actor=self.principal.name, observers=self.console.observers)

    def inbox(self) -> InboxOperator:
        return InboxOperator(self.console.store, actor=self.principal.name, observers=self.console.observers)

    # ------------------------------------------------------------ answers

    def url(self, path: str, query: Iterable[tuple[str, str]] = ()) -> str:
        """The address of a page, wherever the console is mounted."""
        fields = urlencode(list(query))
        return f"{self.request.scope.get('root_path', '')}{path}{'?' * bool(fields)}{fields}"

    def page(self, template: str, area: str, title: str, **values: Any) -> Response:
        console = self.console
        given = {
            "area": area,
            "title": title,
            "areas": console.areas,
            "address": console.address,
            "principal": self.principal,
            "may": self.principal.may,
            "Right": Right,
            "url": self.url,
            "token": console.forms.token(self._nonce, self.principal.name),
            "version": templates.version(),
        }
        return HTMLResponse(templates.render(template, {**given, **values}))

    def go(self, path: str, query: Iterable[tuple[str, str]] = ()) -> Response:
        """Lead on to another page, so that loading it again repeats nothing."""
        return RedirectResponse(self.url(path, query), 303)
