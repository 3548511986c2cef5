"""An adapter for requests. Needs the extra ``requests``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from retrysafe.errors import ConfigurationError
from retrysafe.extras import NeedsExtra
from retrysafe.http.client import resuming
from retrysafe.http.client.calling import Planned, Retries
from retrysafe.http.client.hosts import quote_key
from retrysafe.http.client.journal import Entry, Journal
from retrysafe.http.client.over_requests import AdapterWire, Refreshing, decline, outgoing, read, retries_itself
from retrysafe.http.client.results import ServerAnswer
from retrysafe.http.client.resuming import Resumed
from retrysafe.http.key_header import HEADER
from retrysafe.http.without_loop import run_without_loop

with NeedsExtra("requests"):
    import requests
    from requests.adapters import BaseAdapter, HTTPAdapter


class RetryAdapter(BaseAdapter):
    """Retries requests safely, for ``session.mount("https://", …)``.

    Arguments:
        retries: what is retried, and how.
        inner: what sends; by default ``requests.adapters.HTTPAdapter()``. One retry layer is enough: an adapter with
            ``max_retries`` is refused.
        refresh: called once for a request to a declared host that got 401, returns headers such as a new Authorization;
            the request is then sent with them, and with its key. Not after a redirect to another origin.

    Raises, beside requests' own errors, `RequestOutcomeUnknown`, `RequestKeyReused`, `RequestKeyExpired`,
    `JournalUnavailable`, `RequestTooLarge` and `InvalidKey`. An error of requests says in a note whether the request
    may have had its effect.
    """

    def __init__(
        self, retries: Retries, inner: BaseAdapter | None = None, *, refresh: Refreshing | None = None
    ) -> None:
        super().__init__()
        self._retries = retries
        self._inner = HTTPAdapter() if inner is None else inner
        self._refresh = refresh
        if isinstance(self._inner, RetryAdapter) or retries_itself(getattr(self._inner, "max_retries", None)):
            raise ConfigurationError("inner= retries by itself: give an adapter that does not (max_retries=0).")

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: bool | str = True,
        cert: Any = None,
        proxies: Mapping[str, str] | None = None,
    ) -> requests.Response:
        """Send a request, and again where that is safe."""
        sent = request.copy()
        body = read(sent, self._retries.policy.body_limit)
        planned = self._retries.plan(outgoing(sent, body))
        how = {"timeout": timeout, "verify": verify, "cert": cert, "proxies": proxies}
        wire = AdapterWire(self._inner, sent, self._retries, self._refresh, how)
        answer = run_without_loop(planned.carry_out(wire, lambda: planned.stamp(sent.headers)))
        response = _hand_over(request, planned, answer)
        response.connection = self  # type: ignore[assignment]  # by which requests' digest authentication sends again
        return response

    def close(self) -> None:
        """Close what sends."""
        self._inner.close()


def _hand_over(request: requests.PreparedRequest, planned: Planned, answer: ServerAnswer) -> requests.Response:
    """The response for requests, which makes the next request of this one where it follows a redirect."""
    response: requests.Response = answer.raw
    return response if planned.may_follow(answer, request.headers) else decline(response)


def resume(
    session: requests.Session, journal: Journal, *, origin: str | None = None, wall: Callable[[], float] = time.time
) -> Iterator[Resumed]:
    """Send again what earlier processes left in the journal, by a session that has a `RetryAdapter` with it.

    Its credentials, default headers and cookies are added, as to any request; so say by ``origin`` whom they are for,
    if the journal has requests to other hosts too. Any number of processes may resume at once: each takes the requests
    of no living process. What its host may have forgotten is not sent, and stays in the journal:
    its error is `RequestOutcomeUnknown`. Raises `ConfigurationError` if the session has no such adapter.
    """

    def send(entry: Entry) -> requests.Response:
        settings = session.merge_environment_settings(entry.url, {}, None, None, None)
        return session.send(_again(session, entry), **settings)

    return resuming.resume(journal, origin, wall, send)


def _again(session: requests.Session, entry: Entry) -> requests.PreparedRequest:
    """The request as it was, with what the session adds; by its URL of then, whatever parameters the session has."""
    headers: dict[str, str] = {}
    for name, value in entry.headers:
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    built = session.prepare_request(
        requests.Request(entry.method, entry.url, headers={**headers, HEADER: quote_key(entry.key)}, data=entry.body)
    )
    built.url = entry.url
    return built
