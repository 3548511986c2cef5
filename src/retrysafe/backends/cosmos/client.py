"""azure-cosmos in both colours: performs calls, notes the service's time, and translates what is raised."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from azure.core import MatchConditions
from azure.core.exceptions import AzureError
from azure.core.pipeline.transport import RequestsTransport
from azure.cosmos import CosmosClient as Library
from azure.cosmos.aio import CosmosClient as AsyncLibrary
from azure.cosmos.documents import ConnectionPolicy
from azure.cosmos.exceptions import CosmosHttpResponseError
from requests import Session
from requests.adapters import HTTPAdapter

from retrysafe.backends.cosmos.requests import MISSING, ItemAnswer, ItemCall
from retrysafe.backends.driver import arun, run
from retrysafe.backends.service_clock import ServiceClock
from retrysafe.backends.spec import OpenedOnLoop, WithoutTransactions
from retrysafe.errors import SchemaOutdated, StoreMisconfigured, StoreUnavailable
from retrysafe.protocol.requests import Ask, Program, as_it_is
from retrysafe.runtime import new_lock

_CONNECTIONS = 50
"""Connections that threads may leave open; the library's own number is 10."""
_TIMEOUT = 408
_NOT_NOW = (429, 449)
_REFUSED = {
    401: "Correct the account's key in store=.",
    403: "Allow this process the account: its firewall, and the role Cosmos DB Built-in Data Contributor.",
}
"""Statuses by which the service refuses a caller until it is set up otherwise, with the remedy."""


class ContainerAccess(NamedTuple):
    """The account, and deadlines.

    timeout: seconds to connect, and again for a call to be answered.
    patience: seconds of pauses for which the service asks when there are too many requests.
    discovery: the account's own addresses of its regions are used.
    """

    endpoint: str
    key: str
    timeout: float
    patience: float
    discovery: bool

    def open(self, library: Any, **more: Any) -> Any:
        """A client of the library, which is not to repeat by itself a call whose answer was lost."""
        policy = ConnectionPolicy()
        policy.ReadTimeout = self.timeout
        limits = {"connection_timeout": self.timeout, "retry_backoff_max": self.patience, "connection_policy": policy}
        once = dict.fromkeys(("retry_connect", "retry_read", "retry_status"), 0)
        return library(self.endpoint, self.key, **limits, **once, **more, enable_endpoint_discovery=self.discovery)


class Reach:
    """A database and its container, as objects of the library."""

    def __init__(self, database: Any, container: str) -> None:
        self.database = database
        self.container = database.get_container_client(container)


class _Conversation(WithoutTransactions):
    """The calls that a request takes; ``reach`` is a user's, or is opened by ``access`` at first use."""

    def __init__(self, names: tuple[str, str], clock: ServiceClock, access: Any = None, reach: Any = None) -> None:
        self._names = names
        self._clock = clock
        self._access = access
        self._opened = reach

    def _calls(self, request: ItemCall) -> Program[ItemAnswer]:
        first: ItemAnswer = yield Ask(request, as_it_is)
        following = request.follow(first)
        if following is None:
            return first
        second: ItemAnswer = yield Ask(following, as_it_is)
        return ItemAnswer(first.refused or second.refused, second.body)

    def _begin(self, call: ItemCall, reach: Reach, sent: int) -> Any:
        """Begin a call; one about items takes note of the time that its answer tells."""
        told: dict[str, Any] = {}
        if call.method.startswith("container."):
            told["response_hook"] = partial(self._note, sent)
        if "etag" in call.options:
            told["match_condition"] = MatchConditions.IfNotModified
        return attrgetter(call.method)(reach)(*call.arguments, **call.options, **told)

    def _note(self, sent: int, headers: Any, _body: Any = None) -> None:
        self._clock.note(sent, self._clock.local(), headers.get("Date"))

    def _judge(self, error: AzureError, call: ItemCall, sent: int) -> ItemAnswer:
        if not isinstance(error, CosmosHttpResponseError):
            raise StoreUnavailable(f"{type(error).__name__}: {error}") from error
        headers = error.headers or {}
        self._note(sent, headers)
        status = error.status_code or 0
        if status in call.expected:
            return ItemAnswer(status, None)
        text = f"{type(error).__name__} {status}: {error.message}"
        if status in _REFUSED:
            raise StoreMisconfigured(f"{text} {_REFUSED[status]}", unsent=True) from error
        if status == MISSING:
            text = f"There is no container {'/'.join(self._names)}. Run:  retrysafe migrate --store URL"
            raise SchemaOutdated(text) from error
        if after := headers.get("x-ms-retry-after-ms"):
            text += f" It asks to come again in {after} ms."
        unsent = 400 <= status < 500 and status != _TIMEOUT
        raise StoreUnavailable(text, unsent=unsent, transient=status in _NOT_NOW) from error


_opening = new_lock()


class CosmosClient(_Conversation):
    """A sync client; it is safe to use from many threads."""

    _library: Any = None

    def __call__(self, request: ItemCall, /) -> ItemAnswer:
        return run(self._calls(request), self._perform, patience=0.0)

    def _perform(self, call: ItemCall) -> ItemAnswer:
        sent = self._clock.local()
        try:
            if call.method == "container.query_items":
                call = call._replace(options={**call.options, "enable_cross_partition_query": True})
            found = self._begin(call, self._opened or self._open(), sent)
            return ItemAnswer(None, list(found) if hasattr(found, "by_page") else found)
        except AzureError as error:
            return self._judge(error, call, sent)

    def _open(self) -> Any:
        with _opening:
            if self._opened is None:
                session = Session()
                session.mount("https://", HTTPAdapter(pool_maxsize=_CONNECTIONS))
                self._library = self._access.open(Library, transport=RequestsTransport(session=session))
                self._opened = Reach(self._library.get_database_client(self._names[0]), self._names[1])
        return self._opened

    def close(self) -> None:
        library, self._library = self._library, None
        if library is not None:
            self._opened = None
            library.__exit__(None, None, None)


class AsyncCosmosClient(OpenedOnLoop, _Conversation):
    """An async client."""

    async def __call__(self, request: ItemCall, /) -> ItemAnswer:
        return await arun(self._calls(request), self._perform, patience=0.0)

    async def _perform(self, call: ItemCall) -> ItemAnswer:
        sent = self._clock.local()
        try:
            found = self._begin(call, self._opened or await self._open(), sent)
            return ItemAnswer(None, [one async for one in found] if hasattr(found, "by_page") else await found)
        except AzureError as error:
            return self._judge(error, call, sent)

    async def _living(self) -> AsyncGenerator[Reach, None]:
        async with self._access.open(AsyncLibrary) as library:
            yield Reach(library.get_database_client(self._names[0]), self._names[1])
